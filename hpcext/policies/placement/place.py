"""Placement: from the number of GPUs of each job to its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from hpcext.core.values import Alloc
from hpcext.policies.placement.machine import only_kind


class Shape(NamedTuple):
    """A number of GPUs on each of a number of nodes."""

    gpus: int
    nodes: int

    @classmethod
    def of(cls, alloc: Alloc) -> Shape:
        """Return the shape of an allocation."""
        return cls(min(alloc.values()), len(alloc))

    @property
    def total(self) -> int:
        """Number of GPUs on all nodes."""
        return self.gpus * self.nodes


class PlacementRequest(NamedTuple):
    """The placement that is wanted for a job.

    Attributes
    ----------
    wanted : Shape
    less : callable
        Returns the shapes to take if that has no place, the best first.
    now : Alloc
        GPUs that it has on each node; empty if it has none.
    kind : str or None
        Kind of its GPUs; None: any, but all of one kind.
    likes : sequence of str
        Nodes, the best first: of its own it keeps these, and it gets these before others.
    """

    wanted: Shape
    less: Callable[[], Sequence[Shape]]
    now: Alloc
    kind: str | None = None
    likes: Sequence[str] = ()


def place(
    capacity: Mapping[str, int],
    wishes: Sequence[PlacementRequest],
    *,
    apart: Collection[str] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> list[Alloc]:
    """Give each wish nodes of one kind; an empty result for one that has no place at all.

    A job keeps what it holds, if it is to have the same or less. A job that grows does so on its
    own nodes if these have room, else moves if some other place has room, else stays as it is. New
    jobs follow, the largest first, each where it leaves the least free (best fit).

    A job that is to have another kind than it holds gives that up and counts as new, because two
    such jobs may want each other's place; without room it takes less there, or else what it had, if
    that is still free.

    The cost grows with the wishes and their nodes, times the GPUs of a node.

    Parameters
    ----------
    capacity : Mapping[str, int]
        GPUs by node.
    wishes : sequence of PlacementRequest
        In the order in which those of one size are served.
    apart : collection of str or None
        If given, at most one job on several nodes has each node, because these slow each other's
        communication down (Pollux, section 4.2); the nodes given already have such a job.
    kinds : Mapping[str, str] or None
        Kind of the GPUs by node; None: all are alike.
    """
    free = _Free(capacity, apart, kinds or dict.fromkeys(capacity, ""))
    found: list[Alloc] = [{}] * len(wishes)
    rest: list[int] = []
    for number, wish in enumerate(wishes):
        kept = _kept(wish) if free.right(wish) else {}
        # Another policy may have given it nodes that other jobs have too.
        if len(kept) <= 1 or apart is None or all(map(free.open, kept)):
            found[number] = kept
            free.take(kept)
        if not found[number] or Shape.of(found[number]) != wish.wanted:
            rest.append(number)
    if not rest:
        return found
    free.sort()
    rest.sort(key=lambda number: (not found[number], -wishes[number].wanted.total))
    for number in rest:
        wish, has = wishes[number], found[number]
        free.give(has)
        found[number] = (
            _grown(wish, free)
            or free.tightest(wish.wanted, wish.kind, likes=wish.likes)
            or has
            or _less(wish, free)
            or free.again(wish.now)
        )
        free.take(found[number])
    return found


class _Free:
    """The free GPUs on each node; once sorted, also the nodes by their number of free GPUs."""

    def __init__(
        self, capacity: Mapping[str, int], apart: Collection[str] | None, kinds: Mapping[str, str]
    ) -> None:
        self.gpus = dict(capacity)
        self.kinds = kinds
        self._one_kind = only_kind(kinds)
        self._shared: set[str] | None = None if apart is None else set(apart)
        self._widest = max(capacity.values(), default=0)
        self._nodes: dict[str, list[dict[str, None]]] = {}
        self._sorted = False

    def sort(self) -> None:
        """Index the nodes by their number of free GPUs from now on."""
        # Dictionaries keep their order, so that the choice is deterministic.
        for node, gpus in self.gpus.items():
            kind = self.kinds[node]
            if kind not in self._nodes:
                self._nodes[kind] = [{} for _ in range(self._widest + 1)]
            self._nodes[kind][gpus][node] = None
        self._sorted = True

    def take(self, alloc: Alloc, sign: int = 1) -> None:
        """Take an allocation from the free GPUs."""
        free = self.gpus
        if not self._sorted:
            for node, gpus in alloc.items():
                free[node] -= sign * gpus
        else:
            for node, gpus in alloc.items():
                before = free[node]
                free[node] = now = before - sign * gpus
                nodes = self._nodes[self.kinds[node]]
                del nodes[before][node]
                nodes[now][node] = None
        if self._shared is not None and len(alloc) > 1:
            (self._shared.update if sign > 0 else self._shared.difference_update)(alloc)

    def give(self, alloc: Alloc) -> None:
        """Give an allocation back to the free GPUs."""
        self.take(alloc, -1)

    def open(self, node: str) -> bool:
        """Return whether a job on several nodes may have this node too."""
        return self._shared is None or node not in self._shared

    def right(self, wish: PlacementRequest) -> bool:
        """Return whether the nodes that a job has are of the kind that it is to have."""
        if not wish.now:
            return False
        if self._one_kind is not None:
            return wish.kind is None or wish.kind == self._one_kind
        kinds = {self.kinds[node] for node in wish.now}
        return len(kinds) == 1 and (wish.kind is None or wish.kind in kinds)

    def again(self, alloc: Alloc) -> Alloc:
        """Return the allocation if there is still room for it; else an empty one."""
        room = all(gpus <= self.gpus[node] for node, gpus in alloc.items())
        return alloc if room and (len(alloc) == 1 or all(map(self.open, alloc))) else {}

    def tightest(
        self, shape: Shape, kind: str | None, but: Collection[str] = (), likes: Sequence[str] = ()
    ) -> Alloc:
        """Return nodes with room, those with the least free; empty if there are too few.

        They are of any kind if none is given; of nodes with equally many free GPUs the first are
        taken. Liked nodes come before all others.
        """
        kinds = self._nodes if kind is None else [kind]
        found = [nodes for each in kinds if (nodes := self._tightest(shape, each, but, likes))]
        best = min(found, key=lambda nodes: sum(self.gpus[node] for node in nodes), default=[])
        return dict.fromkeys(best, shape.gpus)

    def _tightest(
        self, shape: Shape, kind: str, but: Collection[str], likes: Sequence[str]
    ) -> list[str]:
        def usable(node: str) -> bool:
            return node not in but and (shape.nodes + len(but) == 1 or self.open(node))

        roomy = (
            node for node in likes if self.gpus[node] >= shape.gpus and self.kinds[node] == kind
        )
        found = list(itertools.islice(dict.fromkeys(filter(usable, roomy)), shape.nodes))
        liked = frozenset(found)
        for nodes in self._nodes[kind][shape.gpus :]:
            here = (node for node in nodes if node not in liked and usable(node))
            found += itertools.islice(here, shape.nodes - len(found))
        return found if len(found) == shape.nodes else []


def _kept(wish: PlacementRequest) -> Alloc:
    """Return the part of its nodes or GPUs that a job keeps within its wish."""
    now = Shape.of(wish.now)
    if wish.wanted == now:
        return wish.now
    if wish.wanted.gpus > now.gpus or wish.wanted.nodes > now.nodes:
        return wish.now
    own = list(wish.now)
    if wish.likes:
        rank = {node: number for number, node in enumerate(wish.likes)}
        own.sort(key=lambda node: rank.get(node, len(rank)))
    return dict.fromkeys(own[: wish.wanted.nodes], wish.wanted.gpus)


def _grown(wish: PlacementRequest, free: _Free) -> Alloc:
    """Return the wanted shape on the nodes that a job has, and others if it is to have more."""
    gpus, count = wish.wanted
    own = list(wish.now)[:count]
    if not free.right(wish) or any(free.gpus[node] < gpus for node in own):
        return {}
    if count > 1 and not all(map(free.open, own)):
        return {}
    kind = free.kinds[own[0]]
    more = free.tightest(Shape(gpus, count - len(own)), kind, own, wish.likes)
    return {**dict.fromkeys(own, gpus), **more} if len(own) + len(more) == count else {}


def _less(wish: PlacementRequest, free: _Free) -> Alloc:
    """Return a place for the best of the other shapes that has one."""
    places = (free.tightest(shape, wish.kind, (), wish.likes) for shape in wish.less())
    return next((place for place in places if place), {})
