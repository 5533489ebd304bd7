"""The cost of a pilot's jobs if they had run one by one, by simulating its recording.

MARBLE (section V-A, equation 1) writes the time of a set of jobs as the sum of t (1 - a) - p over
the jobs: t is the time of a job on a node of its own, a the gain there by its best number of GPUs,
and p the gain by running beside others. Sharing saves p. So each job is simulated on nodes of its
own at its best size, t (1 - a), and the GPU-hours of that are compared with those that the pilot
held. The baseline there (section VII-A) is a batch system that gives a node to one job after the
other, so all GPUs of a node count as long as a job has it, used or not. If all jobs are there from
the beginning and the machine is one node, as in the experiments of section VII-B, that is the
completion time of the job set times the GPUs of the node. Without any job the baseline holds
nothing, but the pilot did, and that counts against it.

If batch jobs share nodes, a job is charged only for the GPUs that it requested: that is the other
figure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError, InputError
from hpcext.core.facts import Fact
from hpcext.core.values import Action, Alloc, Job, Kind, Record, State
from hpcext.policies import find_policy
from hpcext.policies.common import named as counted
from hpcext.sim.evaluate.outcome import JobRow
from hpcext.sim.pilots import BASELINE
from hpcext.sim.pilots.recording import Recording, encoded
from hpcext.sim.replay.floor import nodes_of
from hpcext.sim.replay.heap import Observe
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.replay.sources import fixed
from hpcext.sim.workloads.recorded import recorded_jobs

MOST_REPORTS = 20_000
"""Largest number of reports in a simulated pilot; in a long one they are less frequent."""


class Size(NamedTuple):
    """A number of GPUs, and of their nodes."""

    gpus: int
    nodes: int


class JobObservation(NamedTuple):
    """Facts about a job that ran which its recording does not contain.

    Attributes
    ----------
    submitted_s, ended_s : float
    held_s : float
        Seconds during which it had GPUs.
    sizes : collection of Size
        Sizes for which its speed is known.
    """

    submitted_s: float
    ended_s: float
    held_s: float
    sizes: Collection[Size]


class Alone(NamedTuple):
    """A simulated job on nodes of its own.

    Attributes
    ----------
    lasted_s : float
        Seconds for which it had the nodes.
    gpus : int
        GPUs that it used, on all nodes.
    node_gpus : int
        GPUs of all these nodes.
    """

    lasted_s: float
    gpus: int
    node_gpus: int


class Simulated(NamedTuple):
    """The outcome of the simulations.

    Attributes
    ----------
    alone : Mapping[str, Alone]
        By the id of a job, its simulation on nodes of its own.
    busy_s : float
        Seconds with unfinished jobs, when all run together under the pilot's own policy; to be
        compared with the real pilot (:func:`busy_s`).
    """

    alone: Mapping[str, Alone]
    busy_s: float


def seen(job: Job, record: Record, profiled: Iterable[int] = ()) -> JobObservation:
    """Return the facts in a journal about a job that completed.

    The speed that a job states is not a measurement, unless it comes from a profile: then its speed
    is known on these numbers of GPUs of a node, besides the sizes on which it trained. If it had
    the same number of GPUs on two nodes and on one, the recording has the speed on one. If a job
    reported nothing, its time is known on the GPUs that it had, if it ran once, from beginning to
    end.

    Parameters
    ----------
    job : Job
    record : Record
    profiled : iterable of int
        GPUs of a node for which its profile has speeds.
    """
    parts = record.segments
    fewest = {each.gpus: each.nodes for each in reversed(job.estimate.observed)}
    if fewest:
        fewest = dict.fromkeys(profiled, 1) | fewest
    elif len(parts) == job.attempt == 1:
        fewest = {len(parts[0].gpus): len(nodes_of(parts[0].gpus))}
    held_s = sum(
        (job.since_s if each.end_s is None else each.end_s) - each.start_s for each in parts
    )
    return JobObservation(
        job.submitted_s, job.since_s, held_s, frozenset(map(Size._make, fewest.items()))
    )


def busy_s(stays: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one job was there, given the beginning and end of each."""
    busy, until_s = 0.0, 0.0
    for came_s, went_s in sorted(stays):
        busy += max(0.0, went_s - max(came_s, until_s))
        until_s = max(until_s, went_s)
    return busy


def simulated(recording: Recording, jobs: Mapping[str, JobObservation]) -> Simulated:
    """Simulate the jobs of a pilot each alone, and all together as they ran.

    Parameters
    ----------
    recording : Recording
    jobs : Mapping[str, JobObservation]
        By id, all jobs of the recording.

    Raises
    ------
    InputError
        The recording is not sufficient, or has impossible values.
    """
    encoded(recording)
    if len(set(recording.nodes)) > 1:
        raise InputError("its nodes are not alike, and the speeds on each were not recorded")
    at_least_s = sum(job.held_s for job in jobs.values()) / MOST_REPORTS
    how = SimulationOptions(report_s=max(recording.report_s, at_least_s))
    alone = _alone(recording, jobs, how)
    together = _rows(recording, recording.policy, how, {}).values()
    return Simulated(alone, busy_s((row.submitted_s, _went_s(row)) for row in together))


def _alone(
    recording: Recording, jobs: Mapping[str, JobObservation], how: SimulationOptions
) -> dict[str, Alone]:
    node_gpus = recording.nodes[0].gpus
    best = tuple(
        replace(job, sizes=tuple(size for size in job.sizes if size <= job.optimal))
        for job in recording.jobs
    )
    given: dict[str, Alloc] = {}
    rows = _rows(replace(recording, jobs=best), BASELINE, how, given)
    alone = {}
    for job, row in rows.items():
        size = Size(sum(given[job].values()), len(given[job]))
        if size not in jobs[job].sizes:
            on = f"{counted(size.gpus)}{f' of {size.nodes} nodes' if size.nodes > 1 else ''}"
            what = f"its speed on {on}, its best size, was not measured"
            do = "next time, measure a profile with hpcext profile and name it in the job file"
            raise InputError(what, where=f"job {row.name}", do=do)
        alone[job] = Alone(_went_s(row) - (row.started_s or 0.0), size.gpus, size.nodes * node_gpus)
    return alone


def _rows(
    recording: Recording, policy: str, how: SimulationOptions, given: dict[str, Alloc]
) -> dict[str, JobRow]:
    """Simulate each job under a policy; record in `given` what it is given first."""

    def watcher(_: Engine) -> Observe:
        def observe(_: float, __: tuple[Fact, ...], actions: tuple[Action, ...]) -> None:
            for each in actions:
                if each.kind is Kind.START:
                    given.setdefault(each.job, each.alloc)

        return observe

    scenario = Scenario(recorded_jobs(recording), fixed(recording.machine).nodes)
    try:
        found = run(scenario, find_policy(policy), Named(policy), how, watcher)
    except HpcextError as error:
        raise InputError(f"it cannot be simulated: {error}") from None
    for row in found.jobs:
        if row.state != State.COMPLETED:
            what = f"in the simulation under {policy} it does not complete, but ends as {row.state}"
            raise InputError(what, where=f"job {row.name}")
    return {row.job: row for row in found.jobs}


def _went_s(row: JobRow) -> float:
    """Return the end of a completed job."""
    return row.submitted_s + (row.jct_s or 0.0)
