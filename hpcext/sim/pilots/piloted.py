"""The recording of a pilot (:mod:`hpcext.sim.pilots.recording`), made from its journal."""

from __future__ import annotations

import collections
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcext.core.engine import Engine
from hpcext.core.estimate import GoodputReport
from hpcext.core.facts import Ended, Fact, Outcome, Progressed, Registered, Rescaled, Submitted
from hpcext.core.values import Job, Kind, Node, Record, Segment, State
from hpcext.scaling.curve import interpolate
from hpcext.scaling.estimator import GpuCounts, rate_alone, speedups
from hpcext.sim.pilots.recording import (
    MOST_POINTS,
    SOONEST_S,
    Adapting,
    CompletedJob,
    Costs,
    Recording,
    Stated,
    machine_of,
)
from hpcext.sim.replay.floor import nodes_of
from hpcext.sim.workloads.recorded import goodput_of, kept, model_of

NEAR = 0.05
"""Relative difference below which noise scales are equal: none is known more precisely."""

LEAST_WORK = 1e-6
"""Work of a job that ended as soon as it had begun."""

Step = tuple[float, Sequence[Fact]]
"""An instant, and its facts."""


class Report(NamedTuple):
    """A report of a job's progress: its time, attempt, GPUs and content."""

    now_s: float
    op: int
    gpus: tuple[str, ...]
    done: float
    goodput: GoodputReport | None

    @property
    def nodes(self) -> int:
        """The number of nodes that the job was on."""
        return len(nodes_of(self.gpus))


class Piloted:
    """A pilot as its journal describes it, step by step.

    Parameters
    ----------
    engine : Engine
        The engine from the head of the journal; it takes the remaining steps.
    steps : iterable of Step
        Steps of the journal.

    Attributes
    ----------
    left_out : tuple of Job
        Jobs that did not complete, so that their work is unknown.
    """

    def __init__(self, engine: Engine, steps: Iterable[Step]) -> None:
        self._world = engine.world
        self._nodes: dict[str, Node] = dict(engine.world.nodes)
        self._submitted: dict[str, Job] = {}
        self._reports: dict[str, list[Report]] = collections.defaultdict(list)
        self._in_place: set[str] = set()
        self._joins_s: dict[str, list[float]] = collections.defaultdict(list)
        self._left_s: dict[str, list[float]] = collections.defaultdict(list)
        asked_s: dict[tuple[str, int, int], float] = {}
        for now_s, facts in steps:
            for fact in facts:
                self._process(now_s, fact, asked_s)
            actions, _ = engine.step(now_s, facts)
            self._nodes |= self._world.nodes
            for each in actions:
                if each.kind is Kind.RESCALE:
                    asked_s[each.job, each.op, each.resize] = now_s
        jobs = self._world.jobs.values()
        self.left_out = tuple(job for job in jobs if job.state is not State.COMPLETED)

    def _process(
        self, now_s: float, fact: Fact, asked_s: Mapping[tuple[str, int, int], float]
    ) -> None:
        if isinstance(fact, Submitted):
            self._submitted.setdefault(fact.job.id, fact.job)
        elif isinstance(fact, Registered) and fact.in_place:
            self._in_place.add(fact.job)
        elif isinstance(fact, Rescaled):
            began_s = asked_s.get((fact.job, fact.op, fact.resize))
            job = self._world.jobs.get(fact.job)
            grew = job is not None and len(fact.gpus) > len(job.gpus)
            if fact.ok and grew and fact.stall_s is not None and began_s is not None:
                self._joins_s[fact.job].append(max(0.0, now_s - began_s - fact.stall_s))
        elif isinstance(fact, Ended) and fact.outcome is Outcome.COMPLETED:
            last = next(iter(self._reports[fact.job][-1:]), None)
            if last is not None and last.op == fact.op:
                reached = (each.now_s for each in self._reports[fact.job] if each.done == last.done)
                self._left_s[fact.job].append(now_s - next(reached))
        elif isinstance(fact, Progressed):
            job = self._world.jobs.get(fact.job)
            # Until a change of size is made, a job trains on its old GPUs.
            if job is not None and job.op == fact.op and job.gpus:
                at = Report(now_s, fact.op, job.gpus, fact.done, fact.goodput)
                self._reports[job.id].append(at)

    def recording(self, policy: str) -> Recording | None:
        """Return the recording of the pilot; None if no job has completed."""
        jobs = [job for job in self._world.jobs.values() if job.state is State.COMPLETED]
        if not jobs:
            return None
        costs = self._costs(jobs)
        ran = [self._completed(job, costs[job.id]) for job in jobs]
        ran.sort(key=lambda job: job.submitted_s)
        return Recording(policy, machine_of(self._nodes), tuple(ran), self._report_s())

    def _completed(self, job: Job, costs: Costs) -> CompletedJob:
        known = job.estimate
        first = self._submitted.get(job.id, job)
        stated = Stated(dict(known.stated), known.work, first.estimate.up_s, first.estimate.down_s)
        adapting = self._adapting(job)
        speed, work = ({}, known.done) if adapting else self._plain(job)
        return CompletedJob(
            id=job.id,
            name=job.name,
            submitted_s=job.submitted_s,
            sizes=first.sizes,
            optimal=first.optimal,
            work=work,
            nodes=first.nodes,
            priority=job.priority,
            weight=job.weight,
            suspend_timeout_s=job.suspend_timeout_s,
            after=job.after,
            stated=stated,
            costs=costs,
            speed=speed,
            adapting=adapting,
        )

    def _plain(self, job: Job) -> tuple[dict[int, float], float]:
        """Return the speeds and the work of a job with one batch, measured or else estimated."""
        known, segments = job.estimate, self._world.records[job.id].segments
        nodes = (job.nodes or (1, 1))[1]
        counts = np.arange(1, max(job.sizes) * nodes + 1)
        believed, alone = speedups(known, GpuCounts.on_one_node(counts)), rate_alone(known)
        if not known.done or not known.measured or believed is None or alone is None:
            # Without reports, only its beginning and end are known.
            speed = dict(known.stated) or {1: 1.0}
            work = (interpolate(speed, len(each.gpus)) * _length_s(each) for each in segments)
            return speed, max(LEAST_WORK, sum(work))
        curve = dict(zip(counts.tolist(), (alone * believed).tolist(), strict=True))
        return curve | known.measured, known.done

    def _adapting(self, job: Job) -> Adapting | None:
        said = job.estimate.goodput
        if said is None or said.throughput is None or not job.estimate.done:
            return None
        told = [each for each in self._reports[job.id] if each.goodput is not None]
        points = [(each.done, each.goodput.noise_scale) for each in told if each.goodput]
        return Adapting(
            said,
            tuple(_thinned(points or [(0.0, said.noise_scale)])),
            told[0].done if told else 0.0,
            _pace(said, self._reports[job.id]),
        )

    def _costs(self, jobs: Sequence[Job]) -> dict[str, Costs]:
        """Return the costs of each job: its own mean, else that of others, else the stated ones."""
        found = {job.id: self._measured(job) for job in jobs}
        costs = {}
        for job in jobs:
            stated = {"resume_s": job.estimate.up_s, "suspend_s": job.estimate.down_s}
            seconds = {}
            for name, own in found[job.id].items():
                others = itertools.chain.from_iterable(each[name] for each in found.values())
                known = (_mean(own), _mean(others), stated.get(name), 0.0)
                seconds[name] = next(each for each in known if each is not None)
            moved = self._world.records[job.id].rescales > 0
            costs[job.id] = Costs(in_place=moved or job.id in self._in_place, **seconds)
        return costs

    def _measured(self, job: Job) -> dict[str, list[float]]:
        """Return each measured cost of a job's changes."""
        record = self._world.records[job.id]
        return {
            "resume_s": [sum(each.resume_s.values()) for each in record.segments if each.resume_s],
            "suspend_s": [
                sum(each.suspend_s.values()) for each in record.segments if each.suspend_s
            ],
            "rescale_up_s": list(_stalls(record, grows=True)),
            "rescale_down_s": list(_stalls(record, grows=False)),
            "leave_s": self._left_s[job.id],
            "join_s": self._joins_s[job.id],
        }

    def _report_s(self) -> float:
        """Return the mean seconds between two reports."""
        gaps = [
            after.now_s - before.now_s
            for reports in self._reports.values()
            for before, after in itertools.pairwise(reports)
            if before.op == after.op
        ]
        return max(SOONEST_S, statistics.median(gaps)) if gaps else 1.0


