"""Equal shares: BFTrainer's baseline, which deals nodes out equally (Liu et al., section 5.1)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from hpcext.core.values import Snapshot, Target
from hpcext.policies.divide import Ask, Gpus, Parallel, Plan, settle


class Options(msgspec.Struct, frozen=True):
    """What can be chosen.

    Attributes
    ----------
    parallel : int or None
        How many jobs run at once at most, the first ones of the queue.
    """

    parallel: Parallel | None = None


def allocate(now: Snapshot, options: Options) -> Target:
    """Give each job as much as every other, by its weight and within what it may have."""
    return settle(now, share, parallel=options.parallel)


def share(asks: Sequence[Ask], gpus: Gpus) -> Plan:
    """Everybody's least in the order of the queue, then more to who has least for its weight.

    The cost grows with the GPUs that are given out, times the logarithm of the jobs.
    """
    sizes = [list(ask.shapes) for ask in asks]
    counts, free = [0] * len(asks), sum(gpus.values())
    poorest: list[tuple[float, int, int]] = []
    for number, (ask, each) in enumerate(zip(asks, sizes, strict=True)):
        if each[0] <= free:
            counts[number] = each[0]
            free -= each[0]
            poorest.append((each[0] / ask.job.weight, number, 0))
    heapq.heapify(poorest)
    while poorest:
        _, number, at = heapq.heappop(poorest)
        more = sizes[number][at + 1 : at + 2]
        if more and more[0] - counts[number] <= free:
            free -= more[0] - counts[number]
            counts[number] = more[0]
            heapq.heappush(poorest, (more[0] / asks[number].job.weight, number, at + 1))
    return Plan(counts)
