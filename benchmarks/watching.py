"""What it costs to watch running pilots, as ``hpcext top``, ``metrics`` and the dashboard do.

``python benchmarks/watching.py [PILOTS JOBS ENTRIES]``: so many pilots of so many jobs, each with
so many entries in its journal, which is compacted at 2,000. Between two looks each journal grows by
one entry. CPU time of this process, by readers that replay what was added, and by ones that replay
all.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.manager import journal
from hpcext.manager.journal import Header, Journal
from hpcext.manager.tail import Tail
from hpcext.policies import find_policy

LOOKS = 5


class Pilot:
    """The journal of a pilot in which all jobs run, and report their progress by turns."""

    def __init__(self, path: Path, jobs: int, entries: int) -> None:
        self.path = path
        self._book = Journal(path, Header(began_at=1000.0, policy="marble"))
        self._ops: list[tuple[str, int]] = []
        engine, policy = Engine(), find_policy("marble")
        facts: tuple[f.Fact, ...] = (f.Began(), f.NodeJoined(v.Node("n", jobs)))
        facts += tuple(
            f.Submitted(v.Job(str(job), f"job-{job}", job, (1,), 1)) for job in range(1, jobs + 1)
        )
        while facts:
            self._book.note(0.0, facts)
            actions, _ = engine.step(0.0, facts)
            started = [each for each in actions if each.kind is v.Kind.START]
            self._ops += [(each.job, each.op) for each in started]
            facts = tuple(f.Started(each.job, each.op, (f"n:{each.op}",)) for each in started)
            if (question := engine.wants) is not None:
                facts = (*facts, engine.answer(policy(question.now)))
        assert len(self._ops) == jobs
        self._steps = 0
        while self._steps < entries:
            self.grow()

    def grow(self) -> None:
        """Let one job report."""
        self._steps += 1
        job, op = self._ops[self._steps % len(self._ops)]
        self._book.append(float(self._steps), (f.Progressed(job, op, self._steps),))


def whole(pilot: Pilot) -> None:
    """Look at a pilot as who sees it for the first time."""
    journal.read(pilot.path).recount()


def timed_ms(pilots: list[Pilot], look: Callable[[Pilot], None]) -> float:
    """Return the CPU time of a look at all pilots, after each has grown."""
    used_s = 0.0
    for _ in range(LOOKS):
        for pilot in pilots:
            pilot.grow()
        began_s = time.process_time()
        for pilot in pilots:
            look(pilot)
        used_s += time.process_time() - began_s
    return 1e3 * used_s / LOOKS


def main() -> None:
    """Make the pilots, and look at them."""
    count, jobs, entries = map(int, sys.argv[1:] or (50, 20, 1500))
    with tempfile.TemporaryDirectory() as directory:
        pilots = [Pilot(Path(directory) / f"{n}.jsonl", jobs, entries) for n in range(count)]
        tails = {pilot: Tail(pilot.path) for pilot in pilots}

        def added(pilot: Pilot) -> None:
            tails[pilot].read()
            tails[pilot].engine()

        for pilot in pilots:
            added(pilot)
        tail_ms, whole_ms = timed_ms(pilots, added), timed_ms(pilots, whole)
    print(f"{count} pilots of {jobs} jobs, {entries} entries each: a look at all of them takes")
    print(
        f"{tail_ms:.1f} ms by what was added, {whole_ms:.0f} ms by all ({tail_ms / whole_ms:.4f})"
    )


if __name__ == "__main__":
    main()
