"""A world as one value, for a compacted journal."""

from __future__ import annotations

from typing import Any

import msgspec

from hpcext.core.decisions import OpenQuestion
from hpcext.core.history.fragments import Fragments
from hpcext.core.suspicion import Suspicion
from hpcext.core.values import Job, Node, Record


class Saved(msgspec.Struct, frozen=True):
    """All that a :class:`~hpcext.core.world.World` knows.

    Attributes
    ----------
    suspending : bool
        In journals it is ``stopping``, as release 0.1.0 called it.
    """

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    records: dict[str, Record]
    draining: bool
    suspending: bool = msgspec.field(name="stopping")
    next_op: int
    memo: dict[str, Any] | None
    wake_s: float | None
    unsettled: bool = False
    fragments: Fragments = Fragments()
    leaving: bool = False
    ends_s: float | None = None
    shrunk: bool = False
    questions: int = 0
    open_question: OpenQuestion | None = None
    undecided: str = ""
    slow: bool = False
    suspects: dict[str, Suspicion] = {}
    aside: dict[str, str] = {}
    drained: bool = False
