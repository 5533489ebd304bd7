"""The exact division of a resource among jobs.

GPUs, or idle nodes, of one kind are interchangeable, and the objectives of the papers are sums over
jobs of a function of how many a job gets: BFTrainer's Eq. 16, Capes' total time (eq. 6), and
Pollux's power mean, which is monotone in such a sum. So one kernel serves all of them: choose for
each job j a number of units from its own set, which contains 0, so that together they are at most
`total` and the sum of the jobs' values is largest. The values may have any shape.

This is a multiple-choice knapsack problem whose weights are small integers (Kellerer, Pferschy and
Pisinger, *Knapsack Problems*, 2004, chapter 11). The algorithm:

1. The price of a unit, the multiplier of the Lagrangian relaxation, is found by intersecting
   supporting lines of its dual, which is convex and piecewise linear. This is exact after finitely
   many steps.
2. At that price every option has a *loss*: the difference of its value from that of its job's best
   one. The value of a division is the bound of the relaxation, less the losses of its options, less
   the price of each unit that is left over. The latter two are its *cost*.
3. So in a division of cost at most T no option loses more than T. A dynamic programme over the
   remaining options, the *core*, finds the best division, or shows that all cost more than T; then
   T is raised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcext.policies.solve.tables import (
    TOLERANCE,
    Floats,
    Ints,
    Options,
    ValueTable,
    without_extremes,
)

CHANGES = 8
"""Largest number of jobs for which the first division may differ from the best options."""

RAISE = 4.0
"""Factor by which the limit on a division's cost is raised when no division is within it."""

FEW = 200
"""Size of a core that is solved as a whole, since trying a smaller limit first costs as much."""

HEAVIEST = np.iinfo(np.int64).max
"""A number of units larger than that of any option."""


class Division(NamedTuple):
    """The best division.

    Attributes
    ----------
    counts : tuple of int
        Units of each job. Of several best divisions, the one that gives most to the first job, then
        to the second, and so on.
    value : float
        Sum of the jobs' values with these counts.
    bound : float
        An upper bound on the value of any division. It equals `value`, except for rounding.
    price : float
        Value of one more unit if units could be divided: the growth of the relaxation's optimum.
    """

    counts: tuple[int, ...]
    value: float
    bound: float
    price: float


def apportion(tables: Sequence[ValueTable], total: int) -> Division:
    """Divide `total` units among jobs so that the sum of their values is largest.

    The cost grows with the number of options, about thirty passes over them, and with the options
    of the core times the units that these may move. Hard instances (rigid sizes without a best
    price) have large cores; the worst case is all options times `total`.

    Parameters
    ----------
    tables : sequence of ValueTable
        One for each job, in the order in which ties are broken.
    total : int

    Returns
    -------
    Division

    Raises
    ------
    ValueError
        A table is not valid; the message says which one and why.
    """
    if total < 0:
        raise ValueError(f"{total} units cannot be divided")
    if not tables:
        return Division((), 0.0, 0.0, 0.0)
    stated = Options.of(tables, total)
    options = without_extremes(stated)
    price = _price(options, total)
    core = _Core(options, price, total)
    easy = core.easy()
    chosen, cost = core.solve() if easy is None else (easy, 0.0)
    value = math.fsum(stated.values[chosen])
    limit = core.bound - cost
    if options is not stated:
        limit += value - math.fsum(options.values[chosen])
    return Division(tuple(options.sizes[chosen].tolist()), value, limit, price)


def bound(tables: Sequence[ValueTable], total: int) -> float:
    """Return the optimum of the relaxation, an upper bound on any division, without a division.

    Parameters
    ----------
    tables, total
        As for :func:`apportion`.
    """
    if not tables:
        return 0.0
    options = Options.of(tables, total)
    return _Core(options, _price(options, total), total).bound


