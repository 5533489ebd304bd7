"""BFTrainer with holes that end: the division with the most work until its nodes leave.

BFTrainer (Liu et al., Eq. 16) looks ahead by one time, ``T_fwd``, in which no event is expected.
Here each node has an expected stay (:mod:`hpcext.policies.bftrainer.holes`), and the value of a
job on some nodes is the work that it is expected to do in ``T_fwd`` and in the time that a change
costs: its speed on the nodes that are still there, while it does not stall, first for the change
and then for nodes that leave. The cost of known later stalls is subtracted. So nodes are no longer
interchangeable: the number of *classes* of a job's nodes matters, since each class that leaves
stalls it, and so does its size at that time.

The algorithm, at every event:

1. *What is a node worth?* Each job has a table of its value by the number of its GPUs, the
   longest-lasting first: its own, then free ones, then those that others would give up. The exact
   division of these tables (:mod:`hpcext.policies.solve.apportion`) gives the price of a GPU.
2. *Which job gets which node?* At this price, each job bids for a number of the free GPUs, up to
   its part of the division: of its own classes first, then those with the longest stay for the cost
   of their departure. The job with the largest gain is served, and the others bid again. Remaining
   GPUs go to any job that gains by them.
3. *Which job gives some up?* Where the division of step 1 takes GPUs from some jobs, the
   shortest-lived ones, step 2 is repeated with these GPUs free. The result is taken if it is
   distinctly better.
No allocation is worth more than the exact division of tables in which every job has the best of
all nodes, without a stall for nodes that leave: the `bound`.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np

from hpcext.core.values import Alloc, Snapshot, Target
from hpcext.policies.bftrainer import changes_s, gain, objective_of
from hpcext.policies.bftrainer.expected import Demand, Expected, Holding
from hpcext.policies.bftrainer.holes import Floats, Horizon, Ints, holes
from hpcext.policies.bftrainer.pool import Pool, PoolPart
from hpcext.policies.placement.candidates import Candidate, Gpus
from hpcext.policies.placement.divide import Parallel, Plan, best, front, settle
from hpcext.policies.solve.apportion import Division, apportion, bound

WORTHWHILE = 0.05
"""Relative gain of all jobs that justifies taking GPUs from one for another: both stall at once for
the sake of an estimate, whereas free GPUs cost no job anything."""

ALIKE = 0.1
"""Relative difference of gains within which jobs may be served in any order: otherwise all would
bid again after each one that is served."""


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    objective : str
        The objective, as in :class:`hpcext.policies.bftrainer.Options`.
    forward_s : float
        ``T_fwd``: the time ahead in which work counts, beyond that of the most costly change.
    parallel : int or None
        Largest number of jobs that run at once, the first of the queue: ``Pjmax``.
    """

    objective: str = "efficiency"
    forward_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 120.0
    parallel: Parallel | None = None

    def __post_init__(self) -> None:
        objective_of(self.objective)


def allocate(now: Snapshot, options: Options) -> Target:
    """Give each job the nodes on which all jobs together are expected to do the most work."""
    now = now if options.parallel is None else front(now, options.parallel)
    return settle(now, functools.partial(_decide, now, options), fill=False)


def _decide(now: Snapshot, options: Options, asks: Sequence[Candidate], gpus: Gpus) -> Plan:
    if len(gpus) > 1:
        return _without_lifetimes(now, options, asks, gpus)
    expected = Expected(now, asks, objective_of(options.objective), options.forward_s)
    values, most = expected.values(expected.free), sum(gpus.values())
    priced = values
    if (expected.lasting < expected.free).any():
        priced = expected.values(expected.lasting)
        values = np.maximum(values, priced)
    lasting = int(expected.has.sum() + expected.lasting.sum())
    division = apportion(expected.tables(priced), lasting)
    deal = _Distribution(expected, values, expected.has)
    deal.serve(division)
    fewer = np.minimum(expected.has, division.counts)
    enough = (1.0 + WORTHWHILE) * deal.value
    # In the division each job has the best free nodes, so no distribution is worth much more.
    if division.value > enough and (fewer < expected.has).any():
        other = _Distribution(expected, values, fewer)
        other.serve(division)
        deal = other if other.value > enough else deal
    limit = bound(expected.tables(expected.bounds(values)), most)
    return Plan(deal.counts(), deal.worth, limit, likes=deal.likes(asks), placed=deal.placed)


