"""One run of Pollux's simulator experiments (section 5.3): a workload under a policy."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job, Node
from hpcext.policies import find_policy
from hpcext.sim.measured import Application, read_application
from hpcext.sim.outcome import Run
from hpcext.sim.physics import Physics
from hpcext.sim.profiled import Adaptive, Fixed
from hpcext.sim.run import How, Named, Scenario, run
from hpcext.sim.workloads.philly import SHARES, Asked, make_philly, read_philly

NODES, GPUS = 16, 4
"""The machine (section 5.1)."""

DELAY_S = 30.0
"""Of a job that is re-allocated (section 5.3), and of one that starts."""

REPORT_S = 30.0
"""Time between an agent's reports (section 5.1)."""

ROOM = {"yolov3": 8}
"""Samples of a GPU of those applications that were measured with more than the authors allow."""

ALONE = "ncf"
"""The application that the authors' simulator runs on one GPU and with its tuned batch always: it
is over in a minute."""

FOLDER = "pollux"
"""In a folder of data."""


class Case(NamedTuple):
    """One run.

    Attributes
    ----------
    data : Path
        The folder of the measurements.
    policy : str
        With its options.
    workload : int
        Number of a published workload; 0: one that is made.
    seed : int
        Of the one that is made, and of a genetic search.
    load : float
        How many times as many jobs come as in the paper; for one that is made.
    interference : float
        Share of its speed that a job loses where another one on several nodes is on one of its.
    """

    data: Path
    policy: str
    workload: int = 0
    seed: int = 0
    load: float = 1.0
    interference: float = 0.0

    @property
    def name(self) -> str:
        """Of the policy, without its options."""
        return self.policy.partition(":")[0]

    @property
    def searches(self) -> bool:
        """Whether the policy is the paper's genetic search."""
        return "search=genetic" in self.policy


@functools.cache
def applications(folder: Path) -> Mapping[str, Application]:
    """All that were measured."""
    return {name: read_application(folder / name, most_per_gpu=ROOM.get(name)) for name in SHARES}


def asked(case: Case) -> tuple[Asked, ...]:
    """The jobs of a case."""
    if not case.workload:
        return make_philly(case.seed, load=case.load)
    return read_philly(case.data / f"workload-{case.workload}.csv")


def simulated(case: Case) -> Run:
    """Simulate a case; what a fair share would have given each job is in the rows.

    Raises
    ------
    InputError
        The measurements are not there, or not what they should be.
    """
    nodes = tuple(Node(f"node{number:02}", GPUS) for number in range(1, NODES + 1))
    jobs = asked(case)
    policy = case.policy
    if case.searches:
        policy += f",seed={case.seed}"
    found = run(
        Scenario(_jobs(case, jobs), nodes),
        find_policy(policy),
        Named(case.policy, f"workload-{case.workload}" if case.workload else "philly", "16x4"),
        How(seed=case.seed, report_s=REPORT_S),
    )
    return _with_fairness(case, found, jobs)


def _jobs(case: Case, jobs: Sequence[Asked]) -> Iterator[tuple[Job, Physics]]:
    known = applications(case.data)
    for order, each in enumerate(jobs):
        application = known[each.application]
        job = Job(each.name, each.name, order, (1,), 1, submitted_s=each.submitted_s)
        made = _adaptive if case.name == "pollux" else _tuned
        job, speed = made(case, job, each, application)
        yield (
            job,
            Physics(
                speed,
                speed.work,
                resume_s=DELAY_S,
                interference=case.interference,
                checkpoint_s=None,
            ),
        )


