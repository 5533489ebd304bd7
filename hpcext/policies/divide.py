"""From how many GPUs each job is to get to a target: who may change, the shapes, the places."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, Target, per_node, total
from hpcext.policies.apportion import Table, apportion
from hpcext.policies.common import AS_ASKED, ONE_NODE, fixed, keep, largest, named, no_room
from hpcext.policies.kinds import share
from hpcext.policies.machine import Widths, free_of, machine_of
from hpcext.policies.place import Shape, Wish, place
from hpcext.scaling.estimator import Sizes, speedups
from hpcext.scaling.identity import by_identity

Counts = NDArray[np.int64]
Values = NDArray[np.float64]

Gpus = Mapping[str, int]
"""Kind of GPUs, see :class:`~hpcext.core.values.Node` → how many of it."""


class On(NamedTuple):
    """What GPUs a question is about.

    Attributes
    ----------
    kind : str
    has : str
        The kind that the job has now; empty if it has nothing.
    """

    kind: str = ""
    has: str = ""


Parallel = Annotated[int, msgspec.Meta(ge=1)]
"""How many jobs may have anything."""

Worth = Callable[[Job, Sizes, On], Values]
"""What each of several sizes, the first one 0, is worth to a job; of 0 it is the same for all
kinds."""


class Ask(NamedTuple):
    """A job that may be given something: it has one shape at least.

    Attributes
    ----------
    job : Job
    shapes : Mapping[int, Shape]
        What it may have: GPUs in all → how they are spread; ascending.
    by_kind : Mapping[str, Mapping[int, Shape]]
        The same for each kind of GPUs on which it may have anything; empty where all are alike.
    has : str
        As :class:`On` has it.
    """

    job: Job
    shapes: Mapping[int, Shape]
    by_kind: Mapping[str, Mapping[int, Shape]] = {}
    has: str = ""

    @property
    def sizes(self) -> Sizes:
        """Nothing, and what it may have."""
        return _sizes(self.shapes)

    def on(self, kind: str | None) -> Mapping[int, Shape]:
        """What it may have of a kind; None: of any."""
        return self.by_kind.get(kind, {}) if self.by_kind and kind is not None else self.shapes

    def sizes_on(self, kind: str | None) -> Sizes:
        """Nothing, and what it may have of a kind."""
        return _sizes(self.on(kind))


@by_identity
def _sizes(shapes: Mapping[int, Shape]) -> Sizes:
    """As arrays, which all that ask for the same share; so nobody may write into them."""
    gpus = np.array([0, *shapes], dtype=np.int64)
    nodes = np.array([0, *(shape.nodes for shape in shapes.values())], dtype=np.int64)
    gpus.setflags(write=False)
    nodes.setflags(write=False)
    return Sizes(gpus, nodes)


def only(kinds: Collection[str]) -> str:
    """The kind of all GPUs; empty if there are several."""
    return next(iter(kinds)) if len(kinds) == 1 else ""


class Plan(NamedTuple):
    """How many GPUs each of the asking jobs is to have.

    Attributes
    ----------
    counts : sequence of int
        0, or one of a job's sizes.
    worth : callable or None
        By the number of the job and a kind of GPUs (None: whatever is there): how much each of its
        sizes, 0 first, is worth. Where nodes have no room for what it is to have it gets the best
        that has a place; the largest, without this. What the answer is worth is the sum of these.
    bound : float or None
        No division is worth more.
    kinds : sequence of str, or None
        Of which kind each is to have them; None: of any, but each of one.
    likes : sequence of sequence of str, or None
        For each the nodes that it is to have, the best first, as far as they have room.
    placed : callable or None
        By the number of the job: what some nodes are worth to it, where that does not hang on
        their number alone.
    """

    counts: Sequence[int]
    worth: Callable[[int, str | None], Mapping[int, float]] | None = None
    bound: float | None = None
    kinds: Sequence[str] | None = None
    likes: Sequence[Sequence[str]] | None = None
    placed: Callable[[int, Alloc], float] | None = None

    def kind(self, number: int) -> str | None:
        """Of which kind a job is to have them."""
        return self.kinds[number] if self.kinds else None


Decide = Callable[[Sequence[Ask], Gpus], "Plan | Sequence[Plan]"]
"""Jobs, and the GPUs that they may have together → what each is to have. Of several plans, all with
the same `worth`, the one is taken that is worth most when it has been placed."""


def settle(
    now: Snapshot,
    decide: Decide,
    *,
    apart: bool = False,
    reserved: Alloc | None = None,
    parallel: int | None = None,
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
    parallel : int or None
        How many jobs, the first of the queue that are ready, may have anything.
    """
    now = now if parallel is None else front(now, parallel)
    kept = keep(now)
    grants = {job.id: kept[job.id] for job in now.jobs if job.id in kept and fixed(job)}
    machine = machine_of(now.nodes)
    free = dict(machine.widths)
    for grant in grants.values():
        for node, gpus in grant.alloc.items():
            free[node] -= gpus
    for node, gpus in (reserved or {}).items():
        free[node] = max(0, free[node] - gpus)
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
        for placed in _both_ways(plan, asks, _Room(free, shared, kinds))
    ]
    # Of those that are worth as much the first.
    plan, places, value = max(tried, key=lambda each: each.value)
    for number, alloc in places.items():
        job = asks[number].job
        grants[job.id] = granted(job, alloc, plan.counts[number], now)
    waits = {job: why for job, why in waits.items() if job not in grants}
    return Target(grants, waits, value=value if plan.worth else None, bound=plan.bound)


