"""Placement: from the number of GPUs of each job to its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from hpcext.core.values import Alloc
from hpcext.policies.placement.machine import only_kind

Nodes = Collection[str]


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
        """The number of GPUs on all nodes."""
        return self.gpus * self.nodes


class PlacementRequest(NamedTuple):
    """The nodes that are requested for a job.

    Attributes
    ----------
    wanted : Shape
    less : callable
        Returns the shapes to take if `wanted` does not fit, the best first.
    now : Alloc
        GPUs that it has on each node; empty if it has none.
    kind : str or None
        Kind of its GPUs; None: any, but only one.
    likes : sequence of str
        Preferred nodes, the best first: of its own nodes it keeps these, and of others it gets
        these before the rest.
    avoids : collection of str
        Nodes that it gets only if there are too few others, as those where it has just failed.
    """

    wanted: Shape
    less: Callable[[], Sequence[Shape]]
    now: Alloc
    kind: str | None = None
    likes: Sequence[str] = ()
    avoids: Collection[str] = ()


def place(
    capacity: Mapping[str, int],
    requests: Sequence[PlacementRequest],
    *,
    apart: Collection[str] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> list[Alloc]:
    """Give each request nodes of one kind; the result is empty for one that does not fit at all.

    A job keeps its nodes if it wants as many GPUs as it has, or fewer. A job that grows does so on
    its own nodes if these have room; otherwise it moves if it fits elsewhere, or else stays as it
    is. New jobs follow, the largest first, each where it leaves the fewest free GPUs (best fit).

    A job that wants another kind than it has gives its nodes up and counts as new, because two such
    jobs may want each other's nodes. If it does not fit, it takes fewer GPUs there, or else its
    former nodes, if they are still free.

    The cost grows with the requests and their nodes, times the GPUs of a node.

    Parameters
    ----------
    capacity : Mapping[str, int]
        GPUs by node.
    requests : sequence of PlacementRequest
        In the order in which those of equal size are served.
    apart : collection of str or None
        If given, each node has at most one job that is on several nodes, because these slow each
        other's communication down (Pollux, section 4.2); the given nodes already have such a job.
    kinds : Mapping[str, str] or None
        Kind of the GPUs by node; None: all are alike.
    """
    free = _Free(capacity, apart, kinds or dict.fromkeys(capacity, ""))
    found: list[Alloc] = [{}] * len(requests)
    rest: list[int] = []
    for number, request in enumerate(requests):
        # Another policy may have given it nodes that it shares with other jobs, and there may be
        # less room than it has.
        found[number] = free.again(_kept(request)) if free.right(request) else {}
        free.take(found[number])
        if not found[number] or Shape.of(found[number]) != request.wanted:
            rest.append(number)
    if not rest:
        return found
    free.sort()
    rest.sort(key=lambda number: (not found[number], -requests[number].wanted.total))
    for number in rest:
        request, has = requests[number], found[number]
        free.give(has)
        found[number] = (
            _grown(request, free)
            or free.tightest(request.wanted, request)
            or has
            or _less(request, free)
            or free.again(request.now)
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
        """Subtract an allocation from the free GPUs, or with `sign` -1 add it."""
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
        """Add an allocation to the free GPUs."""
        self.take(alloc, -1)

    def open(self, node: str) -> bool:
        """Return whether another job on several nodes may have this node."""
        return self._shared is None or node not in self._shared

    def right(self, request: PlacementRequest) -> bool:
        """Return whether the nodes that a job has are of the requested kind."""
        if not request.now:
            return False
        if self._one_kind is not None:
            return request.kind is None or request.kind == self._one_kind
        kinds = {self.kinds[node] for node in request.now}
        return len(kinds) == 1 and (request.kind is None or request.kind in kinds)

    def again(self, alloc: Alloc) -> Alloc:
        """Return the allocation if it still fits, else an empty one."""
        room = all(gpus <= self.gpus[node] for node, gpus in alloc.items())
        return alloc if room and (len(alloc) == 1 or all(map(self.open, alloc))) else {}

    def tightest(
        self, shape: Shape, request: PlacementRequest, kind: str | None = None, but: Nodes = ()
    ) -> Alloc:
        """Return nodes with room, those with the fewest free GPUs; empty if there are too few.

        Of nodes with equally many free GPUs the first is taken. Nodes that the request likes come
        before all others, and those that it avoids are taken only if it cannot be had otherwise.

        Parameters
        ----------
        shape : Shape
        request : PlacementRequest
            Says what its job likes and avoids.
        kind : str or None
            Kind of GPUs; None: that of the request, or any one.
        but : collection of str
            Nodes that are part of the allocation already.
        """
        kind = request.kind if kind is None else kind
        kinds = self._nodes if kind is None else [kind]
        for left_out in ((*but, *request.avoids), but) if request.avoids else (but,):
            found = [self._tightest(shape, each, left_out, len(but), request) for each in kinds]
            if best := min(filter(None, found), key=self._room, default=[]):
                return dict.fromkeys(best, shape.gpus)
        return {}

    def _room(self, nodes: Nodes) -> int:
        return sum(self.gpus[node] for node in nodes)

    def _tightest(
        self, shape: Shape, kind: str, but: Nodes, own: int, request: PlacementRequest
    ) -> list[str]:
        def usable(node: str) -> bool:
            return node not in but and (shape.nodes + own == 1 or self.open(node))

        likes = request.likes
        roomy = (
            node for node in likes if self.gpus[node] >= shape.gpus and self.kinds[node] == kind
        )
        found = list(itertools.islice(dict.fromkeys(filter(usable, roomy)), shape.nodes))
        liked = frozenset(found)
        for nodes in self._nodes[kind][shape.gpus :]:
            here = (node for node in nodes if node not in liked and usable(node))
            found += itertools.islice(here, shape.nodes - len(found))
        return found if len(found) == shape.nodes else []


def _kept(request: PlacementRequest) -> Alloc:
    """Return the part of its nodes or GPUs that a job keeps within its request."""
    now = Shape.of(request.now)
    if request.wanted == now:
        return request.now
    if request.wanted.gpus > now.gpus or request.wanted.nodes > now.nodes:
        return request.now
    own = list(request.now)
    if request.likes:
        rank = {node: number for number, node in enumerate(request.likes)}
        own.sort(key=lambda node: rank.get(node, len(rank)))
    return dict.fromkeys(own[: request.wanted.nodes], request.wanted.gpus)


def _grown(request: PlacementRequest, free: _Free) -> Alloc:
    """Return the wanted shape on the nodes that a job has, and on further ones if it needs more."""
    gpus, count = request.wanted
    own = list(request.now)[:count]
    if not free.right(request) or any(free.gpus[node] < gpus for node in own):
        return {}
    if count > 1 and not all(map(free.open, own)):
        return {}
    kind = free.kinds[own[0]]
    more = free.tightest(Shape(gpus, count - len(own)), request, kind, own)
    return {**dict.fromkeys(own, gpus), **more} if len(own) + len(more) == count else {}


def _less(request: PlacementRequest, free: _Free) -> Alloc:
    """Return nodes for the best of the smaller shapes that fits."""
    places = (free.tightest(shape, request) for shape in request.less())
    return next((place for place in places if place), {})
