"""Pollux with the paper's search: from jobs to matrices, and from the result to a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcext.core.values import Alloc, Snapshot, Target, total
from hpcext.policies.common import fixed, free_beside, keep, kinds_of, no_room
from hpcext.policies.placement.candidates import Candidate, Counts, On, Values, asks_of, only
from hpcext.policies.placement.divide import granted
from hpcext.policies.placement.place import Shape
from hpcext.policies.pollux import genetic
from hpcext.policies.pollux.fitness import SharedCluster, allowed, floor, realloc, speedups
from hpcext.scaling.estimator import GpuCounts


def searched(now: Snapshot, p: float, delay_s: float, seed: int) -> Target:
    """Return the target of the paper's genetic search.

    The search may spread a job's GPUs in any way; the job takes the fastest of its shapes that fits
    into them. A job that states no nodes (:class:`~hpcext.core.values.Job`) takes all, as in the
    paper.

    Parameters
    ----------
    now : Snapshot
    p : float
        Power of the mean.
    delay_s : float
        Seconds that a re-allocation costs a job whose own cost is not known.
    seed : int
    """
    have = keep(now)
    kept = {job.id: grant for job in now.jobs if (grant := have.get(job.id)) and fixed(job)}
    free = free_beside(now, kept)
    every = asks_of(now, kept)
    able = [_any_size(ask, now) for ask in every if ask.shapes]
    asks = allowed(able)
    if not asks:
        return Target(kept, {ask.job.id: no_room(ask.job) for ask in every})
    market = matrices(now, asks, p, delay_s, [max(ask.shapes) for ask in able])
    rng = np.random.default_rng(seed)
    capacity = np.array(list(free.values()))
    found = genetic.search(**market._asdict(), capacity=capacity, p=p, rng=rng)
    grants = dict(kept)
    for ask, row in zip(asks, found, strict=True):
        alloc = _shaped(ask, dict(zip(free, row.tolist(), strict=True)), now)
        if alloc:
            grants[ask.job.id] = granted(ask.job, alloc, total(alloc), now)
    why = "the search found nothing for it"
    return Target(grants, {ask.job.id: why for ask in every if ask.job.id not in grants})


class Market(NamedTuple):
    """The arguments of :func:`hpcext.policies.pollux.genetic.search`."""

    speedups: Values
    current: Counts
    factors: Values
    most: Counts


def matrices(
    now: Snapshot, asks: Sequence[Candidate], p: float, delay_s: float, most: Sequence[int]
) -> Market:
    """Build the arguments of the genetic search: speed-ups by GPUs, on one node and on several.

    `most` is what each job could use without exploration, so that all its speed-ups are relative
    to the same share.

    Parameters
    ----------
    now : Snapshot
    asks : sequence of Candidate
    p : float
        Power of the mean.
    delay_s : float
        Seconds that a re-allocation costs a job whose own cost is not known.
    most : sequence of int
        GPUs of each candidate.
    """
    machine = SharedCluster.of(now)
    counts, widest = np.arange(sum(machine.gpus.values()) + 1), machine.widest
    one = (counts > 0).astype(np.int64)
    several = np.maximum(2, -(-counts // widest))
    kind = only(kinds_of(now))
    tables = [
        np.stack(
            [
                speedups(ask.job, GpuCounts(counts, nodes), machine, kind, each)
                for nodes in (one, several)
            ],
            axis=-1,
        )
        for ask, each in zip(asks, most, strict=True)
    ]
    for table, ask in zip(tables, asks, strict=True):
        if ask.job.nodes is None:
            table[counts > widest, 0] = 0.0
            continue
        nodes = [shape.nodes for shape in ask.shapes.values()]
        table[:, 0] *= (counts <= widest) & (min(nodes) == 1)
        table[:, 1] *= max(nodes) > 1
        table[counts < next(iter(ask.shapes))] = 0.0
    found = [
        speedups(ask.job, _packed(ask, widest), machine, kind, each)
        for ask, each in zip(asks, most, strict=True)
    ]
    # Sizes on any kind, because the matrices do not distinguish kinds.
    alike = [ask._replace(by_kind={}) for ask in asks]
    lowest = floor(alike, found, kind, int(counts[-1]), p)
    goals = [ask.job.goal or {} for ask in asks]
    nothing = GpuCounts(np.array([0]), np.array([0]))
    factors = [float(realloc(ask.job, nothing, now.now_s, delay_s, On())[0]) for ask in asks]
    return Market(
        np.maximum(lowest, np.array(tables)),
        np.array([[goal.get(node, 0) for node in now.nodes] for goal in goals]),
        np.array(factors),
        np.array([max(ask.shapes) for ask in asks]),
    )


def _any_size(ask: Candidate, now: Snapshot) -> Candidate:
    """Allow all sizes to a job whose GPUs may be spread in any way."""
    if ask.job.nodes is not None:
        return ask
    every = sum(node.gpus for node in now.nodes.values())
    # As if on one node: the search itself decides how they are spread.
    shapes = {size: Shape(size, 1) for size in ask.job.sizes if size <= every}
    return ask._replace(shapes=shapes, by_kind={})


def _packed(ask: Candidate, widest: int) -> GpuCounts:
    """Return the sizes of a job, each on as few nodes as possible."""
    if ask.job.nodes is not None:
        return ask.sizes
    return GpuCounts(ask.sizes.gpus, -(-ask.sizes.gpus // widest))


def _shaped(ask: Candidate, row: Alloc, now: Snapshot) -> Alloc:
    """Return the largest shape within what the search gave a job, on nodes of one kind."""
    if ask.job.nodes is None:
        return _trimmed(ask, {node: gpus for node, gpus in row.items() if gpus})
    for shape in reversed(list(ask.shapes.values())):
        for kind in kinds_of(now):
            here = (node for node in row if now.nodes[node].kind == kind)
            able = [node for node in here if row[node] >= shape.gpus]
            if len(able) >= shape.nodes:
                return dict.fromkeys(able[: shape.nodes], shape.gpus)
    return {}


def _trimmed(ask: Candidate, row: dict[str, int]) -> Alloc:
    """Return as much of what the search gave a job as it may have, without the smallest parts."""
    more = total(row) - ask.most(total(row))
    for node in sorted(row, key=row.__getitem__):
        less = min(more, row[node])
        row[node] -= less
        more -= less
    return {node: gpus for node, gpus in row.items() if gpus}
