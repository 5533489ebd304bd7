"""From numbers of GPUs to a target: the jobs that may change, and their nodes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, Target, per_node, total
from hpcext.policies.common import AS_ASKED, fixed, free_beside, keep, largest, named, no_room
from hpcext.policies.placement.candidates import Candidate, Counts, Gpus, On, Values, asks_of
from hpcext.policies.placement.leftover import leftover
from hpcext.policies.placement.machine import free_of, machine_of
from hpcext.policies.placement.place import PlacementRequest, Shape, place
from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.kinds import share
from hpcext.policies.solve.tables import ValueTable
from hpcext.scaling.estimator import GpuCounts
from hpcext.scaling.identity import by_identity

Parallel = Annotated[int, msgspec.Meta(ge=1)]
"""Largest number of jobs that may have GPUs."""

Worth = Callable[[Job, GpuCounts, On], Values]
"""The values of a job's sizes, the first of which is 0; the value of 0 is the same on all kinds."""


class Plan(NamedTuple):
    """The number of GPUs that each candidate will have.

    Attributes
    ----------
    counts : sequence of int
        0, or one of a job's sizes.
    worth : callable or None
        Given the index of a job and a kind of GPU (None for any), returns the value of each of its
        sizes, 0 first. A job whose count does not fit on the nodes gets the best size that does, by
        these values; without them, the largest. The value of the plan is the sum of these.
    bound : float or None
        An upper bound on the value of a division.
    kinds : sequence of str, or None
        Kind of GPU of each job; None: any, but only one for each job.
    likes : sequence of sequence of str, or None
        Nodes that each job should have, the best first, as far as they have room.
    placed : callable or None
        Given the index of a job and an allocation, returns its value, where that does not depend
        on the number of GPUs alone.
    """

    counts: Sequence[int]
    worth: Callable[[int, str | None], Mapping[int, float]] | None = None
    bound: float | None = None
    kinds: Sequence[str] | None = None
    likes: Sequence[Sequence[str]] | None = None
    placed: Callable[[int, Alloc], float] | None = None

    def kind(self, number: int) -> str | None:
        """Return the kind of GPU that a job will have; None for any."""
        return self.kinds[number] if self.kinds else None


Decide = Callable[[Sequence[Candidate], Gpus], "Plan | Sequence[Plan]"]
"""A function from the candidates, and the GPUs that they may have together, to a plan. If it
returns several plans, all with the same `worth`, the one of the largest value after placement is
used."""


def settle(
    now: Snapshot,
    decide: Decide,
    *,
    apart: bool = False,
    reserved: Alloc | None = None,
    parallel: int | None = None,
    fill: bool = True,
) -> Target:
    """Grant the decided GPUs to jobs whose size may be changed now, as far as nodes have room.

    Parameters
    ----------
    now : Snapshot
    decide : Decide
    apart : bool
        Whether two jobs that each have several nodes may not share one (Pollux, section 4.2).
    reserved : Mapping[str, int] or None
        GPUs that are kept free on each node, besides those that jobs have there now.
    parallel : int or None
        Largest number of jobs that may have GPUs: the first ready ones of the queue.
    fill : bool
        Whether jobs that were given nothing may have GPUs that are left.
    """
    now = now if parallel is None else front(now, parallel)
    kept = keep(now)
    grants = {job.id: kept[job.id] for job in now.jobs if job.id in kept and fixed(job)}
    machine = machine_of(now.nodes)
    free = free_beside(now, grants)
    if reserved:
        unused = free_beside(now, kept)
        for node, gpus in reserved.items():
            free[node] -= min(gpus, max(0, unused[node]))
    asks = asks_of(now, grants)
    worth = "the GPUs are worth more to other jobs"
    waits = {ask.job.id: worth if ask.shapes else no_room(ask.job) for ask in asks}
    asks = [ask for ask in asks if ask.shapes]
    if not asks:
        return Target(grants, waits)
    kinds = machine.kinds
    totals = free_of(kinds, free)
    plans = decide(asks, totals)
    several = (grant.alloc for grant in grants.values() if len(grant.alloc) > 1)
    shared = {node for alloc in several for node in alloc} if apart else None
    tried = [
        placed
        for plan in _several(plans)
        for placed in _placements(plan, asks, Room(free, shared, kinds))
    ]
    # Of several equally good plans, take the first.
    best_ = max(tried, key=lambda each: each.value)
    plan, places, value = _filled(best_, asks, free, kinds) if fill else best_
    for number, alloc in places.items():
        job = asks[number].job
        grants[job.id] = granted(job, alloc, plan.counts[number], now)
    waits = {job: why for job, why in waits.items() if job not in grants}
    return Target(grants, waits, value=value if plan.worth else None, bound=plan.bound)


