"""Equal shares: BFTrainer's baseline, which divides nodes equally (Liu et al., section 5.1)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from hpcext.core.values import Snapshot, Target
from hpcext.policies.placement.candidates import Candidate, Gpus
from hpcext.policies.placement.divide import Parallel, Plan, settle


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    parallel : int or None
        Largest number of jobs that run at once, the first of the queue.
    rest : {"spread", "first"}
        Which jobs get what equal shares leave over: those that have least, one step at a time; or
        the first of the queue as much as it may have, then the next, as in the paper's own program.
    """

    parallel: Parallel | None = None
    rest: Literal["spread", "first"] = "spread"


def allocate(now: Snapshot, options: Options) -> Target:
    """Give all jobs equal shares by weight, within the sizes that each may have."""
    decide = share if options.rest == "spread" else first_come
    return settle(now, decide, parallel=options.parallel)


def share(asks: Sequence[Candidate], gpus: Gpus) -> Plan:
    """Give each job its minimum in the order of the queue, then more to the smallest by weight.

    The cost grows with the GPUs that are given out, times the logarithm of the jobs.

    Parameters
    ----------
    asks : sequence of Candidate
    gpus : Gpus
        Number of GPUs by kind.
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


def first_come(asks: Sequence[Candidate], gpus: Gpus) -> Plan:
    """Give each job its share, rounded down to a valid size; then the rest to the first ones.

    A job that has no size that small gets nothing at first, and then its turn at the rest.

    Parameters
    ----------
    asks : sequence of Candidate
    gpus : Gpus
        Number of GPUs by kind.
    """
    free, weights = sum(gpus.values()), math.fsum(ask.job.weight for ask in asks)
    counts = [ask.most(math.floor(free * (ask.job.weight / weights))) for ask in asks]
    free -= sum(counts)
    for number, ask in enumerate(asks):
        before = counts[number]
        counts[number] = ask.most(before + free)
        free -= counts[number] - before
    return Plan(counts)