def _price(options: Options, total: int) -> float:
    """Return the multiplier at which the Lagrangian dual is smallest; 0 if all best options fit.

    The dual is the upper envelope of lines ``value + price * (total - weight)``, one for each
    choice of an option for every job. Two of them, one that falls and one that rises, meet at the
    minimum or below it: the line that is highest there replaces one of the two.
    """
    sizes, values, starts, jobs = options

    def highest(price: float) -> tuple[float, int]:
        """Return the value and weight of the options whose line is highest at a price."""
        reduced = values - price * sizes
        best = np.maximum.reduceat(reduced, starts)
        light = np.where(reduced >= best[jobs], sizes, HEAVIEST)
        weight = int(np.minimum.reduceat(light, starts).sum())
        return float(best.sum()) + price * weight, weight

    value, weight = highest(0.0)
    if weight <= total:
        return 0.0
    low, high = (value, weight), (float(values[starts].sum()), 0)
    while True:
        crossing = (low[0] - high[0]) / (low[1] - high[1])
        value, weight = highest(crossing)
        there = low[0] - crossing * low[1]
        above = value - crossing * weight - there
        # A line that is as high as these two, up to rounding, is one of them.
        if above <= TOLERANCE * abs(there) or not high[1] < weight < low[1]:
            return crossing
        if weight > total:
            low = (value, weight)
        else:
            high = (value, weight)


class _Core:
    """The part of the problem that a price leaves undecided.

    Attributes
    ----------
    losses : array of float, shape (m,)
        Loss of each option; 0 for a job's best ones.
    base : array of int, shape (j,)
        For each job the smallest of its best options, as an index into `options`.
    free : int
        Units that are left over if every job has its base option.
    """

    def __init__(self, options: Options, price: float, total: int) -> None:
        self.options = options
        self.price = price
        self.total = total
        sizes, values, starts, jobs = options
        reduced = values - price * sizes
        best = np.maximum.reduceat(reduced, starts)
        self.bound = float(best.sum()) + price * total
        self.equal = TOLERANCE * max(1.0, float(np.abs(values).max()), abs(self.bound))
        self.losses = best[jobs] - reduced
        self.losses[self.losses <= self.equal] = 0.0
        # Sizes ascend, so the first option without a loss is the smallest.
        order = np.flatnonzero(self.losses == 0.0)
        self.base = order[np.searchsorted(jobs[order], np.arange(len(starts)))]
        self.free = total - int(sizes[self.base].sum())

    def easy(self) -> Ints | None:
        """Give each job in turn its largest best option that fits; None if units are left over.

        Such a division loses nothing. No other one without loss gives more to the first job for
        which they differ, since the later ones had their smallest options.
        """
        sizes, jobs = self.options.sizes, self.options.jobs
        chosen = self.base.copy()
        left = self.free
        more = np.flatnonzero(self.losses == 0.0)
        more = more[more > self.base[jobs[more]]]
        for option in more.tolist():
            # Options come in order, so the last one that fits is a job's largest.
            job = jobs[option]
            takes = int(sizes[option] - sizes[chosen[job]])
            if takes <= left:
                chosen[job] = option
                left -= takes
        return chosen if left == 0 or self.price == 0.0 else None

    def solve(self) -> tuple[Ints, float]:
        """Find the best division and its cost, raising the limit on the cost until one exists."""
        most = self._reached()
        cost = most
        if np.count_nonzero(self.losses <= most) > FEW:
            some = self.losses[self.losses > self.equal]
            least = float(some.min()) if some.size else most
            cost = min(most, max(least, most / RAISE**2))
        while (found := self._within(cost)) is None:
            if cost >= most:
                raise AssertionError("a division that was found is not found again")
            cost = min(most, RAISE * cost)
        return found

    def _reached(self) -> float:
        """Return the cost of a greedy division that differs from the base in a few jobs."""
        sizes, jobs = self.options.sizes, self.options.jobs
        chosen = self.base.copy()
        cost, left = self.price * self.free, self.free
        for _ in range(CHANGES):
            moves = sizes - sizes[chosen][jobs]
            gains = self.price * moves - (self.losses - self.losses[chosen][jobs])
            gains[moves > left] = -math.inf
            best = int(gains.argmax())
            if gains[best] <= self.equal:
                break
            cost, left = cost - float(gains[best]), left - int(moves[best])
            chosen[jobs[best]] = best
        return cost + self.equal

    def _within(self, cost: float) -> tuple[Ints, float] | None:
        """Return the best division and its cost if that is at most `cost`; else None."""
        options = np.flatnonzero(self.losses <= cost + self.equal)
        jobs = self.options.jobs[options]
        several = np.bincount(jobs, minlength=len(self.base))[jobs] > 1
        options, jobs = options[several], jobs[several]
        moves = self.options.sizes[options] - self.options.sizes[self.base[jobs]]
        losses = self.losses[options]
        edges = [0, *(np.flatnonzero(np.diff(jobs)) + 1).tolist(), len(jobs)]
        parts = [
            _Part(options[begin:end], moves[begin:end], losses[begin:end])
            for begin, end in itertools.pairwise(edges)
            if begin < end
        ]
        stages = self._stages(parts, cost)
        best = math.inf if stages is None else stages[0].cheapest(self.free, self.price)
        if stages is None or best > cost + self.equal:
            return None
        return self._walk(parts, stages, best), best

    def _stages(self, parts: Sequence[_Part], cost: float) -> list[_Stage] | None:
        """Return the stages of the dynamic programme: the options of the jobs from each one on."""
        # Bounds on the moves of the jobs before a stage.
        least = np.cumsum([0, *(int(part.moves[0]) for part in parts)])
        most = np.cumsum([0, *(int(part.moves[-1]) for part in parts)])
        idle = self.total
        if cost + self.equal < self.price * self.total:
            idle = math.floor((cost + self.equal) / self.price)
        stages = [_Stage(0, np.zeros(1))]
        for number in range(len(parts) - 1, -1, -1):
            low, high = self.free - idle - int(most[number]), self.free - int(least[number])
            after = stages[-1].before(parts[number], low, high, cost + self.equal)
            if after is None:
                return None
            stages.append(after)
        return stages[::-1]

    def _walk(self, parts: Sequence[_Part], stages: Sequence[_Stage], best: float) -> Ints:
        """Choose, from the first job on, the largest option that still reaches the least cost."""
        chosen: Ints = self.base.copy()
        left, lost = self.free, 0.0
        for part, after in zip(parts, stages[1:], strict=True):
            for option, move, loss in zip(*(each[::-1].tolist() for each in part), strict=True):
                if lost + loss + after.cheapest(left - move, self.price) <= best + self.equal:
                    chosen[self.options.jobs[option]] = option
                    left, lost = left - move, lost + loss
                    break
        return chosen


