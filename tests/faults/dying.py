"""``hpcext`` whose manager kills itself at a chosen record of its journal.

Usage: ``dying.py FACT WHEN ARGS...``: SIGKILL ``before`` the first record that holds a FACT is
written, ``after`` it (between record and action), or when its actions were ``acted``. With
``compact`` as FACT: before or after the journal is compacted, which then is soon.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from hpcext.cli.main import main
from hpcext.manager import journal
from hpcext.manager.driver import Driver
from hpcext.manager.journal import Journal

fact_name, when = sys.argv[1:3]
note, commit = Journal.note, Journal.commit
turn, compact = Driver._turn, Journal.compact
coming: list[bool] = []
reached: list[bool] = []
if fact_name == "compact":
    journal.COMPACT_AFTER = 4


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_note(self: Journal, now_s: float, facts: tuple[Any, ...]) -> None:
    note(self, now_s, facts)
    if any(type(fact).__name__ == fact_name for fact in facts):
        coming.append(True)


def dying_commit(self: Journal) -> None:
    if coming and when == "before":
        die()
    commit(self)
    if coming and when == "after":
        die()
    reached.extend(coming)
    coming.clear()


def dying_turn(self: Driver, executor: Any) -> None:
    turn(self, executor)
    if reached and when == "acted":
        die()


def dying_compact(self: Journal, *told: Any) -> None:
    if fact_name == "compact" and when == "before":
        die()
    compact(self, *told)
    if fact_name == "compact":
        die()


Journal.note, Journal.commit = dying_note, dying_commit  # type: ignore[method-assign]
Driver._turn, Journal.compact = dying_turn, dying_compact  # type: ignore[method-assign]
sys.exit(main(sys.argv[3:]))
