"""The refinement of profiles by running jobs: ``scaling = "NAME"`` gets better with every run."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.core.values import Job, State, total
from hpcext.executors.gpu_facts import gpu_facts
from hpcext.executors.gpus import find_gpus
from hpcext.jobspec import JobSpec
from hpcext.profiles import Measurement, Profiles
from hpcext.scaling.kinds import alike

log = logging.getLogger(__name__)

SKIP_S = 20.0
"""Seconds of warm-up on a number of GPUs: the window of a session's own rate."""

ENOUGH_S = 60.0
"""Seconds of an observation that is worth storing."""

STORE_EVERY_S = 900.0
"""Seconds after which a job that stays on its GPUs is stored; it is also stored when it leaves."""

LOCK_S = 2.0
"""Seconds that a manager waits for a lock, while its other jobs wait."""

SLOT = "slot"
"""The kind of a slot that stands for a GPU on a machine without any."""

UNKNOWN = "unknown"
"""The kind of GPUs for which no library has a name."""


def gpu_kind(library: Any = None, environ: Mapping[str, str] | None = None) -> str:
    """Return the driver's name for the GPUs of this machine; :data:`SLOT` if there are none.

    Parameters
    ----------
    library : module, optional
        As of :func:`hpcext.executors.gpu_facts.gpu_facts`.
    environ : Mapping[str, str], optional
        As of :func:`hpcext.executors.gpus.find_gpus`.
    """
    found = find_gpus(library, environ)
    if not found:
        return SLOT
    # A part of a GPU has a speed of its own.
    kinds = {gpu.index: f"{gpu.name} {gpu.partition}".rstrip() for gpu in gpu_facts(library)}
    return kinds.get(found[0], UNKNOWN)[:100]


def profiles_for(directory: Path) -> Profiles:
    """Return the store in a directory, as a manager on this machine uses it."""
    return Profiles(directory, gpu_kind(), lock_s=LOCK_S)


@dataclasses.dataclass
class _Watch:
    """A job on one number of GPUs.

    Attributes
    ----------
    place : tuple of int
        Operation, GPUs, nodes.
    gpu : str
        Kind of GPU.
    since_s, seen_s : float
        When its first and its last progress there was seen.
    step, done : float
        As they were then.
    seconds, work : float
        How long its rate was observed, and what was done in that time by that rate.
    steps, amount : float
        Steps and work by the job's own counters in that time: how much work is a step.
    """

    place: tuple[int, int, int]
    gpu: str
    since_s: float
    seen_s: float
    step: int
    done: float
    seconds: float = 0.0
    work: float = 0.0
    steps: int = 0
    amount: float = 0.0

    def saw(self, now_s: float, job: Job, rate: float) -> None:
        """Take in that the job made progress."""
        if self.seen_s - self.since_s >= SKIP_S:
            # The rate is a mean over the last while, measured where the steps are made: better
            # than the instants at which a manager happens to look.
            self.seconds += now_s - self.seen_s
            self.work += rate * (now_s - self.seen_s)
            self.steps += job.step - self.step
            self.amount += job.estimate.done - self.done
        self.seen_s, self.step, self.done = now_s, job.step, job.estimate.done

    def measured(self) -> Measurement | None:
        """Return what to store, if that is enough."""
        if self.seconds < ENOUGH_S or min(self.work, self.steps, self.amount) <= 0:
            return None
        rate, per_step = self.work / self.seconds, self.amount / self.steps
        return Measurement(
            at=time.time(),
            gpus=self.place[1],
            nodes=self.place[2],
            steps_per_s=rate / per_step,
            # A training that does not count samples reports its steps as its work.
            samples_per_s=rate if self.amount != self.steps else None,
            seconds=self.seconds,
            source="job",
            gpu=self.gpu,
        )

    def forget(self) -> None:
        """Start the observation over."""
        self.seconds = self.work = self.amount = 0.0
        self.steps = 0


class Refiner:
    """An observer that adds what the jobs of an engine measure to their profiles.

    A profile that cannot be written is a warning, never more: the training matters.

    Parameters
    ----------
    profiles : Profiles
    spec : callable
        Job id → the job's specification.
    """

    def __init__(self, profiles: Profiles, spec: Callable[[str], JobSpec]) -> None:
        self._profiles = profiles
        self._spec = spec
        self._submitted = 0
        self._named: set[str] = set()
        self._watches: dict[str, _Watch] = {}
        self._warned: set[str] = set()

    def __call__(self, engine: Engine, now_s: float) -> None:
        """Look at the jobs that have a profile, after a turn of their driver."""
        jobs = engine.world.jobs
        if len(jobs) != self._submitted:
            # Not in each turn: there may be a hundred thousand of them.
            self._submitted = len(jobs)
            unfinished = (job.id for job in engine.world.unfinished())
            self._named = {name for name in unfinished if self._spec(name).profile}
        for name in list(self._named):
            job = jobs[name]
            if job.state is State.RUNNING:
                nodes = engine.world.nodes
                kinds = [nodes[node].kind for node in job.held if node in nodes]
                self._look(job, now_s, self._gpu(kinds[0] if kinds else ""))
            elif watch := self._watches.pop(name, None):
                self._store(name, watch)
            if job.state.final:
                self._named.discard(name)

    def _gpu(self, kind: str) -> str:
        """Return the kind of a node's GPUs in profiles: the driver's name, if they are as here."""
        return kind if kind and alike(kind, [self._profiles.gpu]) is None else self._profiles.gpu

    def _look(self, job: Job, now_s: float, gpu: str) -> None:
        gpus = max(job.held.values(), default=0)
        place = (job.op, gpus, len(job.held))
        rate = job.estimate.rate(total(job.held))
        watch = self._watches.get(job.id)
        if watch is None or watch.place != place:
            if watch is not None:
                self._store(job.id, watch)
            new = _Watch(place, gpu, now_s, now_s, job.step, job.estimate.done)
            self._watches[job.id] = new
        elif job.step > watch.step and rate is not None:
            watch.saw(now_s, job, rate)
            if watch.seconds >= STORE_EVERY_S:
                self._store(job.id, watch)
                watch.forget()

    def _store(self, job: str, watch: _Watch) -> None:
        measured = watch.measured()
        if measured is None:
            return
        name = self._spec(job).profile
        try:
            # Not new: its user may have removed it while the job ran.
            self._profiles.add(name, [measured], new=False)
        except HpcextError as error:
            if name not in self._warned:
                self._warned.add(name)
                log.warning("profile %s was not refined: %s", name, error)
