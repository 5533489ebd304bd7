"""Fixed sizes: each job has a given number of GPUs from its start to its end.

A batch system treats jobs that request a number of GPUs like this, first come, first served; and
these are the strategies *One*, *Two*, *Four* and *Eight* of Capes et al. (section 7). No job is
overtaken in the queue, and no running job is suspended for another one.

With turns (`turn_s`), as under gang scheduling of a batch system, a job that has run for that long
is suspended if others wait, and goes to the end of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, Target, per_node, total
from hpcext.policies.common import (
    AS_ASKED,
    BEHIND,
    free_beside,
    its_size,
    keep,
    movable,
    named,
    no_room,
    take,
)
from hpcext.policies.placement.candidates import Candidate, asks_of
from hpcext.policies.placement.place import PlacementRequest, place


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    gpus : int
        GPUs of each job, on all its nodes together; 0: its best number on each node.
    turn_s : float
        Seconds after which a job makes room for waiting ones; 0: it runs until it ends.
    """

    gpus: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    turn_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0


def allocate(now: Snapshot, options: Options) -> Target:
    """Start the next jobs of the queue as long as each fits.

    The cost grows with the jobs that run and with the length of the queue.
    """
    asks, kept = asks_of(now), keep(now)
    if not options.turn_s:
        return _allocate(now, options.gpus, asks, kept)
    # The order: for a running job the end of its turn, for a waiting one the start of its wait.
    memo = (now.memo or {}).get("turns", {})
    turns = {ask.job.id: memo.get(ask.job.id, now.now_s) for ask in asks}
    over = {
        ask.job.id
        for ask in asks
        if ask.job.id in kept and turns[ask.job.id] <= now.now_s and movable(ask.job)
    }
    asks.sort(key=lambda ask: (ask.job.id in over, -ask.job.priority, turns[ask.job.id]))
    target = _allocate(
        now, options.gpus, asks, {name: kept[name] for name in kept if name not in over}
    )
    for name in turns:
        if name in target.grants and (name not in kept or (name in over and target.waits)):
            turns[name] = now.now_s + options.turn_s
        elif name in over and name not in target.grants:
            turns[name] = now.now_s
    later = (turns[name] for name in target.grants if turns[name] > now.now_s)
    wake_s = min(later, default=None) if target.waits else None
    return replace(target, wake_s=wake_s, memo={"turns": turns})


def _allocate(
    now: Snapshot, gpus: int, asks: Sequence[Candidate], kept: Mapping[str, Grant]
) -> Target:
    """Keep some jobs, and start the first of the others that have room."""
    grants, room = dict(kept), _Room(now, kept)
    for ask in asks:
        if ask.job.id in grants and _wants_other_size(ask):
            grants[ask.job.id] = _resized(ask, grants[ask.job.id], room, gpus)
    waits: dict[str, str] = {}
    blocked = False
    for ask in asks:
        job = ask.job
        if job.id in grants:
            continue
        alloc = {} if blocked or not ask.shapes else room.find(_request(ask, gpus))
        if not alloc:
            waits[job.id] = BEHIND if blocked else _needs(ask, gpus)
            blocked = True
            continue
        room.take(alloc)
        grants[job.id] = _granted(job, alloc)
    return Target(grants, waits)


class _Room:
    """The GPUs on each node that grants leave free."""

    def __init__(self, now: Snapshot, grants: Mapping[str, Grant]) -> None:
        self._free = free_beside(now, grants)
        self._kinds = {name: node.kind for name, node in now.nodes.items()}

    def take(self, alloc: Alloc, sign: int = 1) -> None:
        take(self._free, alloc, sign)

    def find(self, request: PlacementRequest) -> Alloc:
        """Return nodes for a job, those with the fewest free GPUs; empty if there is no room."""
        if all(self._free[node] >= gpus for node, gpus in request.now.items()):
            # A job whose turn is over keeps its nodes if it may go on.
            (alloc,) = place(self._free, [request], kinds=self._kinds)
            return alloc
        return self.find(request._replace(now={}))


def _wants_other_size(ask: Candidate) -> bool:
    """Return whether a job has another size than its user wants.

    Its user may have requested a size (``hpcext resize``), or undone that.
    """
    job = ask.job
    other = per_node(job.goal or {}) not in job.sizes or job.role is Role.SECONDARY
    return (
        bool(ask.shapes)
        and movable(job)
        and (other or bool(job.stated) != _has_requested_size(job))
    )


def _has_requested_size(job: Job) -> bool:
    return AS_ASKED in job.why


def _resized(ask: Candidate, grant: Grant, room: _Room, gpus: int) -> Grant:
    """Return the grant at the new size, or the present one if there is no room."""
    room.take(grant.alloc, -1)
    request = _request(ask, gpus)
    found = room.find(request)
    room.take(found or grant.alloc)
    if per_node(found) in ask.job.sizes:
        return _granted(ask.job, found)
    why = f"runs on {named(total(grant.alloc))}; waits for {named(request.wanted.gpus)}"
    return Grant(found or grant.alloc, grant.role, why)


def _granted(job: Job, alloc: Alloc) -> Grant:
    size = its_size(job, "a fixed size")
    return Grant(alloc, Role.PRIMARY, f"runs on {named(total(alloc))}, {size}")


def _request(ask: Candidate, gpus: int) -> PlacementRequest:
    """Return the request for its size: the largest up to the fixed one, or its minimum."""
    shape, job = ask.shapes[_size(ask, gpus)], ask.job
    return PlacementRequest(shape, list, job.goal or {}, avoids=job.failed_on)


def _size(ask: Candidate, gpus: int) -> int:
    if ask.job.stated:
        # Its user has set the size of this job.
        return min(ask.shapes)
    if not gpus:
        best = [size for size, shape in ask.shapes.items() if shape.gpus <= ask.job.optimal]
        return max(best, default=min(ask.shapes))
    return ask.most(gpus) or min(ask.shapes)


def _needs(ask: Candidate, gpus: int) -> str:
    if not ask.shapes:
        return f"next in the queue; {no_room(ask.job)}"
    shape = ask.shapes[_size(ask, gpus)]
    where = f"on each of {shape.nodes} nodes" if shape.nodes > 1 else "on one node"
    return f"next in the queue; waits for {named(shape.gpus)} {where}"
