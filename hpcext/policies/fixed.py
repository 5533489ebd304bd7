"""Fixed sizes: each job has a given number of GPUs from its start to its end.

That is how a batch system treats jobs that ask for a number of GPUs, first come, first served; and
these are the strategies *One*, *Two*, *Four* and *Eight* of Capes et al. (section 7). No job is
overtaken in the queue, and nothing that runs is suspended for another job.

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
        Seconds after which a job makes room for waiting ones; 0: it runs to its end.
    """

    gpus: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    turn_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0


def allocate(now: Snapshot, options: Options) -> Target:
    """Start the next jobs of the queue as long as each finds room.

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
        if ask.job.id in grants and _asked_otherwise(ask):
            grants[ask.job.id] = _resized(ask, grants[ask.job.id], room, gpus)
    waits: dict[str, str] = {}
    blocked = False
    for ask in asks:
        job = ask.job
        if job.id in grants:
            continue
        alloc = {} if blocked or not ask.shapes else room.find(_wish(ask, gpus))
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

    def find(self, wish: PlacementRequest) -> Alloc:
        """Return nodes for a job, those with the least left free; empty if there is no room."""
        if all(self._free[node] >= gpus for node, gpus in wish.now.items()):
            # A job whose turn is over stays where it is, if it may go on.
            (alloc,) = place(self._free, [wish], kinds=self._kinds)
            return alloc
        return self.find(wish._replace(now={}))


def _asked_otherwise(ask: Candidate) -> bool:
    """Return whether a job's size no longer is what its user asks for.

    Its user may have asked for a size (``hpcext resize``), or no longer do so.
    """
    job = ask.job
    other = per_node(job.goal or {}) not in job.sizes or job.role is Role.SECONDARY
    return bool(ask.shapes) and movable(job) and (other or bool(job.stated) != _said(job))


def _said(job: Job) -> bool:
    return AS_ASKED in job.why


def _resized(ask: Candidate, grant: Grant, room: _Room, gpus: int) -> Grant:
    """Return the grant at the new size; the one before where there is no room."""
    room.take(grant.alloc, -1)
    wish = _wish(ask, gpus)
    found = room.find(wish)
    room.take(found or grant.alloc)
    if per_node(found) in ask.job.sizes:
        return _granted(ask.job, found)
    why = f"runs on {named(total(grant.alloc))}; waits for {named(wish.wanted.gpus)}"
    return Grant(found or grant.alloc, grant.role, why)


def _granted(job: Job, alloc: Alloc) -> Grant:
    size = its_size(job, "a fixed size")
    return Grant(alloc, Role.PRIMARY, f"runs on {named(total(alloc))}, {size}")


def _wish(ask: Candidate, gpus: int) -> PlacementRequest:
    """Return the wish for its size: the largest up to the fixed one, or its least."""
    return PlacementRequest(ask.shapes[_size(ask, gpus)], list, ask.job.goal or {})


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
