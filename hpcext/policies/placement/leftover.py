"""GPUs that are left when the jobs of a division have their nodes, for jobs that have none.

A division counts GPUs and does not know nodes: where its last job fits on no node, GPUs stay idle
on which jobs that were given nothing could run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpcext.core.values import Alloc, total
from hpcext.policies.common import take
from hpcext.policies.placement.candidates import Candidate
from hpcext.policies.placement.place import PlacementRequest, Shape, place

Gain = Callable[[int, str | None, int], float]
"""The gain of a job, given by its index, by a number of GPUs of a kind (None: of any)."""


def leftover(
    asks: Sequence[Candidate],
    places: Mapping[int, Alloc],
    free: Mapping[str, int],
    kinds: Mapping[str, str],
    gain: Gain,
) -> dict[int, Alloc]:
    """Return nodes for jobs that have none: first for those that run, then as they came.

    Each gets the size of the largest gain that has room, if that is above 0. The cost grows with
    the jobs, and with the nodes times the jobs that get any and the different shapes.

    Parameters
    ----------
    asks : sequence of Candidate
    places : Mapping[int, Alloc]
        The nodes of jobs that have some, by their index.
    free : Mapping[str, int]
        GPUs by node, without those of `places` taken off.
    kinds : Mapping[str, str]
        Kind of the GPUs by node.
    gain : Gain
    """
    room = dict(free)
    for alloc in places.values():
        take(room, alloc)
    left, names = sum(room.values()), sorted(set(kinds.values()))
    several: Sequence[str | None] = names if len(names) > 1 else [None]
    found: dict[int, Alloc] = {}
    # What has found no room finds none later.
    full: set[tuple[Shape, str | None]] = set()
    waiting = (number for number in range(len(asks)) if number not in places)
    for number in sorted(waiting, key=lambda each: not asks[each].job.goal):
        if left <= 0:
            break
        ask = asks[number]
        sizes = [
            (gain(number, kind, size), -size, kind or "", shape)
            for kind in several
            for size, shape in ask.on(kind).items()
            if (shape, kind) not in full
        ]
        for worth, _, kind, shape in sorted(sizes, key=lambda each: each[:3], reverse=True):
            if worth <= 0:
                break
            request = PlacementRequest(
                shape, tuple, ask.job.goal or {}, kind or None, avoids=ask.job.failed_on
            )
            (alloc,) = place(room, [request], kinds=kinds)
            if total(alloc) == shape.total:
                found[number] = alloc
                take(room, alloc)
                left -= shape.total
                break
            full.add((shape, kind or None))
    return found
