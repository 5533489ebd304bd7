"""Pollux's genetic search over allocation matrices, the reference for exact methods.

Pollux (section 4.2) searches for the allocation matrix A, with A[j, n] GPUs of node n for job j,
whose FITNESS is largest: the power mean of the jobs' SPEEDUPs (eq. 14), each multiplied by a factor
if its job would be re-allocated. Different distributed jobs, which have GPUs of several nodes, must
not share a node: they would slow each other down on the network (interference avoidance).

By the paper, the search perturbs, combines and finally repairs matrices (section 4.3).
The operators are those of the authors' published simulator (petuum/adaptdl,
``simulator/pollux.py``: 100 matrices, 100 generations). Four things differ:

- It has the utilisation of the cluster as a second objective, which the paper does not mention;
  here only the fitness counts.
- A second distributed job that comes to a node takes it from all later jobs there; here from the
  later distributed ones only, as in the paper.
- It begins with the last population of the round before; here each search begins with the present
  allocation.
- It adds 0.001 to a job's speedup after the factor, and gives a job 16 nodes at most; here the
  caller gives speedups a lower limit, and jobs a largest number of GPUs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CROSSED = 0.9
"""Share of pairs of parents that exchange jobs (default of pymoo 0.4, which the authors use)."""

RESET = 0.1
"""Probability that a job returns to its present allocation."""

THINNED, REMOVED = 0.1, 0.1
"""Probability that a job loses GPUs; and, for such a job, that it loses those of a given node."""


def evaluate(
    allocations: Ints, speedups: Floats, current: Ints, factors: Floats, p: float
) -> Floats:
    """Return the FITNESS of allocations: the power mean of their jobs' speedups (eq. 14).

    Parameters
    ----------
    allocations : array of int, shape (..., j, n)
        GPUs of each node for each job; one matrix or any number of them.
    speedups : array of float, shape (j, k + 1, 2)
        SPEEDUP (eq. 15) of each job with 0 to k GPUs, [:, :, 0] on one node and [:, :, 1] on
        several; not negative. With p <= 0 one speedup of 0 makes the fitness 0, so use a lower
        limit.
    current : array of int, shape (j, n)
        The present allocation.
    factors : array of float, shape (j,)
        REALLOC_FACTOR of each job: multiplies its speedup unless it has the same GPUs as now. The
        authors also multiply that of a job that has nothing now; a factor of 1 avoids that.
    p : float
        1 for the arithmetic mean, 0 for the geometric, -1 (the paper's) for the harmonic.

    Returns
    -------
    array of float, shape (...)
    """
    counts, several = allocations.sum(axis=-1), np.count_nonzero(allocations, axis=-1) > 1
    found = speedups[np.arange(len(speedups)), counts, several.astype(np.int64)]
    found = np.where((allocations != current).any(axis=-1), found * factors, found)
    # A speedup of 0 has the logarithm -inf and the reciprocal inf: both make the mean 0.
    with np.errstate(divide="ignore"):
        if p == 0:
            return np.asarray(np.exp(np.log(found).mean(axis=-1)))
        return np.asarray((found**p).mean(axis=-1) ** (1 / p))


def search(
    speedups: Floats,
    capacity: Ints,
    current: Ints,
    factors: Floats,
    p: float,
    *,
    most: Ints,
    rng: np.random.Generator,
    population: int = 100,
    generations: int = 100,
) -> Ints:
    """Search for the allocation of largest fitness.

    The cost grows with jobs times nodes times `population` times `generations`.

    Parameters
    ----------
    speedups, current, factors, p
        As in :func:`evaluate`. Where jobs compete for a node, the first ones win (the authors put
        those first that have had the least). The present allocation need not fit.
    capacity : array of int, shape (n,)
        GPUs of each node.
    most : array of int, shape (j,)
        Largest number of GPUs of each job. (Pollux: twice the most that it has had.)
    rng : numpy.random.Generator
    population, generations : int
        Number of matrices that are kept, and how often as many new ones are made; positive.

    Returns
    -------
    array of int, shape (j, n)
        It fits, and its fitness is not less than that of `current` if that fits.
    """
    now = np.minimum(current, capacity)
    kept = _repaired(current[np.newaxis].astype(np.int64), capacity, most, rng)
    fitness = evaluate(kept, speedups, current, factors, p)
    for _ in range(generations):
        new = _mutated(_children(kept, fitness, population, rng), now, capacity, rng)
        new = _unlike(_repaired(new, capacity, most, rng), kept)
        kept = np.concatenate([kept, new])
        fitness = np.append(fitness, evaluate(new, speedups, current, factors, p))
        best = np.argsort(-fitness, kind="stable")[:population]
        kept, fitness = kept[best], fitness[best]
    found: Ints = kept[0]
    return found


def fits(allocations: Ints, capacity: Ints, most: Ints) -> Flags:
    """Return whether nodes and jobs have room, and no two distributed jobs share a node.

    Parameters
    ----------
    allocations : array of int, shape (..., j, n)
    capacity : array of int, shape (n,)
    most : array of int, shape (j,)

    Returns
    -------
    array of bool, shape (...)
    """
    room = (allocations.sum(axis=-2) <= capacity).all(axis=-1)
    small = (allocations.sum(axis=-1) <= most).all(axis=-1)
    alone = (_distributed(allocations).sum(axis=-2) <= 1).all(axis=-1)
    found: Flags = np.asarray(room & small & alone & (allocations >= 0).all(axis=(-2, -1)))
    return found


def _distributed(allocations: Ints) -> Flags:
    """Return the mask of entries that belong to jobs on several nodes."""
    used = allocations > 0
    found: Flags = used & (used.sum(axis=-1, keepdims=True) > 1)
    return found


def _children(kept: Ints, fitness: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Make new matrices: two parents, each the fitter of two, exchange jobs before a point."""
    pairs = (count + 1) // 2
    rivals = rng.integers(len(kept), size=(2, 2, pairs))
    one, two = np.where(fitness[rivals[0]] >= fitness[rivals[1]], rivals[0], rivals[1])
    jobs = kept.shape[1]
    points = np.where(rng.random(pairs) < CROSSED, rng.integers(jobs, size=pairs), 0)
    swap = (np.arange(jobs) < points[:, np.newaxis])[..., np.newaxis]
    first, second = kept[one], kept[two]
    both = [np.where(swap, second, first), np.where(swap, first, second)]
    return np.concatenate(both)[:count]


def _mutated(new: Ints, now: Ints, capacity: Ints, rng: np.random.Generator) -> Ints:
    """Restore the present GPUs of some jobs, take GPUs from some, and give some more."""
    reset = rng.random(new.shape[:2]) < RESET
    new = np.where(reset[..., np.newaxis], now, new)
    thinned = np.nonzero(rng.random(new.shape[:2]) < THINNED)
    rows = new[thinned]
    rows[rng.random(rows.shape) < REMOVED] = 0
    new[thinned] = rows
    # On average, one job gets GPUs of a node that has free ones, and one of the jobs on it does.
    free = (new.sum(axis=1) < capacity)[:, np.newaxis]
    here = (new > 0) & free
    any_ = free / new.shape[1]
    some = here / np.maximum(here.sum(axis=1, keepdims=True), 1)
    grown = np.nonzero(rng.random(new.shape) < any_ + some - any_ * some)
    new[grown] = rng.integers(new[grown], capacity[grown[2]], endpoint=True)
    return new


def _repaired(new: Ints, capacity: Ints, most: Ints, rng: np.random.Generator) -> Ints:
    """Make matrices fit: the first distributed job keeps a node, the first jobs their GPUs."""
    distributed = _distributed(new)
    new[distributed & (distributed.cumsum(axis=1) > 1)] = 0
    large = np.nonzero(new.sum(axis=2) > most)
    rows = new[large]
    # Nodes are in random order, so that the last ones do not always lose.
    order = rng.permuted(np.broadcast_to(np.arange(rows.shape[1]), rows.shape), axis=1)
    rows = np.take_along_axis(rows, order, axis=1)
    rows = _clipped(rows, most[large[1], np.newaxis], axis=1)
    np.put_along_axis(rows, order, rows.copy(), axis=1)
    new[large] = rows
    return _clipped(new, capacity, axis=1)


def _clipped(counts: Ints, limits: Ints, axis: int) -> Ints:
    """Limit sums of counts: the first ones keep theirs, the rest get 0."""
    found: Ints = np.diff(np.minimum(counts.cumsum(axis=axis), limits), axis=axis, prepend=0)
    return found


def _unlike(new: Ints, kept: Ints) -> Ints:
    """Return each new matrix that is not among those kept, once."""
    seen = {each.tobytes() for each in kept}
    found = []
    for number, each in enumerate(new):
        key = each.tobytes()
        if key not in seen:
            seen.add(key)
            found.append(number)
    return new[found]