def _pace(said: GoodputReport, reports: Sequence[Report]) -> float:
    """Return the ratio of a job's progress to its model's, while it stayed on its GPUs."""
    done = promised = 0.0
    for before, after in itertools.pairwise(reports):
        if before.goodput is None or (before.op, before.gpus) != (after.op, after.gpus):
            continue
        model, gpus = model_of(said, before.goodput.noise_scale), len(before.gpus)
        choice = kept(model, before.goodput.batch or said.initial_batch, gpus, before.nodes)
        if choice is not None:
            rate = goodput_of(model, choice, gpus, before.nodes)
            promised += rate * (after.now_s - before.now_s)
            done += after.done - before.done
    return done / promised if done > 0 and promised > 0 else 1.0


def _thinned(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep only the points that differ from the one before."""
    kept_: list[tuple[float, float]] = []
    for done, noise in points:
        if not kept_ or (done > kept_[-1][0] and abs(noise - kept_[-1][1]) > NEAR * kept_[-1][1]):
            kept_.append((done, noise))
    return kept_[:: -(-len(kept_) // MOST_POINTS)]


def _stalls(record: Record, *, grows: bool) -> Iterator[float]:
    for before, after in itertools.pairwise(record.segments):
        grew = len(after.gpus) > len(before.gpus)
        if after.rescaled and after.stall_s is not None and grew == grows:
            yield after.stall_s


def _length_s(segment: Segment) -> float:
    return max(0.0, (segment.end_s or segment.start_s) - segment.start_s)


def _mean(values: Iterable[float]) -> float | None:
    every = list(values)
    return statistics.fmean(every) if every else None