def front(now: Snapshot, parallel: int) -> Snapshot:
    """With so many of the jobs that are ready, and whoever has what cannot be taken back now."""
    first = tuple(itertools.islice((job for job in now.jobs if job.ready), parallel))
    if len(first) == parallel:
        others = now.jobs if now.busy is None else now.busy
        ids = {job.id for job in first}
        first += tuple(each for each in others if _stays(each) and each.id not in ids)
    return replace(now, jobs=first)


def _stays(job: Job) -> bool:
    """Whether a job has what cannot be taken back now."""
    return bool(job.ready and job.goal and fixed(job))


class _Placed(NamedTuple):
    """A plan, where each job that gets something is, and what all jobs are worth with that."""

    plan: Plan
    places: Mapping[int, Alloc]
    value: float


class _Room(NamedTuple):
    """GPUs that are free on each node, the nodes of jobs on several (None: whoever has them), and
    of which kind each node is."""

    free: Mapping[str, int]
    apart: Collection[str] | None
    kinds: Mapping[str, str]


def _both_ways(plan: Plan, asks: Sequence[Ask], room: _Room) -> Iterator[_Placed]:
    """Where jobs change their size on the nodes that they have; and, if not all have room there,
    where all that change are placed anew, since these pay for a change anyway."""
    first = _placed(plan, asks, room, anew=False)
    yield first
    given = {number: total(alloc) for number, alloc in first.places.items()}
    if any(given.get(number, 0) != count for number, count in enumerate(plan.counts)):
        yield _placed(plan, asks, room, anew=True)


def _placed(plan: Plan, asks: Sequence[Ask], room: _Room, *, anew: bool) -> _Placed:
    chosen = [number for number, count in enumerate(plan.counts) if count]
    wishes = []
    for number in chosen:
        ask, kind = asks[number], plan.kind(number)
        shape = ask.on(kind)[plan.counts[number]]
        less = functools.partial(_less, ask, plan, number)
        keeps = not anew or total(ask.job.goal) == shape.total
        likes = plan.likes[number] if plan.likes else ()
        has = _liked(ask.job.goal or {}, likes) if keeps else {}
        wishes.append(Wish(shape, less, has, kind, likes))
    found = zip(chosen, place(room.free, wishes, apart=room.apart, kinds=room.kinds), strict=True)
    places = {number: alloc for number, alloc in found if alloc}
    if plan.worth is None:
        return _Placed(plan, places, 0.0)
    each = []
    for number in range(len(asks)):
        alloc = places.get(number, {})
        if plan.placed is not None:
            each.append(plan.placed(number, alloc))
            continue
        worth = plan.worth(number, next((room.kinds[node] for node in alloc), None))
        each.append(worth.get(total(alloc), worth[0]))
    return _Placed(plan, places, math.fsum(each))


def _liked(goal: Alloc, likes: Sequence[str]) -> Alloc:
    """What a job may keep of what it has: the nodes that it likes, if any are said."""
    liked = frozenset(likes)
    if not liked or goal.keys() <= liked:
        return goal
    return {node: gpus for node, gpus in goal.items() if node in liked}


def _several(plans: Plan | Sequence[Plan]) -> Sequence[Plan]:
    return [plans] if isinstance(plans, Plan) else plans


def divide(
    now: Snapshot, worth: Worth, *, apart: bool = False, parallel: int | None = None
) -> Target:
    """Give GPUs to jobs so that the sum of what they are worth is largest.

    Counts are the best (:mod:`hpcext.policies.apportion`; of several kinds of GPUs near to it,
    :mod:`hpcext.policies.kinds`); where nodes have no room for one (:mod:`hpcext.policies.place`)
    its job gets less. Jobs whose size cannot be changed now keep it.
    """
    return settle(now, functools.partial(best, worth), apart=apart, parallel=parallel)


