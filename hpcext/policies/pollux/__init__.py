"""Pollux: a fair and fast division by goodput (Qiao et al., section 4.2).

It maximises the power mean of the jobs' speed-ups (eq. 14), each relative to its fair share of the
machine (eq. 15). A change of allocation costs ``REALLOC_FACTOR``; no two jobs that each run on
several nodes share one; a job begins with its smallest size and is given at most twice the GPUs
that it ever had, unless its speeds are stated.

The paper searches allocation matrices at random (:mod:`hpcext.policies.pollux.genetic`, with
``search=genetic``). The mean is monotone in a sum over jobs of functions of what each gets, so its
largest value over counts is found exactly here (:mod:`hpcext.policies.solve.apportion`), and the
jobs are placed afterwards.

A job that reports no goodput (:mod:`hpcext.scaling.estimator`) has statistical efficiency 1, like
non-adaptive jobs in the paper. With ``objective=jct`` some rules differ
(:mod:`hpcext.policies.pollux.jct`), for shorter completion times.

A choice that the paper leaves open: for p < 0 the mean is 0 if one job gets nothing, whatever the
others get. Here such a job counts as so slow that no gain of the others outweighs it, so that as
many jobs run as possible.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from hpcext.core.values import Job, Snapshot, Target
from hpcext.policies.periodic import periodic
from hpcext.policies.placement.candidates import Candidate, Gpus, On, Values
from hpcext.policies.placement.divide import Plan, best, settle
from hpcext.policies.pollux.fitness import (
    SharedCluster,
    allowed,
    floor,
    mean,
    power,
    realloc,
    speedups,
)
from hpcext.policies.pollux.jct import explored, lasting, newest
from hpcext.policies.pollux.refill import refilled
from hpcext.policies.pollux.search import searched
from hpcext.policies.total_time import Interval
from hpcext.scaling.estimator import GpuCounts

PRICES = 12
"""Largest number of prices to try if jobs on several nodes want more nodes than there are."""


NEGLIGIBLE = 1e-9
"""Smallest power of a mean that is not counted as 0."""


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    p : float or None
        Power of the mean, the fairness knob; 1: the most goodput; the lower, the fairer. None: -1,
        as in the paper, or 0 with `jct`.
    interval_s : float
        The scheduling interval in seconds (section 5.1).
    delay_s : float
        Seconds that a re-allocation costs a job whose own cost is not known.
    search : {"exact", "genetic"}
    apart : bool
        Whether two jobs on several nodes may not share one (section 4.2, interference avoidance).
        The genetic search always keeps them apart.
    seed : int
        Seed of the genetic search.
    objective : {"fitness", "jct"}
        The paper's rules, or those of :mod:`hpcext.policies.pollux.jct`.
    """

    p: Annotated[float, msgspec.Meta(ge=-10, le=1)] | None = None
    interval_s: Interval = 60.0
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 30.0
    search: Literal["exact", "genetic"] = "exact"
    apart: bool = True
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    objective: Literal["fitness", "jct"] = "fitness"

    def __post_init__(self) -> None:
        if self.jct and self.search == "genetic":
            raise ValueError("objective=jct needs search=exact; the paper's search has its own")

    @property
    def jct(self) -> bool:
        """Whether short completion times are the aim, instead of the paper's fitness."""
        return self.objective == "jct"

    @property
    def power(self) -> float:
        """The power of the mean."""
        if self.p is not None:
            # Powers nearer to 0 than this are 1 but for rounding.
            return self.p if abs(self.p) >= NEGLIGIBLE else 0.0
        return 0.0 if self.jct else -1.0


def allocate(now: Snapshot, options: Options) -> Target:
    """Give each job its part of the division with the largest mean speed-up."""
    return periodic(now, options.interval_s, functools.partial(_allocate, options=options))


def _allocate(now: Snapshot, options: Options) -> Target:
    if options.search == "genetic":
        return searched(now, options.power, options.delay_s, options.seed)
    if options.jct:
        now = newest(now)
    asked: list[tuple[Sequence[Candidate], Sequence[Plan]]] = []

    def decide(asks: Sequence[Candidate], gpus: Gpus) -> Sequence[Plan]:
        asked.append((asks, plans := _exact(now, options, asks, gpus)))
        return plans

    target = settle(now, decide, apart=options.apart, fill=False)
    for asks, plans in asked:
        target = refilled(now, target, asks, plans[0], apart=options.apart)
    weight = sum(ask.job.weight for asks, _ in asked for ask in asks)
    if target.value is None or target.bound is None:
        return target
    value, bound = (mean(each / weight, options.power) for each in (target.value, target.bound))
    return replace(target, value=value, bound=bound)


def _exact(
    now: Snapshot, options: Options, asks: Sequence[Candidate], gpus: Gpus
) -> Sequence[Plan]:
    """Yield the counts with the largest mean, and others if these use too many nodes.

    No two jobs on several nodes share one, so together these have no more nodes than there are.
    Counts do not express that: a price for each such node ensures it (Lagrangian relaxation).
    """
    each, machine = explored(asks) if options.jct else allowed(asks), SharedCluster.of(now)
    p, left = options.power, lasting if options.jct else realloc
    changed: dict[str, list[Values]] = {}
    for kind in gpus:
        asked = [(ask.job, ask.sizes_on(kind), On(kind, ask.has)) for ask in each]
        changed[kind] = [
            speedups(job, sizes, machine, kind) * left(job, sizes, now.now_s, options.delay_s, on)
            for job, sizes, on in asked
        ]
    # A level that all jobs can reach at once on one kind, they can reach on all kinds together.
    lowest = max(floor(each, changed[kind], kind, gpus[kind], p) for kind in gpus)
    if p <= 0 and not lowest:
        lowest = 1.0
    values = {
        (ask.job.id, kind): ask.job.weight * power(np.maximum(lowest, speedup), p)
        for kind, found in changed.items()
        for ask, speedup in zip(each, found, strict=True)
    }
    first = best(functools.partial(_priced, values, 0.0), each, gpus)
    plans = [first]
    if not options.apart:
        return plans
    low, high = 0.0, math.inf
    price = max(float(np.ptp(value)) for value in values.values()) / len(now.nodes)
    while len(plans) <= PRICES and (high < math.inf or _nodes(each, plans[-1]) > len(now.nodes)):
        priced = best(functools.partial(_priced, values, price), each, gpus)
        plans.append(priced._replace(worth=first.worth, bound=first.bound))
        if _nodes(each, priced) > len(now.nodes):
            low = price
        else:
            high = price
        price = 2 * low if high == math.inf else (low + high) / 2
    return plans


def _priced(
    values: Mapping[tuple[str, str], Values], price: float, job: Job, sizes: GpuCounts, on: On
) -> Values:
    """Return the values of sizes, less a price for each node of sizes on several nodes."""
    if not price:
        return values[job.id, on.kind]
    return values[job.id, on.kind] - price * np.where(sizes.nodes > 1, sizes.nodes, 0)


def _nodes(asks: Sequence[Candidate], plan: Plan) -> int:
    """Return the number of nodes that the jobs on several nodes have together."""
    shapes = [
        ask.on(plan.kind(number))[count]
        for number, (ask, count) in enumerate(zip(asks, plan.counts, strict=True))
        if count
    ]
    return sum(shape.nodes for shape in shapes if shape.nodes > 1)
