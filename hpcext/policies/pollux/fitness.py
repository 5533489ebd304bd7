"""The terms of Pollux's fitness: the gain of a job by its GPUs (section 4.2)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcext.core.values import Job, Snapshot, total
from hpcext.policies.placement.candidates import Candidate, On, Values, speeds
from hpcext.policies.placement.place import Shape
from hpcext.scaling.estimator import GpuCounts


def allowed(asks: Sequence[Candidate], times: int = 2, *, node: bool = False) -> list[Candidate]:
    """Limit jobs to the sizes that their largest one so far allows (section 4.1, exploration).

    A job starts with its smallest size, or with all sizes that fit on one node.

    Parameters
    ----------
    asks : sequence of Candidate
    times : int
        Multiple of the GPUs that a job ever had up to which its sizes are allowed.
    node : bool
        Whether a job may start with all that it can have on one node.
    """
    found = []
    for ask in asks:
        begin = next(iter(ask.shapes))
        if node:
            begin = max((size for size in ask.shapes if ask.shapes[size].nodes == 1), default=begin)
        most = max(begin, times * ask.job.most_gpus)
        if ask.job.estimate.stated or most >= max(ask.shapes):
            found.append(ask)
            continue
        by_kind = {kind: _within(shapes, most) for kind, shapes in ask.by_kind.items()}
        by_kind = {kind: shapes for kind, shapes in by_kind.items() if shapes}
        found.append(ask._replace(shapes=_within(ask.shapes, most), by_kind=by_kind))
    return found


def _within(shapes: Mapping[int, Shape], most: int) -> dict[int, Shape]:
    return {size: shape for size, shape in shapes.items() if size <= most}


class SharedCluster(NamedTuple):
    """The machine from which fair shares are computed.

    Attributes
    ----------
    jobs : int
        Number of jobs that share it.
    gpus : Mapping[str, int]
        Number of GPUs by kind.
    widest : int
        GPUs of the largest node.
    """

    jobs: int
    gpus: Mapping[str, int]
    widest: int

    @classmethod
    def of(cls, now: Snapshot) -> SharedCluster:
        """Return the machine of a snapshot."""
        gpus: Counter[str] = Counter()
        for node in now.nodes.values():
            gpus[node.kind] += node.gpus
        widest = max(node.gpus for node in now.nodes.values())
        return cls(sum(job.ready for job in now.jobs), gpus, widest)


def speedups(
    job: Job, sizes: GpuCounts, machine: SharedCluster, kind: str, most: float | None = None
) -> Values:
    """Return speed-ups over a fair share of the machine (eq. 15).

    The fair share is an exclusive part of the machine, but no more than the job can use: `most`, or
    the largest of the sizes. With several kinds of GPU, the speed on it is the mean over all GPUs
    of the speed as if all were of that one's kind.

    Parameters
    ----------
    job : Job
    sizes : GpuCounts
    machine : SharedCluster
    kind : str
        Kind of the GPUs.
    most : float, optional
        Largest number of GPUs that the job can use.
    """
    every = sum(machine.gpus.values())
    share = min(every / machine.jobs, float(sizes.gpus[-1] if most is None else most))
    # A fraction of a GPU has that fraction of the speed of a whole one.
    whole = max(1.0, share)
    nodes = math.ceil(whole / machine.widest)
    asked = GpuCounts(np.append(sizes.gpus, whole), np.append(sizes.nodes, nodes))
    found = speeds(job, asked, kind)
    fair = 0.0
    for other, gpus in machine.gpus.items():
        there = found if other == kind else speeds(job, asked, other)
        fair += float(there[-1]) * gpus / every
    fair *= share / whole
    if not (0 < fair < math.inf and np.isfinite(found).all()):
        # Without a fair share, or with invalid reports, all sizes are equally good.
        return np.ones(len(sizes.gpus))
    return found[:-1] / fair


def realloc(job: Job, sizes: GpuCounts, now_s: float, delay_s: float, on: On) -> Values:
    """Return ``REALLOC_FACTOR``: the part of its speed-up that a job keeps if it is re-allocated.

    It follows from its age and the number of its re-allocations, assuming that these continue at
    the same rate.

    Parameters
    ----------
    job : Job
    sizes : GpuCounts
    now_s : float
    delay_s : float
        Seconds that a re-allocation costs a job whose own cost is not known.
    on : On
    """
    if not job.goal:
        return np.ones(len(sizes.gpus))
    delay_s = cost_s(job, delay_s)
    age_s = max(now_s - job.submitted_s, 0.0)
    factor = max(0.0, age_s - job.moves * delay_s) / (age_s + delay_s) if delay_s else 1.0
    return changed(job, sizes, on, factor)


def cost_s(job: Job, delay_s: float) -> float:
    """Return the seconds that a change of GPUs costs a job; `delay_s` if that is unknown.

    Parameters
    ----------
    job : Job
    delay_s : float
        In seconds.
    """
    known = job.estimate
    return max((each for each in (known.up_s, known.down_s) if each is not None), default=delay_s)


def changed(job: Job, sizes: GpuCounts, on: On, factor: float) -> Values:
    """Return an array with the factor for all sizes but the present one, which has 1.

    Parameters
    ----------
    job : Job
    sizes : GpuCounts
    on : On
        Kind of the GPUs, and of the present ones.
    factor : float
        Such as ``REALLOC_FACTOR``.
    """
    return np.where((sizes.gpus == total(job.goal)) & (on.kind == on.has), 1.0, factor)


def floor(
    asks: Sequence[Candidate], found: Sequence[Values], kind: str, gpus: int, p: float
) -> float:
    """Return the lower limit of a speed-up, which also stands for that of a job without GPUs.

    If all jobs can have a speed-up of t at once, the best mean is at least t, so that each of J
    jobs contributes J^(1/p) t or more to it: a smaller speed-up is as bad as none. It is raised to
    this limit, because its powers would leave no digits for the others. If not all jobs can run at
    once, t is the smallest speed-up. For p = 0, a product, the limit depends on the largest
    speed-up too. It is 0 if no job can have a GPU.

    Parameters
    ----------
    asks : sequence of Candidate
    found : sequence of array of float
        Speed-ups of each candidate on its sizes.
    kind : str
        Kind of the GPUs.
    gpus : int
        Number of GPUs of this kind.
    p : float
        Power of the mean.
    """
    if p > 0:
        return 0.0
    width = max(len(each) for each in found)
    speedup = np.full((len(found), width), -math.inf)
    sizes = np.zeros((len(found), width), dtype=np.int64)
    for row, (ask, each) in enumerate(zip(asks, found, strict=True)):
        speedup[row, : len(each)], sizes[row, : len(each)] = each, ask.sizes_on(kind).gpus
    levels = np.unique(speedup[speedup > 0])
    if not len(levels):
        return 0.0
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) // 2
        enough = speedup >= levels[middle]
        fewest = np.where(enough, sizes, gpus + 1).min(axis=1)
        low, high = (middle + 1, high) if fewest.sum() <= gpus else (low, middle)
    reached = float(levels[max(low - 1, 0)])
    weights = [ask.job.weight for ask in asks]
    # Twice, so that a job without GPUs is worse than any speed-up of the best allocation.
    jobs = 2 * sum(weights) / min(weights)
    if p == 0:
        # A factor of a product whose others are at most the highest level; positive, for its log.
        return float(max(1e-300, reached / 2 * (reached / levels[-1]) ** jobs))
    # For p just below 0 it would be no number that is above 0.
    return float(max(1e-300, reached * jobs ** (1 / p)))


def power(speedup: Values, p: float) -> Values:
    """Return a job's term in eq. 14, whose sum is largest where the mean is.

    Parameters
    ----------
    speedup : array of float
        Positive.
    p : float
        Power of the mean; 0 for the geometric one.
    """
    if p == 0:
        return np.log(speedup)
    found: Values = np.sign(p) * speedup**p
    return found


def mean(value: float, p: float) -> float:
    """Return eq. 14, given the mean of such terms.

    Parameters
    ----------
    value : float
        The mean of the terms.
    p : float
        Power of the mean; 0 for the geometric one.
    """
    return math.exp(value) if p == 0 else abs(value) ** (1 / p)
