"""The assignment of GPUs that are left on nodes to the jobs that gain most by them.

The division of counts does not know nodes: it may give three GPUs to each of many jobs, and leave
one on each of their nodes that no job was given. Here single jobs get better shapes, on their own
nodes or on others, as long as that increases the sum of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.values import Alloc, Grant, Snapshot, Target, total
from hpcext.policies.common import free_beside, take
from hpcext.policies.placement.candidates import Candidate
from hpcext.policies.placement.divide import Plan, Room, granted
from hpcext.policies.placement.place import PlacementRequest, Shape, place

LEAST = 1e-9
"""Smallest gain, relative to the sum of values."""


class _Better(NamedTuple):
    """Better nodes for a job, and the gain by them."""

    number: int
    alloc: Alloc
    gain: float


def refilled(
    now: Snapshot, target: Target, asks: Sequence[Candidate], plan: Plan, *, apart: bool = True
) -> Target:
    """Return the target with better shapes for some jobs, where there is room.

    Parameters
    ----------
    now : Snapshot
    target : Target
    asks : sequence of Candidate
        The candidates, with all sizes that they may have.
    plan : Plan
        Its `worth` gives the value of each size.
    apart : bool
        Whether two jobs on several nodes may not share one; in the target none do.
    """
    if plan.worth is None or target.value is None:
        return target
    division = _Division(now, target, asks, apart)
    value = target.value
    # Each round increases the sum, so this ends; the limit saves the last small gains.
    for _ in range(4 * len(asks)):
        best = division.best(plan)
        if best is None or best.gain <= LEAST * abs(value):
            break
        division.give(best)
        value += best.gain
    grants = {**target.grants, **division.grants}
    waits = {job: why for job, why in target.waits.items() if job not in grants}
    return replace(target, grants=grants, waits=waits, value=value)


class _Division:
    """A target that is being improved.

    Attributes
    ----------
    grants : dict of str to Grant
        The changed grants.
    """

    def __init__(
        self, now: Snapshot, target: Target, asks: Sequence[Candidate], apart: bool
    ) -> None:
        self._now, self._asks, self._apart = now, asks, apart
        granted_to = {job: grant.alloc for job, grant in target.grants.items()}
        self._allocs = {ask.job.id: granted_to.pop(ask.job.id, {}) for ask in asks}
        # Jobs that are no candidates keep their grants.
        self._others = tuple(granted_to.values())
        self._kinds = {name: node.kind for name, node in now.nodes.items()}
        self._free = free_beside(now, target.grants)
        self.grants: dict[str, Grant] = {}

    def best(self, plan: Plan) -> _Better | None:
        """Find the shape of any job that gains most; None if there is room for none."""
        if not any(self._free.values()):
            return None
        wide = (alloc for alloc in (*self._others, *self._allocs.values()) if len(alloc) > 1)
        taken = {node for alloc in wide for node in alloc} if self._apart else None
        room = Room(self._free, taken, self._kinds)
        each = (
            _better(number, ask, self._allocs[ask.job.id], plan, room)
            for number, ask in enumerate(self._asks)
        )
        return max(filter(None, each), key=lambda better: better.gain, default=None)

    def give(self, better: _Better) -> None:
        """Move a job to its better nodes."""
        job = self._asks[better.number].job
        take(self._free, self._allocs[job.id], -1)
        take(self._free, better.alloc)
        self._allocs[job.id] = better.alloc
        self.grants[job.id] = granted(job, better.alloc, total(better.alloc), self._now)


def _better(number: int, ask: Candidate, has: Alloc, plan: Plan, room: Room) -> _Better | None:
    """Return the best shape for a job that has room, if it is better than its present one.

    It is searched on GPUs of the kind that the job has, or will have.
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
    apart = room.apart
    if apart is not None and len(has) > 1:
        apart = set(apart) - set(has)
    for size in wanted:
        shape = shapes[size]
        if shape.nodes > len(widths) or widths[shape.nodes - 1] < shape.gpus:
            continue
        request = PlacementRequest(shape, tuple, has, kind, avoids=ask.job.failed_on)
        alloc = place(free, [request], apart=apart, kinds=room.kinds)[0]
        if total(alloc) == size and Shape.of(alloc) == shape:
            return _Better(number, alloc, worth[size] - before)
    return None