class Solved(Protocol):
    """How many units each of several tables gets, and more than which no division is worth."""

    @property
    def counts(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def bound(self) -> float: ...  # noqa: D102


Solve = Callable[[Sequence[Table], int], Solved]


def best(worth: Worth, asks: Sequence[Ask], gpus: Gpus, solve: Solve | None = None) -> Plan:
    """The division that is worth most, or with several kinds of GPUs one that is near to it.

    `solve` finds it in another way than :func:`~hpcext.policies.apportion.apportion`; for it all
    GPUs are alike.
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


def valued(worth: Worth, asks: Sequence[Ask], gpus: Gpus, counts: Sequence[int]) -> Plan:
    """A division that was made in another way, and what it is worth."""
    return Plan(counts, _each([_tables(worth, ask, gpus) for ask in asks]))


def _table(worth: Worth, ask: Ask, kind: str) -> Table:
    return Table(ask.sizes.gpus, worth(ask.job, ask.sizes, On(kind, ask.has)))


def _tables(worth: Worth, ask: Ask, kinds: Iterable[str]) -> dict[str, Table]:
    """For each kind of which the job may have any."""
    found = {}
    for kind in kinds:
        if ask.on(kind):
            sizes = ask.sizes_on(kind)
            found[kind] = Table(sizes.gpus, worth(ask.job, sizes, On(kind, ask.has)))
    return found


def _each(
    tables: Sequence[Mapping[str, Table]],
) -> Callable[[int, str | None], Mapping[int, float]]:
    """By the number of a job and a kind: size → value."""

    @functools.cache
    def values(number: int, kind: str | None) -> Mapping[int, float]:
        offers = tables[number]
        return _by_size(*(offers.get(kind or "") or next(iter(offers.values()))))

    return values


@by_identity
def _by_size(sizes: Counts, values: Values) -> Mapping[int, float]:
    return dict(zip(sizes.tolist(), values.tolist(), strict=True))


def speeds(job: Job, sizes: Sizes, kind: str = "") -> Values:
    """How many times as fast as on one GPU a job is.

    Of a job of which nothing is known it is believed that more GPUs help up to its best size.
    """
    known = speedups(job.estimate, sizes, kind)
    if known is not None:
        return known
    most = job.optimal * (job.nodes or ONE_NODE)[1]
    return np.asarray(np.minimum(sizes.gpus, most), dtype=np.float64)


def asks_of(now: Snapshot, but: Collection[str] = ()) -> list[Ask]:
    """The jobs that may be given something, without some; those without a shape too."""
    parts = machine_of(now.nodes).parts
    return [_ask(job, now, parts) for job in now.jobs if job.ready and job.id not in but]


def _ask(job: Job, now: Snapshot, parts: Mapping[str, Widths]) -> Ask:
    has = next((now.nodes[node].kind for node in job.goal or {}), "")
    by_kind = {
        kind: found
        for kind, widths in parts.items()
        if (found := _shapes(job.sizes, job.nodes or ONE_NODE, widths))
    }
    if len(parts) < 2:
        return Ask(job, next(iter(by_kind.values()), {}), has=has)
    shapes: dict[int, Shape] = {}
    for each in by_kind.values():
        for size, shape in each.items():
            shapes[size] = min(shape, shapes.get(size, shape), key=lambda shape: shape.nodes)
    return Ask(job, dict(sorted(shapes.items())), by_kind, has)


@functools.lru_cache(maxsize=1024)
def _shapes(sizes: tuple[int, ...], nodes: tuple[int, int], widths: Widths) -> Mapping[int, Shape]:
    """By their totals, ascending; of those with one total, that on the fewest nodes."""
    fewest, most = nodes
    wide = {size: sum(count for width, count in widths if width >= size) for size in sizes}
    found: dict[int, Shape] = {}
    for several in range(fewest, min(most, max(wide.values(), default=0)) + 1):
        for gpus in sizes:
            if several <= wide[gpus]:
                found.setdefault(gpus * several, Shape(gpus, several))
    return dict(sorted(found.items()))


def _less(ask: Ask, plan: Plan, number: int) -> list[Shape]:
    """Smaller shapes, the best first; those that are worth no more than nothing are left out."""
    kind = plan.kind(number)
    shapes = ask.on(kind)
    smaller = [size for size in shapes if size < plan.counts[number]]
    if plan.worth is None:
        return [shapes[size] for size in reversed(smaller)]
    worth = plan.worth(number, kind)
    better = [size for size in smaller if worth.get(size, worth[0]) > worth[0]]
    return [shapes[size] for size in sorted(better, key=worth.__getitem__, reverse=True)]


def granted(job: Job, alloc: Alloc, count: int, now: Snapshot) -> Grant:
    """What a job is told of what it gets, where it was to have so many."""
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
    return f"runs on {named(has)}, {AS_ASKED if asked else 'its part of the division'}"