def front(now: Snapshot, parallel: int) -> Snapshot:
    """Limit a snapshot to the first ready jobs, and jobs that cannot be changed now.

    Parameters
    ----------
    now : Snapshot
    parallel : int
        Largest number of jobs that may have GPUs.
    """
    first = tuple(itertools.islice((job for job in now.jobs if job.ready), parallel))
    if len(first) == parallel:
        others = now.jobs if now.busy is None else now.busy
        ids = {job.id for job in first}
        first += tuple(each for each in others if _stays(each) and each.id not in ids)
    return replace(now, jobs=first)


def _stays(job: Job) -> bool:
    """Return whether a job has GPUs that cannot be taken back now."""
    return bool(job.ready and job.goal and fixed(job))


class _Placed(NamedTuple):
    """A plan with the nodes of each job that gets GPUs, and the value of all jobs there."""

    plan: Plan
    places: Mapping[int, Alloc]
    value: float


class Room(NamedTuple):
    """The number of free GPUs of each node, and their kind.

    `apart` are the nodes of jobs on several nodes; None if such jobs may share nodes.
    """

    free: Mapping[str, int]
    apart: Collection[str] | None
    kinds: Mapping[str, str]


def _placements(plan: Plan, asks: Sequence[Candidate], room: Room) -> Iterator[_Placed]:
    """Yield two placements of a plan: with jobs on their present nodes, and otherwise anew.

    The second is tried if not all jobs fit in the first: in it all jobs that change are placed
    anew, because they pay for a change anyway.
    """
    first = _placed(plan, asks, room, anew=False)
    yield first
    given = {number: total(alloc) for number, alloc in first.places.items()}
    if any(given.get(number, 0) != count for number, count in enumerate(plan.counts)):
        yield _placed(plan, asks, room, anew=True)


def _placed(plan: Plan, asks: Sequence[Candidate], room: Room, *, anew: bool) -> _Placed:
    chosen = [number for number, count in enumerate(plan.counts) if count]
    requests = []
    for number in chosen:
        ask, kind = asks[number], plan.kind(number)
        shape = ask.on(kind)[plan.counts[number]]
        less = functools.partial(_less, ask, plan, number)
        keeps = not anew or total(ask.job.goal) == shape.total
        likes = plan.likes[number] if plan.likes else ()
        has = _liked(ask.job.goal or {}, likes) if keeps else {}
        requests.append(PlacementRequest(shape, less, has, kind, likes, ask.job.failed_on))
    found = zip(chosen, place(room.free, requests, apart=room.apart, kinds=room.kinds), strict=True)
    places = {number: alloc for number, alloc in found if alloc}
    if plan.worth is None:
        # As many jobs as possible, then as many GPUs.
        given = [total(alloc) for alloc in places.values()]
        return _Placed(plan, places, float(len(given) * sum(room.free.values()) + sum(given)))
    each = []
    for number in range(len(asks)):
        alloc = places.get(number, {})
        if plan.placed is not None:
            each.append(plan.placed(number, alloc))
            continue
        worth = plan.worth(number, next((room.kinds[node] for node in alloc), None))
        each.append(worth.get(total(alloc), worth[0]))
    return _Placed(plan, places, math.fsum(each))


def _filled(
    placed: _Placed, asks: Sequence[Candidate], free: Mapping[str, int], kinds: Mapping[str, str]
) -> _Placed:
    """Give what is left to jobs that have no GPUs, if they gain by it."""
    plan, places, value = placed

    def gain(number: int, kind: str | None, size: int) -> float:
        if plan.worth is None:
            return 1.0
        worth = plan.worth(number, kind)
        return worth.get(size, worth[0]) - worth[0]

    more = leftover(asks, places, free, kinds, gain)
    gains = (gain(number, kinds[next(iter(alloc))], total(alloc)) for number, alloc in more.items())
    return _Placed(plan, {**places, **more}, value + math.fsum(gains))


def _liked(goal: Alloc, likes: Sequence[str]) -> Alloc:
    """Return the part of its nodes that a job may keep: those of `likes`, if any are given."""
    liked = frozenset(likes)
    if not liked or goal.keys() <= liked:
        return goal
    return {node: gpus for node, gpus in goal.items() if node in liked}


def _several(plans: Plan | Sequence[Plan]) -> Sequence[Plan]:
    return [plans] if isinstance(plans, Plan) else plans


def divide(
    now: Snapshot, worth: Worth, *, apart: bool = False, parallel: int | None = None
) -> Target:
    """Give GPUs to jobs so that the sum of their values is largest.

    Counts are optimal (:mod:`hpcext.policies.solve.apportion`), or with several kinds of GPU nearly
    so (:mod:`hpcext.policies.solve.kinds`). A job whose count does not fit on the nodes
    (:mod:`hpcext.policies.placement.place`) gets fewer. Jobs whose size cannot be changed now keep
    it.

    Parameters
    ----------
    now : Snapshot
    worth : Worth
        The values of a job's sizes.
    apart, parallel
        As for :func:`settle`.
    """
    return settle(now, functools.partial(best, worth), apart=apart, parallel=parallel)


