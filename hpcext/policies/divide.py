"""From how many GPUs each job is to get to a target: who may change, the shapes, the places."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, Target, per_node, total
from hpcext.policies.apportion import Table, apportion
from hpcext.policies.common import ONE_NODE, fixed, keep, largest, named
from hpcext.policies.place import Shape, Wish, place
from hpcext.scaling.estimator import Sizes, speedups

Counts = NDArray[np.int64]
Values = NDArray[np.float64]

Worth = Callable[[Job, Sizes], Values]
"""What each of several sizes, the first one 0, is worth to a job."""


class Ask(NamedTuple):
    """A job that may be given something: it has one shape at least.

    Attributes
    ----------
    job : Job
    shapes : Mapping[int, Shape]
        What it may have: GPUs in all → how they are spread; ascending.
    """

    job: Job
    shapes: Mapping[int, Shape]

    @property
    def sizes(self) -> Sizes:
        """Nothing, and what it may have."""
        nodes = [0, *(shape.nodes for shape in self.shapes.values())]
        return Sizes(np.array([0, *self.shapes], dtype=np.int64), np.array(nodes, dtype=np.int64))


class Plan(NamedTuple):
    """How many GPUs each of the asking jobs is to have.

    Attributes
    ----------
    counts : sequence of int
        0, or one of a job's sizes.
    worth : callable or None
        By the number of the job: how much each of its sizes, 0 first, is worth. Where nodes have no
        room for what it is to have it gets the best that has a place; the largest, without this.
        What the answer is worth is the sum of these.
    bound : float or None
        No division is worth more.
    """

    counts: Sequence[int]
    worth: Callable[[int], Mapping[int, float]] | None = None
    bound: float | None = None


Decide = Callable[[Sequence[Ask], int], "Plan | Sequence[Plan]"]
"""Jobs, and the GPUs that they may have together → what each is to have. Of several plans, all with
the same `worth`, the one is taken that is worth most when it has been placed."""


def settle(
    now: Snapshot,
    decide: Decide,
    *,
    apart: bool = False,
    reserved: Alloc | None = None,
) -> Target:
    """Let jobs whose size may be changed now have what is decided, as far as nodes have room.

    Parameters
    ----------
    now : Snapshot
    decide : Decide
    apart : bool
        No node is shared by two jobs that each have several (Pollux, section 4.2).
    reserved : Mapping[str, int] or None
        GPUs on each node that nobody is to have.
    """
    kept = keep(now)
    grants = {job.id: kept[job.id] for job in now.jobs if job.id in kept and fixed(job)}
    free = {name: node.gpus for name, node in now.nodes.items()}
    for grant in grants.values():
        for node, gpus in grant.alloc.items():
            free[node] -= gpus
    for node, gpus in (reserved or {}).items():
        free[node] = max(0, free[node] - gpus)
    taken = {node for grant in grants.values() if len(grant.alloc) > 1 for node in grant.alloc}
    asks = [Ask(job, shapes_of(job, now)) for job in now.jobs if job.ready and job.id not in grants]
    waits = {ask.job.id: "the GPUs are worth more to other jobs" for ask in asks}
    asks = [ask for ask in asks if ask.shapes]
    if not asks:
        return Target(grants, waits)
    plans = decide(asks, sum(free.values()))
    shared = taken if apart else None
    tried = [placed for plan in _several(plans) for placed in _both_ways(plan, asks, free, shared)]
    # Of those that are worth as much the first.
    plan, places, value = max(tried, key=lambda each: each.value)
    for number, alloc in places.items():
        job = asks[number].job
        grants[job.id] = granted(job, alloc, plan.counts[number], now)
    waits = {job: why for job, why in waits.items() if job not in grants}
    return Target(grants, waits, value=value if plan.worth else None, bound=plan.bound)


class _Placed(NamedTuple):
    """A plan, where each job that gets something is, and what all jobs are worth with that."""

    plan: Plan
    places: Mapping[int, Alloc]
    value: float


def _both_ways(
    plan: Plan, asks: Sequence[Ask], free: Mapping[str, int], apart: Collection[str] | None
) -> Iterator[_Placed]:
    """Where jobs change their size on the nodes that they have; and, if not all have room there,
    where all that change are placed anew, since these pay for a change anyway."""
    first = _placed(plan, asks, free, apart, anew=False)
    yield first
    given = {number: total(alloc) for number, alloc in first.places.items()}
    if any(given.get(number, 0) != count for number, count in enumerate(plan.counts)):
        yield _placed(plan, asks, free, apart, anew=True)


def _placed(
    plan: Plan,
    asks: Sequence[Ask],
    free: Mapping[str, int],
    apart: Collection[str] | None,
    *,
    anew: bool,
) -> _Placed:
    chosen = [number for number, count in enumerate(plan.counts) if count]
    wishes = []
    for number in chosen:
        job, shapes = asks[number]
        shape = shapes[plan.counts[number]]
        less = functools.partial(_less, asks[number], plan, number)
        keeps = not anew or total(job.goal) == shape.total
        wishes.append(Wish(shape, less, (job.goal or {}) if keeps else {}))
    found = zip(chosen, place(free, wishes, apart=apart), strict=True)
    places = {number: alloc for number, alloc in found if alloc}
    if plan.worth is None:
        return _Placed(plan, places, 0.0)
    each = []
    for number in range(len(asks)):
        worth = plan.worth(number)
        each.append(worth.get(total(places.get(number)), worth[0]))
    return _Placed(plan, places, math.fsum(each))


def _several(plans: Plan | Sequence[Plan]) -> Sequence[Plan]:
    return [plans] if isinstance(plans, Plan) else plans


def divide(now: Snapshot, worth: Worth, *, apart: bool = False) -> Target:
    """Give GPUs to jobs so that the sum of what they are worth is largest.

    Counts are the best (:mod:`hpcext.policies.apportion`); where nodes have no room for one
    (:mod:`hpcext.policies.place`) its job gets less. Jobs whose size cannot be changed now keep it.
    """
    return settle(now, functools.partial(best, worth), apart=apart)


class Solved(Protocol):
    """How many units each of several tables gets, and more than which no division is worth."""

    @property
    def counts(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def bound(self) -> float: ...  # noqa: D102


Solve = Callable[[Sequence[Table], int], Solved]


def best(worth: Worth, asks: Sequence[Ask], gpus: int, solve: Solve = apportion) -> Plan:
    """The division that is worth most."""
    tables = [_table(worth, ask) for ask in asks]
    division = solve(tables, gpus)
    return Plan(division.counts, _each(tables), division.bound)


def valued(worth: Worth, asks: Sequence[Ask], counts: Sequence[int]) -> Plan:
    """A division that was made in another way, and what it is worth."""
    return Plan(counts, _each([_table(worth, ask) for ask in asks]))


def _table(worth: Worth, ask: Ask) -> Table:
    sizes = ask.sizes
    return Table(sizes.gpus, worth(ask.job, sizes))


def _each(tables: Sequence[Table]) -> Callable[[int], Mapping[int, float]]:
    """By the number of a job: size → value."""

    @functools.cache
    def values(number: int) -> Mapping[int, float]:
        sizes, values = tables[number]
        return dict(zip(sizes.tolist(), values.tolist(), strict=True))

    return values


def speeds(job: Job, sizes: Sizes) -> Values:
    """How many times as fast as on one GPU a job is.

    Of a job of which nothing is known it is believed that more GPUs help up to its best size.
    """
    known = speedups(job.estimate, sizes)
    if known is not None:
        return known
    most = job.optimal * (job.nodes or ONE_NODE)[1]
    return np.asarray(np.minimum(sizes.gpus, most), dtype=np.float64)


def shapes_of(job: Job, now: Snapshot) -> Mapping[int, Shape]:
    """What a job may have on these nodes."""
    widest = max((node.gpus for node in now.nodes.values()), default=0)
    fewest, most = job.nodes or ONE_NODE
    return _shapes(job.sizes, fewest, min(most, len(now.nodes)), widest)


@functools.lru_cache(maxsize=1024)
def _shapes(sizes: tuple[int, ...], fewest: int, most: int, widest: int) -> Mapping[int, Shape]:
    """By their totals, ascending; of those with one total, that on the fewest nodes."""
    found: dict[int, Shape] = {}
    for nodes in range(fewest, most + 1):
        for gpus in sizes:
            if gpus <= widest:
                found.setdefault(gpus * nodes, Shape(gpus, nodes))
    return dict(sorted(found.items()))


def _less(ask: Ask, plan: Plan, number: int) -> list[Shape]:
    """Smaller shapes, the best first; those that are worth no more than nothing are left out."""
    smaller = [size for size in ask.shapes if size < plan.counts[number]]
    if plan.worth is None:
        return [ask.shapes[size] for size in reversed(smaller)]
    worth = plan.worth(number)
    better = [size for size in smaller if worth[size] > worth[0]]
    return [ask.shapes[size] for size in sorted(better, key=worth.__getitem__, reverse=True)]


def granted(job: Job, alloc: Alloc, count: int, now: Snapshot) -> Grant:
    """What a job is told of what it gets, where it was to have so many."""
    best_ = max(largest(job, min(job.optimal, now.nodes[node].gpus)) for node in alloc)
    role = Role.PRIMARY if per_node(alloc) >= best_ else Role.SECONDARY
    has = total(alloc)
    why = f"runs on {named(has)}, its part of the division"
    if has < count:
        why = f"runs on {named(has)} of {count}: no node has room for more"
    return Grant(alloc, role, why)