class _Distribution:
    """A distribution of free GPUs to jobs, each of which keeps some of its own.

    Parameters
    ----------
    expected : Expected
    values : array of float, shape (m,)
        Value of each size of each job if that job alone could choose.
    kept : array of int, shape (j,)
        Number of GPUs that each job keeps at first, its longest-lasting ones.
    """

    def __init__(self, expected: Expected, values: Floats, kept: Ints) -> None:
        self._expected, self._values = expected, values
        free = expected.free.copy()
        self._has: list[Holding] = []
        alive, calm = expected.parts(kept)
        worth = values[expected.curves.below(kept)].tolist()
        each = zip(expected.own, kept.tolist(), alive.T, calm.T, worth, strict=True)
        for classes, gpus, *part, value in each:
            mine, rest = _split(classes, gpus)
            for at, other in rest.items():
                free[at] += other
            self._has.append(Holding(mine, gpus, PoolPart(*part), value))
        self._pool = Pool(expected.holes, expected.order, free)

    @property
    def value(self) -> float:
        """The sum of the values of all jobs."""
        return math.fsum(has.value for has in self._has)

    def counts(self) -> list[int]:
        """Return the number of GPUs that each job will have, one of its sizes."""
        gpus = np.array([has.gpus for has in self._has])
        sizes: list[int] = self._expected.curves.sizes[self._expected.curves.below(gpus)].tolist()
        return sizes

    def serve(self, division: Division) -> None:
        """Give jobs up to their part of the division, the largest gain first, then what is left."""
        most = np.maximum(np.array(division.counts), [has.gpus for has in self._has])
        for price, limits in ((division.price, most), (0.0, self._expected.curves.most)):
            if self._pool.left:
                self._serve(price, limits)

    def _serve(self, price: float, limits: Ints) -> None:
        upper_gains = self._expected.upper_gains(self._has, self._pool, price, limits)
        queue = [(-upper_gains[job], job) for job in np.flatnonzero(upper_gains > 0).tolist()]
        heapq.heapify(queue)
        while queue and self._pool.left:
            _, job = heapq.heappop(queue)
            # Other jobs have been served since it answered.
            most = int(limits[job])
            answer = self._expected.answer(job, self._has[job], self._pool, price, most)
            if answer.surplus <= 0:
                continue
            if queue and answer.surplus < (1.0 - ALIKE) * -queue[0][0]:
                heapq.heappush(queue, (-answer.surplus, job))
            else:
                self._give(job, answer)

    def _give(self, job: int, answer: Demand) -> None:
        has = self._has[job]
        classes = self._pool.take(answer.more, has.classes)
        gpus = has.gpus + answer.more
        self._has[job] = Holding(classes, gpus, answer.part, answer.value, changed=True)

    def worth(self, job: int, _: str | None) -> Mapping[int, float]:
        """Return the approximate value of a job by its size; it is exact for its own part."""
        curves = self._expected.curves
        begin, end = curves.starts[job : job + 2]
        sizes = curves.each[job].tolist()
        found = dict(zip(sizes, self._values[begin:end].tolist(), strict=True))
        has = self._has[job]
        found[max(size for size in sizes if size <= has.gpus)] = has.value
        return found

    def placed(self, job: int, alloc: Alloc) -> float:
        """Return the value of an allocation to a job; for its own part it is known."""
        has = self._has[job]
        goal = self._expected.asks[job].job.goal or {}
        if alloc == goal:
            known = not has.changed and self._expected.own[job] == has.classes
        else:
            # New nodes stall it, also those of its own classes.
            new = has.changed and not alloc.keys() <= goal.keys()
            known = new and self._expected.classes(alloc) == has.classes
        return has.value if known else self._expected.of(job, alloc)

    def likes(self, asks: Sequence[Candidate]) -> list[list[str]]:
        """List the nodes that each job will have, its own first, by the counts of each class."""
        expected = self._expected
        of, there = expected.holes.of, dict(expected.there)
        wants = [dict(has.classes) for has in self._has]
        found: list[list[str]] = []
        for ask, classes in zip(asks, wants, strict=True):
            # By class, in the order in which the job keeps them.
            mine: dict[int, list[str]] = {at: [] for at in classes}
            for node, gpus in (ask.job.goal or {}).items():
                if classes.get(of[node], 0) >= gpus:
                    classes[of[node]] -= gpus
                    mine[of[node]].append(node)
                else:
                    there[node] += gpus
            found.append([node for each in mine.values() for node in each])
        pools: dict[int, list[str]] = {}
        for node, gpus in reversed(there.items()):
            if gpus:
                pools.setdefault(of[node], []).append(node)
        for liked, classes in zip(found, wants, strict=True):
            for at, gpus in classes.items():
                liked.extend(_taken(pools.get(at, []), there, gpus))
        return found


def _split(classes: Mapping[int, int], count: int) -> tuple[dict[int, int], dict[int, int]]:
    """Split off `count` GPUs of the first classes; return them and the others."""
    mine, rest = dict[int, int](), dict[int, int]()
    if sum(classes.values()) == count:
        return dict(classes), rest
    for at, gpus in classes.items():
        kept = min(gpus, count)
        count -= kept
        if kept:
            mine[at] = kept
        if gpus > kept:
            rest[at] = gpus - kept
    return mine, rest


def _taken(pool: list[str], there: dict[str, int], gpus: int) -> list[str]:
    """Take nodes with `gpus` free GPUs together from a pool."""
    found = []
    while gpus > 0 and pool:
        node = pool[-1]
        some = min(gpus, there[node])
        there[node] -= some
        gpus -= some
        found.append(node)
        if not there[node]:
            pool.pop()
    return found


def _without_lifetimes(
    now: Snapshot, options: Options, asks: Sequence[Candidate], gpus: Gpus
) -> Plan:
    """Divide several kinds of GPUs as BFTrainer does, without lifetimes.

    Each job then prefers the longest-lasting nodes.
    """
    objective = objective_of(options.objective)
    plan = best(functools.partial(gain, objective, options.forward_s), asks, gpus)
    downs_s = [changes_s(ask.job)[1] for ask in asks]
    span = Horizon.of(options.forward_s)
    found = holes(now.nodes, now.fragments, now.now_s, span, max(downs_s))
    stays = found.stays @ span.pieces_s
    longest = sorted(now.nodes, key=lambda node: -stays[found.of[node]])
    return plan._replace(likes=[longest] * len(asks))