class Solved(Protocol):
    """A division of units over tables, with a bound that no division exceeds."""

    @property
    def counts(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def bound(self) -> float: ...  # noqa: D102


Solve = Callable[[Sequence[ValueTable], int], Solved]


def best(worth: Worth, asks: Sequence[Candidate], gpus: Gpus, solve: Solve | None = None) -> Plan:
    """Find the division of the largest value; with several kinds of GPU, nearly.

    `solve` replaces :func:`~hpcext.policies.solve.apportion.apportion` by another method, which
    treats all GPUs as alike.

    Parameters
    ----------
    worth : Worth
        The values of a job's sizes.
    asks : sequence of Candidate
    gpus : Gpus
        Number of GPUs by kind.
    solve : callable, optional
        By default the apportionment.
    """
    if solve is None and len(gpus) > 1:
        offers = [_tables(worth, ask, gpus) for ask in asks]
        shares = share(offers, gpus)
        kinds, counts = zip(*shares.choices, strict=True)
        return Plan(counts, _each(offers), shares.bound, kinds)
    first = next(iter(gpus))
    tables = [_table(worth, ask, ask.has or first) for ask in asks]
    division = (solve or apportion)(tables, sum(gpus.values()))
    return Plan(division.counts, _each([{"": table} for table in tables]), division.bound)


def valued(worth: Worth, asks: Sequence[Candidate], gpus: Gpus, counts: Sequence[int]) -> Plan:
    """Return a plan for counts that were found by other means, with their values.

    Parameters
    ----------
    worth : Worth
        The values of a job's sizes.
    asks : sequence of Candidate
    gpus : Gpus
        Number of GPUs by kind.
    counts : sequence of int
        GPUs of each candidate.
    """
    return Plan(counts, _each([_tables(worth, ask, gpus) for ask in asks]))


def _table(worth: Worth, ask: Candidate, kind: str) -> ValueTable:
    return ValueTable(ask.sizes.gpus, worth(ask.job, ask.sizes, On(kind, ask.has)))


def _tables(worth: Worth, ask: Candidate, kinds: Iterable[str]) -> dict[str, ValueTable]:
    """Return the table of a job for each kind of GPU that it may have."""
    found = {}
    for kind in kinds:
        if ask.on(kind):
            sizes = ask.sizes_on(kind)
            found[kind] = ValueTable(sizes.gpus, worth(ask.job, sizes, On(kind, ask.has)))
    return found


def _each(
    tables: Sequence[Mapping[str, ValueTable]],
) -> Callable[[int, str | None], Mapping[int, float]]:
    """Return a function from the index of a job and a kind to its values by size."""

    @functools.cache
    def values(number: int, kind: str | None) -> Mapping[int, float]:
        offers = tables[number]
        return _by_size(*(offers.get(kind or "") or next(iter(offers.values()))))

    return values


@by_identity
def _by_size(sizes: Counts, values: Values) -> Mapping[int, float]:
    return dict(zip(sizes.tolist(), values.tolist(), strict=True))


def _less(ask: Candidate, plan: Plan, number: int) -> list[Shape]:
    """List smaller shapes of a job, the best first, without those of no value."""
    kind = plan.kind(number)
    shapes = ask.on(kind)
    smaller = [size for size in shapes if size < plan.counts[number]]
    if plan.worth is None:
        return [shapes[size] for size in reversed(smaller)]
    worth = plan.worth(number, kind)
    better = [size for size in smaller if worth.get(size, worth[0]) > worth[0]]
    return [shapes[size] for size in sorted(better, key=worth.__getitem__, reverse=True)]


def granted(job: Job, alloc: Alloc, count: int, now: Snapshot) -> Grant:
    """Make the grant of a job that gets `alloc` although `count` GPUs were decided.

    Parameters
    ----------
    job : Job
    alloc : Alloc
        GPUs by node.
    count : int
        Number of GPUs that were decided.
    now : Snapshot
    """
    machine = machine_of(now.nodes)
    widest = machine.alike or max(map(machine.widths.__getitem__, alloc))
    best_ = largest(job, min(job.optimal, widest))
    role = Role.PRIMARY if per_node(alloc) >= best_ else Role.SECONDARY
    has = total(alloc)
    return Grant(alloc, role, _why(has, count, asked=bool(job.stated)))


@functools.lru_cache(maxsize=4096)
def _why(has: int, count: int, *, asked: bool) -> str:
    if has < count:
        return f"runs on {named(has)} of {count}: no node has room for more"
    return f"runs on {named(has)}, {AS_ASKED if asked else 'its share of the GPUs'}"
