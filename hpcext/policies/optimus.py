"""The greedy method of Optimus, as Capes et al. use it: add the worker that saves the most time.

Peng et al., *Optimus*, EuroSys 2018, section 4.1; without parameter servers, because jobs here
average their gradients by all-reduce. Every job gets one worker first, in the order of the queue.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Mapping, Sequence

import msgspec

from hpcext.core.values import Snapshot, Target
from hpcext.policies.periodic import periodic
from hpcext.policies.placement.candidates import Candidate, Gpus, only
from hpcext.policies.placement.divide import Plan, settle, valued
from hpcext.policies.total_time import Interval, time_left_s, worth

NEGLIGIBLE = 1e-9
"""Smallest share of the remaining time that another GPU must save; less may be rounding."""


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    interval_s : float
        The scheduling interval in seconds; 10 minutes in the paper.
    """

    interval_s: Interval = 600.0


def allocate(now: Snapshot, options: Options) -> Target:
    """Add workers one by one."""
    return periodic(now, options.interval_s, functools.partial(settle, decide=one_more))


def one_more(asks: Sequence[Candidate], gpus: Gpus) -> Plan:
    """Add workers to jobs in steps to the next larger size."""
    return grow(asks, gpus, lambda sizes, size: next((n for n in sizes if n > size), 0))


def grow(
    asks: Sequence[Candidate],
    gpus: Gpus,
    following: Callable[[Sequence[int], int], int],
    given: Mapping[int, Sequence[int]] | None = None,
) -> Plan:
    """Give each job its minimum, then take the steps that save most time per GPU, while any does.

    The cost grows with the steps that are made, times the logarithm of the jobs.

    Parameters
    ----------
    asks : sequence of Candidate
    gpus : mapping of str to int
        Number of GPUs by kind; with several kinds, speeds are those on the slowest.
    following : callable
        Given the sizes of a job and one of them, returns the one to try next; 0 for none.
    given : Mapping[int, sequence of int] or None
        By the index of a job, what it gets instead of its minimum, and without further steps: the
        first of these numbers of GPUs that are free. If none are, it is like the other jobs.
    """
    counts, free, kind = [0] * len(asks), sum(gpus.values()), only(gpus)
    times: list[dict[int, float]] = []
    steps: list[tuple[float, int, int]] = []

    def consider(number: int) -> None:
        """Push a job's next step, if it gains; a job has at most one step in the heap."""
        has = counts[number]
        size = following(list(asks[number].shapes), has)
        if size:
            gain = (times[number][has] - times[number][size]) / (size - has)
            if gain > NEGLIGIBLE * times[number][has]:
                heapq.heappush(steps, (-gain, number, size))

    for number, ask in enumerate(asks):
        sizes = ask.sizes
        left_s = time_left_s(ask.job, sizes, kind).tolist()
        times.append(dict(zip(sizes.gpus.tolist(), left_s, strict=True)))
        least, instead = next(iter(ask.shapes)), (given or {}).get(number, ())
        counts[number] = next((size for size in (*instead, least) if size <= free), 0)
        free -= counts[number]
    for number, count in enumerate(counts):
        if count and not (given and count in given.get(number, ())):
            consider(number)
    while steps:
        _, number, size = heapq.heappop(steps)
        # A step that does not fit now never will, since no GPU is given back.
        if size - counts[number] <= free:
            free -= size - counts[number]
            counts[number] = size
            consider(number)
    return valued(worth(asks, gpus), asks, gpus, counts)
