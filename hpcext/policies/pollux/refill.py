"""GPUs that are left on nodes go to the jobs that gain most by them.

The division of counts does not know nodes: it may give three GPUs to each of many jobs, and leave
one on each of their nodes that nobody asked for. Here single jobs are given better shapes, on the
nodes that they have or on others, as long as one makes the sum of values larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.values import Alloc, Snapshot, Target, total
from hpcext.policies.placement.divide import Candidate, Plan, granted
from hpcext.policies.placement.place import PlacementRequest, Shape, place

LEAST = 1e-9
"""Least gain, relative to the sum of values."""


class _Room(NamedTuple):
    """The free GPUs on each node, and its kind.

    `taken` are nodes of jobs on several nodes; None: such jobs may share nodes.
    """

    free: dict[str, int]
    taken: set[str] | None
    kinds: Mapping[str, str]


class _Better(NamedTuple):
    """A better place for a job, and its gain."""

    number: int
    alloc: Alloc
    gain: float


def refilled(
    now: Snapshot, target: Target, asks: Sequence[Candidate], plan: Plan, *, apart: bool = True
) -> Target:
    """Return the target with better shapes for some jobs where there is room.

    Parameters
    ----------
    now : Snapshot
    target : Target
    asks : sequence of Candidate
        The jobs that were asked about, with all sizes that they may have.
    plan : Plan
        Its `worth` gives the value of each size.
    apart : bool
        Whether no two jobs on several nodes share one; in the target neither.
    """
    if plan.worth is None or target.value is None:
        return target
    allocs = {ask.job.id: grant.alloc for ask in asks if (grant := target.grants.get(ask.job.id))}
    free = {name: node.gpus for name, node in now.nodes.items()}
    for grant in target.grants.values():
        for node, gpus in grant.alloc.items():
            free[node] -= gpus
    others = [grant.alloc for job, grant in target.grants.items() if job not in allocs]
    value = target.value
    grants = dict(target.grants)
    kinds = {name: node.kind for name, node in now.nodes.items()}
    # Each round makes the sum larger, so this ends; a limit saves the last small gains.
    for _ in range(4 * len(asks)):
        if not any(free.values()):
            break
        wide = (alloc for alloc in (*others, *allocs.values()) if len(alloc) > 1)
        taken = {node for alloc in wide for node in alloc} if apart else None
        room = _Room(free, taken, kinds)
        each = (
            _better(number, ask, allocs.get(ask.job.id, {}), plan, room)
            for number, ask in enumerate(asks)
        )
        best = max(filter(None, each), key=lambda better: better.gain, default=None)
        if best is None or best.gain <= LEAST * abs(value):
            break
        job = asks[best.number].job
        for node, gpus in allocs.get(job.id, {}).items():
            free[node] += gpus
        for node, gpus in best.alloc.items():
            free[node] -= gpus
        allocs[job.id] = best.alloc
        grants[job.id] = granted(job, best.alloc, total(best.alloc), now)
        value += best.gain
    waits = {job: why for job, why in target.waits.items() if job not in grants}
    return replace(target, grants=grants, waits=waits, value=value)


def _better(number: int, ask: Candidate, has: Alloc, plan: Plan, room: _Room) -> _Better | None:
    """Return the best shape for a job that has room, if it is better than what it has.

    It is searched on GPUs of the kind that the job has, or is to have.
    """
    assert plan.worth is not None
    kind = next((room.kinds[node] for node in has), plan.kind(number))
    worth = plan.worth(number, kind)
    before = worth.get(total(has), worth[0])
    shapes = ask.on(kind)
    wanted = sorted(
        (size for size in shapes if worth.get(size, before) > before),
        key=lambda size: (-worth[size], size),
    )
    if not wanted:
        return None
    free = {name: gpus + has.get(name, 0) for name, gpus in room.free.items()}
    widths = sorted(free.values(), reverse=True)
    taken = room.taken
    if taken is not None and len(has) > 1:
        taken = taken - set(has)
    for size in wanted:
        shape = shapes[size]
        if shape.nodes > len(widths) or widths[shape.nodes - 1] < shape.gpus:
            continue
        wish = PlacementRequest(shape, tuple, has, kind)
        alloc = place(free, [wish], apart=taken, kinds=room.kinds)[0]
        if total(alloc) == size and _shape(alloc) == shape:
            return _Better(number, alloc, worth[size] - before)
    return None


def _shape(alloc: Alloc) -> Shape:
    return Shape(min(alloc.values()), len(alloc))
