"""The narration of a run: lines on what happens to each job, and one line for many that wait.

A run may have a hundred thousand jobs, so the output grows with what happens to them, not with
their number. A reason to wait is printed once, however many jobs have it, and however often jobs
change from one reason to another. After that, the number of completed jobs is printed.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

from hpcext.cli.output import Output
from hpcext.cli.view import gpu_names, several_hosts, warning
from hpcext.core.engine import Engine
from hpcext.core.reasons import reason
from hpcext.core.saving import loss_sentence, said
from hpcext.core.values import Job, Loss, Record, State
from hpcext.core.world import World
from hpcext.manager.views.report import display_state
from hpcext.text import counted

FEW = 20
"""Up to this number of jobs, no counts are printed: the lines of the jobs are enough."""

PARTS = 10
"""With more jobs, counts are printed each time that another such part of all is done."""

MOST_REASONS = 50
"""The largest number of reasons to wait that are printed; policies have about twenty."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_NEEDS = re.compile(r"waits for .* to complete\Z")


def kind_of(text: str) -> str:
    """Return the kind of a text: without its numbers, and without the jobs that are waited for."""
    return _NUMBER.sub("#", _NEEDS.sub("waits for others to complete", text))


class Census:
    """The number of jobs in each state, updated at a cost that grows with the changes alone."""

    def __init__(self) -> None:
        self._groups: dict[str, str] = {}
        self._counts: collections.Counter[str] = collections.Counter()

    def update(self, jobs: Iterable[Job]) -> None:
        """Count jobs in their present states instead of their earlier ones."""
        for job in jobs:
            group = _group(job)
            before = self._groups.get(job.id)
            if group != before:
                self._groups[job.id] = group
                self._counts[group] += 1
                self._counts[before or ""] -= 1

    @property
    def total(self) -> int:
        """The number of all jobs."""
        return len(self._groups)

    @property
    def final(self) -> int:
        """The number of jobs that have ended, one way or another."""
        return self.total - self._counts["run"] - self._counts["wait"]

    def sentence(self) -> str:
        """Return ``480 of 1000 jobs are done; 6 run, 511 wait, 3 failed``."""
        others = ("run", "wait", "failed", "were cancelled")
        rest = [f"{self._counts[group]} {group}" for group in others if self._counts[group]]
        done = f"{self._counts['done']} of {counted(self.total, 'job')} are done"
        return "; ".join(filter(None, [done, ", ".join(rest)]))


def _group(job: Job) -> str:
    if job.done:
        return "done"
    if job.state is State.FAILED:
        return "failed"
    if job.state is State.CANCELLED:
        return "were cancelled"
    return "run" if job.state.active else "wait"


