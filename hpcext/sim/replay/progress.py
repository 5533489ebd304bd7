"""How far a simulation is, by the jobs that have ended and by its time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hpcext.core.engine import Engine
from hpcext.core.facts import Fact
from hpcext.core.values import Action
from hpcext.sim.replay.heap import Observe

COUNT_AFTER_S = 1.0
"""Seconds of a run after which it is worth to count its jobs, which may come from a long log."""

_Job = TypeVar("_Job")


class Progress:
    """The progress of one simulation.

    Parameters
    ----------
    tell : callable
        Called after each step with the part that is done, from 0 to 1; 0 while it is not known.
    count : callable
        Counts the jobs of the run. It is called once, if the run takes a while.
    until_s : float
        The time at which the simulation ends, if it lasts so long.
    """

    def __init__(
        self, tell: Callable[[float], None], count: Callable[[], int], until_s: float
    ) -> None:
        self._tell, self._count, self._until_s = tell, count, until_s
        self._submitted, self._total = 0, 0
        self._count_at_s = time.monotonic() + COUNT_AFTER_S

    def of(self, jobs: Iterable[_Job]) -> Iterator[_Job]:
        """Yield jobs, and note how many were submitted."""
        for job in jobs:
            self._submitted += 1
            yield job

    def begin(self, engine: Engine) -> Observe:
        """Return an observer of the steps of an engine."""

        def look(now_s: float, facts: tuple[Fact, ...], actions: tuple[Action, ...]) -> None:
            if time.monotonic() >= self._count_at_s:
                self._total, self._count_at_s = self._count(), math.inf
            done = now_s / self._until_s if self._until_s < math.inf else 0.0
            if self._total:
                done = max(done, (self._submitted - len(engine.world.queue)) / self._total)
            self._tell(min(1.0, max(0.0, done)))

        return look