def _adaptive(
    case: Case, job: Job, each: Asked, application: Application
) -> tuple[Job, Adaptive | Fixed]:
    """A job that Pollux's agent adapts: nothing is known of its speed."""
    alone = each.application == ALONE
    speed = Adaptive(application, each.batch if alone else None)
    most = 1 if alone else min(application.most_batch // application.least_per_gpu, NODES * GPUS)
    # The paper's search deals GPUs out in any way; exact divisions have as many on each node.
    job = _loose(job, most) if case.searches else _even(job, most)
    return replace(job, estimate=Estimate(work=speed.work)), speed


def _tuned(
    case: Case, job: Job, each: Asked, application: Application
) -> tuple[Job, Adaptive | Fixed]:
    """A job with the batch of the workload; with its GPUs too, under Tiresias.

    Optimus knows the true speeds on as few nodes as can be, and what is left: an oracle.
    """
    speed = Fixed(application, each.batch)
    if case.name == "tiresias":
        return replace(job, sizes=(each.gpus,), optimal=each.gpus), speed
    most = min(each.batch // application.least_per_gpu, NODES * GPUS)
    if each.application == ALONE:
        most = 1
    curve = {gpus: speed.rate(packed(gpus)) for gpus in range(1, most + 1)}
    return replace(_even(job, most), estimate=Estimate(work=speed.work, stated=curve)), speed


def _even(job: Job, most: int) -> Job:
    per_node = min(GPUS, most)
    sizes = tuple(range(1, per_node + 1))
    return replace(job, sizes=sizes, optimal=per_node, nodes=(1, max(1, most // GPUS)))


def _loose(job: Job, most: int) -> Job:
    return replace(job, sizes=tuple(range(1, most + 1)), optimal=most)


def packed(gpus: int) -> tuple[int, ...]:
    """So many GPUs on as few nodes as can be."""
    full, rest = divmod(gpus, GPUS)
    return (GPUS,) * full + ((rest,) if rest else ())


def _with_fairness(case: Case, found: Run, jobs: Sequence[Asked]) -> Run:
    """With the time that each job would have taken alone on an equal part of the machine."""
    ends = {row.job: row.ended_s for row in found.jobs}
    intervals = [(each.submitted_s, ends[each.name] or math.inf) for each in jobs]
    fair = {
        each.name: fair_s(
            applications(case.data)[each.application],
            each.batch if each.application == ALONE or case.name != "pollux" else None,
            NODES * GPUS / _beside(begin, end, intervals),
        )
        for each, (begin, end) in zip(jobs, intervals, strict=True)
    }
    rows = tuple(replace(row, fair_s=fair[row.job]) for row in found.jobs)
    return replace(found, jobs=rows)


def _beside(begin_s: float, end_s: float, intervals: Sequence[tuple[float, float]]) -> float:
    """Jobs that were there in the mean over a job's time, itself among them."""
    together = sum(max(0.0, min(end_s, end) - max(begin_s, begin)) for begin, end in intervals)
    return together / (end_s - begin_s)


def fair_s(application: Application, batch: int | None, share: float) -> float:
    """Seconds that a job takes alone on so many GPUs (Themis, section 3.1): as fast as it can.

    Parameters
    ----------
    application : Application
    batch : int or None
        The total batch; None: the best of each epoch, by the truth.
    share : float
        GPUs, > 0. Between whole numbers it is on straight lines; on less than one as much slower.
    """
    if application.name == ALONE:
        share = min(share, 1.0)
    whole = max(1.0, share)
    low, high = math.floor(whole), math.ceil(whole)
    ends = [0.0, *(application.end(epoch) for epoch in range(application.epochs))]
    if batch is not None:
        fixed = Fixed(application, batch)
        most = batch // application.least_per_gpu
        rates = np.array([fixed.rate(packed(min(gpus, most))) for gpus in (low, high)])
        return float(fixed.work / (_between(rates, whole) * share / whole))
    adaptive = Adaptive(application)
    seconds = 0.0
    for begin, end in itertools.pairwise(ends):
        rates = np.array([adaptive.best_rate(packed(gpus), begin) for gpus in (low, high)])
        seconds += (end - begin) / float(_between(rates, whole) * share / whole)
    return seconds


def _between(rates: np.ndarray[tuple[int], np.dtype[np.float64]], gpus: float) -> float:
    part = gpus - math.floor(gpus)
    return float(rates[0] + part * (rates[1] - rates[0]))