class _Part(NamedTuple):
    """A job of the core: its options, the move of each from the base, and the loss of each."""

    options: Ints
    moves: Ints
    losses: Floats


class _Stage(NamedTuple):
    """The least loss of some jobs by the sum of their moves, from `first` on; infinite if none."""

    first: int
    losses: Floats

    def before(self, part: _Part, low: int, high: int, most: float) -> _Stage | None:
        """Add one more job, for sums from `low` to `high` and losses of at most `most` only."""
        low = max(low, self.first + int(part.moves[0]))
        high = min(high, self.first + len(self.losses) - 1 + int(part.moves[-1]))
        if low > high:
            return None
        losses = np.full(high - low + 1, math.inf)
        for move, loss in zip(part.moves.tolist(), part.losses.tolist(), strict=True):
            begin, end = (
                max(low, self.first + move),
                min(high + 1, self.first + len(self.losses) + move),
            )
            if begin < end:
                here = losses[begin - low : end - low]
                there = self.losses[begin - move - self.first : end - move - self.first]
                np.minimum(here, there + loss, out=here)
        kept = np.flatnonzero(losses <= most)
        if not len(kept):
            return None
        return _Stage(low + int(kept[0]), losses[kept[0] : kept[-1] + 1])

    def cheapest(self, left: int, price: float) -> float:
        """Return the least cost if `left` units are free; infinite if they are too few."""
        fitting = self.losses[: max(0, left - self.first + 1)]
        if not len(fitting):
            return math.inf
        over = left - self.first - np.arange(len(fitting))
        return float((fitting + price * over).min())