class Narrator:
    """An observer of a run that prints what has changed, one event at a time.

    Parameters
    ----------
    out : Output

    Attributes
    ----------
    census : Census
        Of the jobs as they were when it was last called.
    """

    def __init__(self, out: Output) -> None:
        self.census = Census()
        self._out = out
        self._world: World | None = None
        self._seen = 0
        self._told: dict[str, tuple[str, str, str]] = {}
        self._reasons: set[str] = set()
        self._losses: dict[str, Loss] = {}
        self._since_s: float | None = None
        self._noted: set[tuple[str, str]] = set()
        self._next = 0
        self._named = False

    def __call__(self, engine: Engine, now_s: float) -> None:
        """Print what is new."""
        changed = self._changed(engine.world, now_s)
        new: dict[str, list[Job]] = {}
        for job in changed:
            self._tell_loss(job, engine.world.records[job.id], now_s)
            before, now = self._told.get(job.id), _gist(job, named=self._named)
            if before == now:
                continue
            self._told[job.id] = now
            waits = job.state is State.PENDING
            # A suspension or a retry concerns this job alone, so each job has its own line.
            if waits and (now[0] == State.PENDING.value or (before and before[0] == now[0])):
                self._group(new, job, now[-1])
                continue
            if waits:
                self._reasons.add(now[-1])
            self._out.event(now_s, job.name, now[0], _text(job, named=self._named))
        for jobs in new.values():
            self._tell_waiting(jobs, now_s)
        self._warn(changed, engine.world, now_s)
        self._tell_counts(now_s)

    def aside(self, engine: Engine, now_s: float) -> None:
        """Print only what a table of jobs does not show: losses, failures, and warnings.

        Parameters
        ----------
        engine : Engine
        now_s : float
            Seconds since the pilot began.
        """
        changed = self._changed(engine.world, now_s)
        for job in changed:
            self._tell_loss(job, engine.world.records[job.id], now_s)
            before, self._told[job.id] = self._told.get(job.id), _gist(job, named=self._named)
            if job.state is State.FAILED and before != self._told[job.id]:
                self._out.event(now_s, job.name, display_state(job), _text(job, named=self._named))
        self._warn(changed, engine.world, now_s)

    def _changed(self, world: World, now_s: float) -> list[Job]:
        """Return the jobs that may have something new to tell, in the order of their submission."""
        self._since_s = now_s if self._since_s is None else self._since_s
        self._named = several_hosts(world)
        if world is self._world:
            names = world.changed.since(self._seen)
        else:
            # Another reading of the same pilot numbers its changes from the beginning again.
            self._world, names = world, list(world.jobs)
        self._seen = world.changed.last
        jobs = sorted((world.jobs[name] for name in names), key=lambda job: job.order)
        self.census.update(jobs)
        return jobs

    def _group(self, new: dict[str, list[Job]], job: Job, kind: str) -> None:
        """Add a job to those that wait for the same reason, if that was not printed yet."""
        if kind in new:
            new[kind].append(job)
        elif kind not in self._reasons and len(self._reasons) < MOST_REASONS:
            self._reasons.add(kind)
            new[kind] = [job]

    def _tell_waiting(self, jobs: Sequence[Job], now_s: float) -> None:
        first = jobs[0]
        if len(jobs) == 1:
            self._out.event(
                now_s, first.name, display_state(first), _text(first, named=self._named)
            )
            return
        who = f"{len(jobs)} jobs, the first is {first.name}"
        self._out.event(
            now_s, None, display_state(first), f"{who}: {_text(first, named=self._named)}"
        )

    def _tell_counts(self, now_s: float) -> None:
        """Print how many jobs are done, when that is another part of all."""
        final, total = self.census.final, self.census.total
        if not self._next:
            self._next = final + max(FEW, total // PARTS)
        if total > FEW and self._next <= final < total:
            self._next = final + max(FEW, total // PARTS)
            self._out.event(now_s, None, "progress", self.census.sentence())

    def _warn(self, changed: Iterable[Job], world: World, now_s: float) -> None:
        """Print each warning of the trainings once."""
        for job in changed:
            for note in world.records[job.id].notes:
                if (job.id, note) not in self._noted:
                    self._noted.add((job.id, note))
                    self._out.event(now_s, job.name, "warning", warning(note))

    def _tell_loss(self, job: Job, record: Record, now_s: float) -> None:
        """Print once what the end of an attempt has cost."""
        loss = record.loss
        if job.state.final:
            # It does not go on.
            return
        if loss is None or loss == self._losses.get(job.id) or loss.at_s < (self._since_s or 0.0):
            return
        self._losses[job.id] = loss
        self._out.event(now_s, job.name, display_state(job), loss_sentence(loss))


def _gist(job: Job, *, named: bool) -> tuple[str, str, str]:
    """Return what makes a line about a job worth printing when it changes.

    It is the state, the GPUs, and the kind of the text.
    """
    where = ",".join(job.gpus) if job.state is State.RUNNING else ""
    return display_state(job), where, kind_of(_text(job, named=named))


def _text(job: Job, *, named: bool) -> str:
    if job.state is State.RUNNING and job.role:
        where = gpu_names(job.gpus, named=named)
        return f"running on GPUs {where} ({job.role.value}): {reason(job)}"
    if job.state in {State.STARTING, State.STOPPING}:
        return f"{job.state.value}: {said(job)}" if job.run.unsaved else str(job.state.value)
    return f"{display_state(job)}: {reason(job)}" if reason(job) else display_state(job)
