"""The doubling heuristic (Capes et al., section 4.2): double the workers where it saves most.

Sizes are powers of two, because all-reduce is slower on other numbers (eq. 2-4): a greedy method
that adds one worker at a time stops at eight, because nine are slower, though sixteen would be
faster. Every job gets one worker first, in the order of the queue; then the job with the largest
gain per new GPU (eq. 6) is doubled.

There are two strategies (section 7). *precompute*: speeds are known in advance, as ``scaling``
states them. *exploratory*: a new job without known speeds gets `explore_gpus` GPUs for itself and
measures its speed on 1, 2, 4 and 8 of them, for `explore_s` each. The GPUs that it does not use
meanwhile stay idle, as in the paper. If fewer are left, which the paper leaves open, it begins with
these, and what does not fit is not measured.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from hpcext.core.values import Grant, Job, Role, Snapshot, Target, suits, total
from hpcext.policies.common import fixed, named
from hpcext.policies.optimus import grow
from hpcext.policies.periodic import periodic
from hpcext.policies.placement.candidates import Candidate, Gpus, asks_of
from hpcext.policies.placement.divide import Plan, settle
from hpcext.policies.total_time import Interval

LOOK_S = 1.0
"""Shortest time, in seconds, until a measurement is checked again."""

MUTE, MUTE_S = 2.0, 300.0
"""When a silent job is given up: a multiple of a measurement's duration, and at least in seconds.

Until then it may be importing what it needs, and loading its data.
"""


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    strategy : {"exploratory", "precompute"}
        Precompute does not explore: a job without known speeds is assumed to scale linearly up to
        its best size.
    explore_s : float
        Seconds for which a job is measured on each size.
    explore_gpus : int
        The largest size that is explored.
    interval_s : float
        The scheduling interval, in seconds.
    """

    strategy: Literal["exploratory", "precompute"] = "exploratory"
    explore_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 150.0
    explore_gpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 8
    interval_s: Interval = 60.0


def allocate(now: Snapshot, options: Options) -> Target:
    """Explore the speeds of new jobs, and double the others where it gains most."""
    return periodic(now, options.interval_s, functools.partial(_allocate, options=options))


def _allocate(now: Snapshot, options: Options) -> Target:
    exploring = _exploring(now, options)
    reserved: collections.Counter[str] = collections.Counter()
    for job in now.jobs:
        # A job that cannot change now stays as it is; the GPUs that it needs later are kept too.
        if job.id in exploring and job.goal and fixed(job):
            reserved[next(iter(job.goal))] += max(0, exploring[job.id].kept[0] - total(job.goal))
    target = settle(now, functools.partial(_double, exploring), reserved=reserved)
    grants, until_s = dict(target.grants), []
    for job in now.jobs:
        grant = grants.get(job.id)
        if grant and job.id in exploring:
            size = exploring[job.id].size
            grants[job.id] = grant if fixed(job) else _part(job, grant, size)
            until_s.append(now.now_s + max(LOOK_S, options.explore_s - _seconds(job, size)))
    return replace(target, grants=grants, wake_s=min(until_s, default=None))


def _double(exploring: Mapping[str, _Exploring], asks: Sequence[Candidate], gpus: Gpus) -> Plan:
    """Keep GPUs for jobs that explore; let the others double in what is left."""
    given = {
        number: exploring[ask.job.id].kept
        for number, ask in enumerate(asks)
        if ask.job.id in exploring
    }
    return grow(asks, gpus, _twice, given)


def _twice(sizes: Sequence[int], size: int) -> int:
    return 2 * size if 2 * size in sizes else 0


class _Exploring(NamedTuple):
    """The size on which a job is measured now, and the GPUs to keep for it: the best number first.

    With fewer GPUs than the size there is nothing to measure.
    """

    size: int
    kept: Sequence[int]


def _exploring(now: Snapshot, options: Options) -> dict[str, _Exploring]:
    """Return the jobs of which a size has yet to be measured."""
    found: dict[str, _Exploring] = {}
    if options.strategy == "precompute":
        return found
    for ask in asks_of(now):
        job, sizes = ask.job, [] if ask.job.estimate.stated else list(ask.shapes)
        if not sizes or _mute(job, sizes[0], now.now_s, options):
            continue
        # The smallest size and its doublings.
        doublings = sizes[:1]
        while (more := _twice(sizes, doublings[-1])) <= options.explore_gpus and more:
            doublings.append(more)
        size = next((each for each in doublings if _seconds(job, each) < options.explore_s), 0)
        if size and len(doublings) > 1:
            kept = [each for each in reversed(doublings) if each >= size]
            found[job.id] = _Exploring(size, kept)
    return found


def _mute(job: Job, first: int, now_s: float, options: Options) -> bool:
    """Return whether a job is not expected to report the speed of a size.

    Parameters
    ----------
    job : Job
    first : int
        The size that is measured first.
    now_s : float
    options : Options
    """
    waited = bool(job.goal) and now_s - job.since_s > max(MUTE * options.explore_s, MUTE_S)
    if waited and fixed(job):
        # Without a session it neither reports nor changes its size.
        return True
    # A command that saves by its own means reports nothing. After that it may be given more GPUs,
    # which takes a new attempt.
    more = max(job.most_gpus, total(job.goal)) > first
    return not job.estimate.observed and (more or (waited and job.run.native))


def _seconds(job: Job, gpus: int) -> float:
    """Return the seconds for which the job was measured on this number of GPUs."""
    return sum(each.seconds for each in job.estimate.observed if each.gpus == gpus)


def _part(job: Job, grant: Grant, size: int) -> Grant:
    """Grant the GPUs in use, of those reserved for exploring, on the fewest nodes."""
    names, has = list(grant.alloc), total(grant.alloc)
    for nodes in range(1, len(names) + 1):
        alloc = dict.fromkeys(names[:nodes], size // nodes)
        within = all(gpus <= grant.alloc[name] for name, gpus in alloc.items())
        if total(alloc) == size < has and within and suits(job, alloc):
            why = f"is measured on {named(size)}; {named(has)} are reserved for it"
            return Grant(alloc, Role.SECONDARY, why)
    return grant
