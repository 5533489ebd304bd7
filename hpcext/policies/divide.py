"""Policies that say what GPUs are worth to each job: the best division, and a place for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, Target, per_node, total
from hpcext.policies.apportion import Table, apportion
from hpcext.policies.common import ONE_NODE, fixed, keep, largest, named
from hpcext.policies.place import Shape, Wish, place
from hpcext.scaling.speed import speedups

Counts = NDArray[np.int64]
Values = NDArray[np.float64]

Worth = Callable[[Job, Counts], Values]
"""What each of several counts of GPUs, the first one 0, is worth to a job."""


def divide(now: Snapshot, worth: Worth) -> Target:
    """Give GPUs to jobs so that the sum of what they are worth is largest.

    Counts are the best (:mod:`hpcext.policies.apportion`); where nodes have no room for one
    (:mod:`hpcext.policies.place`) its job gets less. Jobs whose size cannot be changed now keep it.
    """
    grants = {job.id: grant for job, grant in _kept(now) if fixed(job)}
    free = {name: node.gpus for name, node in now.nodes.items()}
    for grant in grants.values():
        for node, gpus in grant.alloc.items():
            free[node] -= gpus
    jobs = [job for job in now.jobs if job.ready and job.id not in grants]
    choices = [_choice(job, now) for job in jobs]
    tables = []
    for job, choice in zip(jobs, choices, strict=True):
        counts = np.array([0, *choice], dtype=np.int64)
        tables.append(Table(counts, worth(job, counts)))
    division = apportion(tables, sum(free.values()))
    chosen = [
        (job, count, choice, table)
        for job, count, choice, table in zip(jobs, division.counts, choices, tables, strict=True)
        if count
    ]
    wishes = [
        Wish(choice[count], functools.partial(_less, choice, table, count), job.goal or {})
        for job, count, choice, table in chosen
    ]
    for (job, count, _, _), alloc in zip(chosen, place(free, wishes), strict=True):
        if alloc:
            grants[job.id] = _grant(job, alloc, count, now)
    waits = {
        job.id: "the GPUs are worth more to other jobs" for job in jobs if job.id not in grants
    }
    return Target(grants, waits)


def speeds(job: Job, counts: Counts) -> Values:
    """How many times as fast as on one GPU a job is.

    Of a job of which nothing is known it is believed that more GPUs help up to its best size.
    """
    known = speedups(job.estimate, counts)
    if known is not None:
        return known
    return np.minimum(counts, job.optimal * (job.nodes or ONE_NODE)[1]).astype(np.float64)


def _kept(now: Snapshot) -> list[tuple[Job, Grant]]:
    """Jobs that have a grant, and it."""
    grants = keep(now)
    return [(job, grants[job.id]) for job in now.jobs if job.id in grants]


def _choice(job: Job, now: Snapshot) -> Mapping[int, Shape]:
    """What a job may have: GPUs in all → how they are spread."""
    widest = max((node.gpus for node in now.nodes.values()), default=0)
    fewest, most = job.nodes or ONE_NODE
    return _shapes(job.sizes, fewest, min(most, len(now.nodes)), widest)


@functools.lru_cache(maxsize=1024)
def _shapes(sizes: tuple[int, ...], fewest: int, most: int, widest: int) -> Mapping[int, Shape]:
    """By their totals, ascending; of those with one total, that on the fewest nodes."""
    found: dict[int, Shape] = {}
    for nodes in range(fewest, most + 1):
        for gpus in sizes:
            if gpus <= widest:
                found.setdefault(gpus * nodes, Shape(gpus, nodes))
    return dict(sorted(found.items()))


def _less(choice: Mapping[int, Shape], table: Table, count: int) -> list[Shape]:
    """Smaller shapes that are worth something, the best first."""
    worth = dict(zip(table.sizes.tolist(), table.values.tolist(), strict=True))
    smaller = [size for size in choice if size < count and worth[size] > worth[0]]
    return [choice[size] for size in sorted(smaller, key=worth.__getitem__, reverse=True)]


def _grant(job: Job, alloc: Alloc, count: int, now: Snapshot) -> Grant:
    best = max(largest(job, min(job.optimal, now.nodes[node].gpus)) for node in alloc)
    role = Role.PRIMARY if per_node(alloc) >= best else Role.SECONDARY
    has = total(alloc)
    why = f"runs on {named(has)}, its part of the best division"
    if has < count:
        why = f"runs on {named(has)} of {count}: no node has room for more"
    return Grant(alloc, role, why)
