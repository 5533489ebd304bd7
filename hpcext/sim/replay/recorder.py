"""The record of a run while it is simulated, in memory that does not grow with its length.

Only the jobs add to it, by a row for each at the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.engine import Engine
from hpcext.core.facts import Cancel, Ended, Fact, Submitted
from hpcext.core.values import Action, Job, Record, State
from hpcext.sim.evaluate.fair import FairShares
from hpcext.sim.evaluate.outcome import JobRow, Span
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.ledger import Spent
from hpcext.sim.replay.physics import Physics

MOST_SPANS = 2048
FIRST_SPAN_S = 1.0

Levels = tuple[float, ...]
"""Of a recorder: offered, held, training, running, waiting, as in
:class:`~hpcext.sim.evaluate.outcome.Span`."""


class Stretch(NamedTuple):
    """A stretch of a timeline: its beginning, its end, and the mean of each level."""

    start_s: float
    end_s: float
    means: Levels


class Timeline:
    """Means over spans of equal length, which doubles whenever there are too many."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._most = most
        self._width_s = FIRST_SPAN_S
        self._sums: list[list[float]] = []
        self._until_s = 0.0

    def add(self, until_s: float, levels: Levels) -> None:
        """Add levels that held from the end of the timeline to an instant.

        Parameters
        ----------
        until_s : float
            The end of the levels.
        levels : Levels
            As many as in all calls.
        """
        while until_s > self._most * self._width_s:
            self._halve()
        while self._until_s < until_s:
            at = int(self._until_s / self._width_s)
            end_s = min(until_s, (at + 1) * self._width_s)
            if end_s <= self._until_s:
                # The next edge, if rounding has put the instant just before it.
                at, end_s = at + 1, min(until_s, (at + 2) * self._width_s)
            while len(self._sums) <= at:
                self._sums.append([0.0] * len(levels))
            span_s = end_s - self._until_s
            sums = self._sums[at]
            for number, level in enumerate(levels):
                sums[number] += level * span_s
            self._until_s = end_s

    def stretches(self) -> list[Stretch]:
        """Return all stretches; the last one ends where the timeline does."""
        found = []
        for at, sums in enumerate(self._sums):
            start_s = at * self._width_s
            end_s = min(start_s + self._width_s, self._until_s)
            if end_s > start_s:
                means = tuple(each / (end_s - start_s) for each in sums)
                found.append(Stretch(start_s, end_s, means))
        return found

    def spans(self) -> tuple[Span, ...]:
        """Return the same for levels of a recorder."""
        return tuple(Span(each.start_s, each.end_s, *each.means) for each in self.stretches())

    def _halve(self) -> None:
        """Halve the number of spans by doubling their length."""
        self._width_s *= 2
        pairs = range(0, len(self._sums), 2)
        self._sums = [
            [math.fsum(both) for both in zip(*self._sums[at : at + 2], strict=True)] for at in pairs
        ]


class Recorder:
    """An observer of an engine's steps that collects the parts of a ``SimulatedRun``.

    Jobs that have ended are forgotten by engine and executor.

    Parameters
    ----------
    engine : Engine
    executor : SimulatedExecutor
    shares : FairShares, optional
        If given, rows state how long jobs would have taken on an equal share of the machine. Jobs
        that depend on others count from their start on, and have no such figure.
    """

    def __init__(
        self, engine: Engine, executor: SimulatedExecutor, shares: FairShares | None = None
    ) -> None:
        self.events = 0
        self.done = 0.0
        self.last_end_s = 0.0
        self._engine = engine
        self._executor = executor
        self._shares = shares
        self._timeline = Timeline()
        self._levels: Levels = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._rows: list[JobRow] = []
        # Of jobs without a row; the world keeps a job for longer if others depend on it.
        self._physics: dict[str, Physics] = {}
        self._started_s: dict[str, float] = {}

    def expect(self, job: str, physics: Physics) -> None:
        """Register the physics of a job that is yet to come."""
        self._physics[job] = physics

    def watch(self, now_s: float, facts: tuple[Fact, ...], actions: tuple[Action, ...]) -> None:
        """Record one step; :data:`~hpcext.sim.replay.heap.Observe`."""
        self.events += 1
        self._timeline.add(now_s, self._levels)
        world = self._engine.world
        for action in actions:
            self._started_s.setdefault(action.job, now_s)
        if self._shares is not None:
            self._count(now_s, self._shares, facts, actions)
        # Among several facts about one job, any may be the one that ended it.
        ends = (fact.job for fact in facts if isinstance(fact, (Ended, Cancel)))
        for job_id in dict.fromkeys(ends):
            job = world.jobs.get(job_id)
            if job is not None and job.state.final and job_id in self._physics:
                self._end(now_s, job)

    def after(self) -> None:
        """Record the levels from now on, after the actions of a step, or without one."""
        use = self._executor.use()
        waiting = len(self._engine.world.queue) - use.attempts
        self._levels = (use.offered, use.held, use.trained, use.attempts, max(0, waiting))

    def between(self, now_s: float) -> None:
        """Record what has changed without a step, such as a training that pauses."""
        self._timeline.add(now_s, self._levels)
        self.after()

    def finish(self, now_s: float) -> tuple[tuple[JobRow, ...], tuple[Span, ...]]:
        """Return all rows, by the time of submission, and all spans until an instant."""
        self._timeline.add(now_s, self._levels)
        self._executor.settle()
        for job in list(self._engine.world.jobs.values()):
            if job.id in self._physics:
                self._end(now_s, job)
        rows = sorted(self._rows, key=lambda row: row.submitted_s)
        return tuple(rows), self._timeline.spans()

    def _count(
        self, now_s: float, shares: FairShares, facts: tuple[Fact, ...], actions: tuple[Action, ...]
    ) -> None:
        """Count the jobs that come and go, for fair shares."""
        for fact in facts:
            if isinstance(fact, Submitted) and not fact.job.after:
                shares.come(now_s, fact.job.id)
        for action in actions:
            if self._engine.world.jobs[action.job].after:
                shares.come(now_s, action.job)

    def _fair_s(self, now_s: float, job: Job, physics: Physics) -> float | None:
        if self._shares is None:
            return None
        share = self._shares.go(now_s, job.id)
        if share is None or job.after or job.state is not State.COMPLETED:
            return None
        return self._shares.alone_s(job, physics, share)

    def _end(self, now_s: float, job: Job) -> None:
        world = self._engine.world
        record = world.records.get(job.id, Record())
        spent = self._executor.forget(job.id)
        started_s = self._started_s.pop(job.id, None)
        physics = self._physics.pop(job.id)
        row = _row(job, record, spent, physics.work, started_s)
        self._rows.append(replace(row, fair_s=self._fair_s(now_s, job, physics)))
        self.done += spent.done
        if job.state.final:
            self.last_end_s = max(self.last_end_s, job.since_s)
            world.forget(job.id)
            for need in job.after:
                # This job may have been the last that depended on another one.
                if need in world.jobs:
                    world.forget(need)


def _row(job: Job, record: Record, spent: Spent, work: float, started_s: float | None) -> JobRow:
    return JobRow(
        job.id,
        job.name,
        job.state.value,
        job.submitted_s,
        started_s,
        job.since_s if job.state.final else None,
        spent.held_gpu_s,
        max(0.0, spent.held_gpu_s - spent.trained_gpu_s),
        work,
        spent.lost,
        job.attempt,
        record.suspends,
        record.rescales,
    )
