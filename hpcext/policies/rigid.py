"""Rigid jobs, whose number of GPUs is given from their start to their end: their size, and room."""

from __future__ import annotations

from collections.abc import Mapping

from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, per_node, total
from hpcext.policies.common import AS_ASKED, free_beside, its_size, movable, named, no_room, take
from hpcext.policies.placement.candidates import Candidate
from hpcext.policies.placement.place import PlacementRequest, Shape, place


class Room:
    """The GPUs on each node that grants leave free."""

    def __init__(self, now: Snapshot, grants: Mapping[str, Grant]) -> None:
        self._free = free_beside(now, grants)
        self._kinds = {name: node.kind for name, node in now.nodes.items()}

    def take(self, alloc: Alloc, sign: int = 1) -> None:
        """Subtract an allocation from the free GPUs, or with `sign` -1 add it."""
        take(self._free, alloc, sign)

    def find(self, request: PlacementRequest) -> Alloc:
        """Return nodes for a job, those with the fewest free GPUs; empty if there is no room."""
        if all(self._free[node] >= gpus for node, gpus in request.now.items()):
            # A job whose turn is over keeps its nodes if it may go on.
            (alloc,) = place(self._free, [request], kinds=self._kinds)
            return alloc
        return self.find(request._replace(now={}))


def wants_other_size(job: Job) -> bool:
    """Return whether a job has another size than its user wants.

    Its user may have requested a size (``hpcext resize``), or undone that.
    """
    other = per_node(job.goal or {}) not in job.sizes or job.role is Role.SECONDARY
    return movable(job) and (other or bool(job.stated) != (AS_ASKED in job.why))


def resized(ask: Candidate, grant: Grant, room: Room, gpus: int = 0) -> Grant:
    """Return the grant at the size that its user wants, or the present one if there is no room.

    Parameters
    ----------
    ask : Candidate
        It has a shape.
    grant : Grant
        The one that it has, which `room` counts as taken.
    room : Room
        Changed in place.
    gpus : int
        As for :func:`shape_of`.
    """
    room.take(grant.alloc, -1)
    request = request_of(ask, gpus)
    found = room.find(request)
    room.take(found or grant.alloc)
    if per_node(found) in ask.job.sizes:
        return granted(ask.job, found)
    why = f"runs on {named(total(grant.alloc))}; waits for {named(request.wanted.gpus)}"
    return Grant(found or grant.alloc, grant.role, why)


def granted(job: Job, alloc: Alloc) -> Grant:
    """Return the grant of an allocation, with its reason."""
    size = its_size(job, "a fixed size")
    return Grant(alloc, Role.PRIMARY, f"runs on {named(total(alloc))}, {size}")


def request_of(ask: Candidate, gpus: int = 0) -> PlacementRequest:
    """Return the request for the size of a job; see :func:`shape_of`."""
    job = ask.job
    return PlacementRequest(shape_of(ask, gpus), list, job.goal or {}, avoids=job.failed_on)


def shape_of(ask: Candidate, gpus: int = 0) -> Shape:
    """Return the shape of a job: the largest up to a size, or its smallest.

    Parameters
    ----------
    ask : Candidate
        It has a shape.
    gpus : int
        GPUs on all its nodes together; 0: its best number on each node.
    """
    return ask.shapes[_size(ask, gpus)]


def _size(ask: Candidate, gpus: int) -> int:
    if ask.job.stated:
        # Its user has set the size of this job.
        return min(ask.shapes)
    if not gpus:
        best = [size for size, shape in ask.shapes.items() if shape.gpus <= ask.job.optimal]
        return max(best, default=min(ask.shapes))
    return ask.most(gpus) or min(ask.shapes)


def needs(ask: Candidate, gpus: int = 0) -> str:
    """Return why a job waits that is the next one; `gpus` as for :func:`shape_of`."""
    if not ask.shapes:
        return f"next in the queue; {no_room(ask.job)}"
    shape = shape_of(ask, gpus)
    where = f"on each of {shape.nodes} nodes" if shape.nodes > 1 else "on one node"
    return f"next in the queue; waits for {named(shape.gpus)} {where}"
