"""The least total time: the objective of Capes et al. (section 4.1), optimised exactly.

It minimises the sum over jobs of the remaining time ``t_j = Q_j / f(w_j)``. The doubling heuristic
(:mod:`hpcext.policies.doubling`) and the greedy of Optimus (:mod:`hpcext.policies.optimus`) solve
the same problem approximately; all three share this module's estimates of each job.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import Annotated

import msgspec
import numpy as np

from hpcext.core.values import Job, Snapshot, Target, total
from hpcext.policies.bftrainer import changes_s
from hpcext.policies.periodic import periodic
from hpcext.policies.placement import divide
from hpcext.policies.placement.candidates import Candidate, Gpus, On, Values, speeds
from hpcext.policies.placement.divide import Plan
from hpcext.scaling.estimator import GpuCounts, alone_s, speedups

UNKNOWN_S = 3600.0
"""Assumed least remaining time, in seconds on one GPU, of a job without progress and work."""

Interval = Annotated[float, msgspec.Meta(ge=1, le=1e6)]


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    interval_s : float
        The scheduling interval: without an event, seconds until the next decision.
    """

    interval_s: Interval = 60.0


def allocate(now: Snapshot, options: Options) -> Target:
    """Give each job its part of the division with the least total time."""
    return periodic(now, options.interval_s, functools.partial(divide.settle, decide=least))


def least(asks: Sequence[Candidate], gpus: Gpus) -> Plan:
    """Return the division with the least total time.

    The paper gives each job at least one worker. With more jobs than that allows, waiting costs
    more than all else: as many jobs run as possible, and the longest ones wait. A running job pays
    for a change of size with the seconds that it is known to take.
    """
    return divide.best(worth(asks, gpus), asks, gpus)


def worth(asks: Sequence[Candidate], kinds: Collection[str]) -> divide.Worth:
    """Return the values of sizes: minus the remaining seconds of the job.

    Parameters
    ----------
    asks : sequence of Candidate
    kinds : collection of str
        Kinds of the GPUs.
    """
    times = {
        (ask.job.id, kind): time_left_s(ask.job, ask.sizes_on(kind), kind)
        for ask in asks
        for kind in kinds
    }
    longest: dict[str, float] = {}
    for (job, _), each in times.items():
        longest[job] = max(longest.get(job, 0.0), float(each[1:].max(initial=0.0)))
    waits = 2.0 * sum(longest.values(), 1.0)

    def of(job: Job, sizes: GpuCounts, on: On) -> Values:
        found = -(times[job.id, on.kind] + change_s(job, sizes, on))
        found[0] = -waits
        return found

    return of


def time_left_s(job: Job, sizes: GpuCounts, kind: str) -> Values:
    """Return ``t_j`` on each size, times the job's weight; infinite on size 0.

    Parameters
    ----------
    job : Job
    sizes : GpuCounts
    kind : str
        Kind of the GPUs; empty if all are alike.
    """
    known = speedups(job.estimate, sizes, kind, ring=True)
    if known is None:
        known = speeds(job, sizes, kind)
    alone = alone_s(job.estimate, ring=True)
    if alone is None:
        alone = max(UNKNOWN_S, doubled(_spent_s(job)))
    speed = np.where(known > 0, known, 1.0)
    return np.where(known > 0, job.weight * alone / speed, np.inf)


def _spent_s(job: Job) -> float:
    """Return the work that the job has done so far, in seconds on one GPU.

    A job whose end is unknown is assumed to have as much left, so the older, the longer.
    """
    seen = job.estimate.observed
    if not seen:
        return 0.0
    spent_s = 0.0
    for kind in dict.fromkeys(each.kind for each in seen):
        here = [each for each in seen if each.kind == kind]
        sizes = GpuCounts(
            np.array([each.gpus for each in here]), np.array([each.nodes for each in here])
        )
        known = speedups(job.estimate, sizes, kind, ring=True)
        seconds = np.array([each.seconds for each in here])
        spent_s += 0.0 if known is None else float(known @ seconds)
    return spent_s


def doubled(service: float) -> float:
    """Return the least power of two that is not below what a job has had.

    If a policy looks at the service of jobs continuously, those with little overtake those that
    run, and are overtaken at once in turn; with each level this takes twice as long.
    """
    return 2.0 ** math.ceil(math.log2(service)) if service > 1 else 1.0


def change_s(job: Job, sizes: GpuCounts, on: On) -> Values:
    """Return the cost of a running job's change to each size, in seconds times its weight.

    Parameters
    ----------
    job : Job
    sizes : GpuCounts
    on : On
        Kind of the GPUs, and of the present ones.
    """
    has = total(job.goal)
    up_s, down_s = changes_s(job)
    if not has:
        return np.zeros(len(sizes.gpus))
    if on.kind != on.has:
        return np.full(len(sizes.gpus), max(up_s, down_s) * job.weight)
    return np.select([sizes.gpus > has, sizes.gpus < has], [up_s, down_s], 0.0) * job.weight
