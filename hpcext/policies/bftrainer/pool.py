"""Free GPUs by class, in the order of preference.

A job that has no nodes of the free classes prefers the first GPUs of that order, and these are
mostly taken first. So the sums over the first 1, 2, 3, ... GPUs are computed once for many queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from hpcext.policies.bftrainer.holes import Floats, Holes, Ints

AHEAD = 4
"""The multiple of the requested GPUs for which sums are computed."""


class PoolPart(NamedTuple):
    """Some GPUs: how many are there in each piece of time, and the log probability of no stall.

    Both have the shape (k,) or (k, n).
    """

    alive: Floats
    calm: Floats


def run_of(
    holes: Holes, rank: Ints, counts: Ints, most: int, but: Collection[int] = frozenset()
) -> PoolPart:
    """Return sums over the first 0, 1, 2, ... GPUs of some classes.

    Parameters
    ----------
    holes : Holes
    rank : array of int, shape (n,)
        Classes, in order.
    counts : array of int, shape (n,)
        GPUs of each class.
    most : int
        Largest number of GPUs to sum over.
    but : collection of int
        Classes whose departure costs no stall.

    Returns
    -------
    PoolPart
        Of shape (k, `most` + 1), or less if there are fewer GPUs.
    """
    which = np.repeat(rank, counts)[:most]
    alive = np.zeros((holes.stays.shape[1], len(which) + 1))
    np.cumsum(holes.stays[which].T, axis=1, out=alive[:, 1:])
    calm = np.zeros_like(alive)
    begins = 1 + np.cumsum(counts) - counts
    new = begins <= len(which)
    if but:
        new &= [at not in but for at in rank.tolist()]
    calm[:, begins[new]] = holes.calm[rank[new]].T
    return PoolPart(alive, np.cumsum(calm, axis=1, out=calm))


class Pool:
    """The free GPUs.

    Parameters
    ----------
    holes : Holes
    order : array of int, shape (c,)
        All classes, the most preferred first.
    counts : array of int, shape (c,)
        GPUs of each class.

    Attributes
    ----------
    left : int
        Number of free GPUs.
    """

    def __init__(self, holes: Holes, order: Ints, counts: Ints) -> None:
        self._holes = holes
        self._rank = order[counts[order] > 0]
        self._counts = counts.copy()
        self.left = int(counts.sum())
        # The number of leading classes that are empty, and of leading GPUs that are taken.
        self._gone = self._past = 0
        self._sums: PoolPart | None = None

    def holds(self, classes: Collection[int]) -> bool:
        """Return whether there are free GPUs of these classes."""
        return bool(self._own(classes))

    def first(self, more: Ints, mine: Collection[int] = ()) -> PoolPart:
        """Return sums over the first GPUs that a job prefers.

        Classes that it already has come first, since they cost it no further stall; the order of
        the pool follows.

        Parameters
        ----------
        more : array of int, shape (n,)
            Numbers of GPUs, at least 1 and at most the number of free ones.
        mine : collection of int
            Classes of which the job has nodes.

        Returns
        -------
        PoolPart
            Of shape (k, n).
        """
        own = self._own(mine)
        most = int(more.max())
        if own:
            rank = np.fromiter(itertools.islice(self._wanted(own), most), dtype=np.int64)
            run = run_of(self._holes, rank, self._counts[rank], most, own)
            return PoolPart(run.alive[:, more], run.calm[:, more])
        sums = self._sums
        if sums is None or self._past + most >= sums.alive.shape[1]:
            rank = self._rank[self._gone :]
            self._past = 0
            sums = self._sums = run_of(self._holes, rank, self._counts[rank], AHEAD * most)
        past = self._past
        at = more + past
        alive = sums.alive[:, at] - sums.alive[:, past, None]
        # The departure of the first GPU's class costs a stall again.
        begins = sums.calm[:, past + 1] - self._holes.calm[self._rank[self._gone]]
        return PoolPart(alive, sums.calm[:, at] - begins[:, None])

    def take(self, gpus: int, mine: Mapping[int, int]) -> dict[int, int]:
        """Give GPUs to a job, in the same order.

        Parameters
        ----------
        gpus : int
            Their number.
        mine : Mapping[int, int]
            The job's GPUs by class.

        Returns
        -------
        dict[int, int]
            The job's GPUs by class afterwards.
        """
        self.left -= gpus
        has = dict(mine)
        own = self._own(mine)
        for at in self._wanted(own):
            some = min(gpus, int(self._counts[at]))
            self._counts[at] -= some
            has[at] = has.get(at, 0) + some
            gpus -= some
            self._past += some
            if not gpus:
                break
        if own:
            self._sums = None
        while self._gone < len(self._rank) and not self._counts[self._rank[self._gone]]:
            self._gone += 1
        return has

    def _own(self, mine: Collection[int]) -> list[int]:
        return [at for at in mine if self._counts[at]]

    def _wanted(self, own: Collection[int]) -> Iterator[int]:
        yield from own
        for at in self._rank[self._gone :].tolist():
            if self._counts[at] and at not in own:
                yield at
