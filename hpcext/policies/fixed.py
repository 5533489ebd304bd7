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

from hpcext.core.values import Grant, Snapshot, Target
from hpcext.policies.common import BEHIND, keep, movable
from hpcext.policies.placement.candidates import Candidate, asks_of
from hpcext.policies.rigid import Room, granted, needs, request_of, resized, wants_other_size


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
    grants, room = dict(kept), Room(now, kept)
    for ask in asks:
        if ask.job.id in grants and ask.shapes and wants_other_size(ask.job):
            grants[ask.job.id] = resized(ask, grants[ask.job.id], room, gpus)
    waits: dict[str, str] = {}
    blocked = False
    for ask in asks:
        job = ask.job
        if job.id in grants:
            continue
        alloc = {} if blocked or not ask.shapes else room.find(request_of(ask, gpus))
        if not alloc:
            waits[job.id] = BEHIND if blocked else needs(ask, gpus)
            blocked = True
            continue
        room.take(alloc)
        grants[job.id] = granted(job, alloc)
    return Target(grants, waits)
