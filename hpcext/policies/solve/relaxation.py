"""The relaxation of the division of several kinds of GPUs: prices of each kind, and a bound.

It is a part of :mod:`hpcext.policies.solve.kinds`, which states the problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcext.policies.solve.tables import TOLERANCE, Floats, Ints, Options, ValueTable

CLOSE = 1e-10
"""Relative tolerance of the relaxation's optimum, within which the prices are good enough."""

ROUNDS = 500
"""Largest number of rounds. The prices of any round give a bound; about fifty find the least."""

DAMPING = 0.5
"""The part of the way from the next prices to the best ones so far; it halves the rounds."""

PIVOT = 1e-9
"""Smallest non-zero entry in a column of the linear programme, whose entries are GPUs."""


class Offers(NamedTuple):
    """The options of all jobs, one after the other: by kind, then by job, then by size.

    Attributes
    ----------
    totals : array of int, shape (t,)
        GPUs of each kind.
    sizes, values : array of float, shape (m,)
    owners : array of int, shape (m,)
        Owner of each option: kind times the number of jobs, plus job.
    starts, lengths : array of int, shape (t * j,)
        First option and number of options of each owner: at least the one without GPUs.
    """

    totals: Ints
    sizes: Floats
    values: Floats
    owners: Ints
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, every: Sequence[Sequence[ValueTable]], totals: Mapping[str, int]) -> Offers:
        """Return the options that fit into the total of their kind.

        Parameters
        ----------
        every : sequence of sequence of ValueTable
            The table of each job, for each kind.
        totals : Mapping[str, int]
            Number of GPUs by kind, in the same order.
        """
        parts = []
        for (kind, total), tables in zip(totals.items(), every, strict=True):
            try:
                parts.append(Options.of(tables, total))
            except ValueError as error:
                raise ValueError(f"{kind}: {error}") from None
        lengths = np.concatenate([np.diff(part.starts, append=len(part.sizes)) for part in parts])
        return cls(
            np.array(list(totals.values())),
            np.concatenate([part.sizes for part in parts]).astype(np.float64),
            np.concatenate([part.values for part in parts]),
            np.repeat(np.arange(len(lengths)), lengths),
            np.cumsum(lengths) - lengths,
            lengths,
        )

    def reduced(self, prices: Floats) -> Floats:
        """Return the value of each option less the price of its GPUs."""
        counts = self.lengths.reshape(len(self.totals), -1).sum(axis=1)
        return self.values - np.repeat(prices, counts) * self.sizes

    def best(self, worth: Floats) -> Floats:
        """Return the largest value of each owner, shape (t, j)."""
        return np.maximum.reduceat(worth, self.starts).reshape(len(self.totals), -1)

    def first(self, worth: Floats, enough: Floats) -> Ints:
        """Return the smallest option of each owner that is worth enough, if it has one.

        Parameters
        ----------
        worth : array of float, shape (m,)
            Value of each option.
        enough : array of float, shape (t, j)
            Value that is enough for each owner.
        """
        found = np.flatnonzero(worth >= np.repeat(enough.ravel(), self.lengths))
        return found[begins(self.owners[found])]


def begins(owners: Ints) -> Ints:
    """Return where each run of equal numbers begins."""
    return np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]])[: len(owners)])


class _Answer(NamedTuple):
    """The best choice of every job at some prices: a hyperplane that supports the dual.

    Attributes
    ----------
    value : float
        Sum of the values of the choices, without their price.
    used : array of float, shape (t,)
        GPUs of each kind that they take.
    kinds : array of int, shape (j,)
        The kind that each job takes; -1 for nothing.
    """

    value: float
    used: Floats
    kinds: Ints


class Dual:
    """The least bound by prices of the kinds.

    The dual is convex and piecewise linear: the upper envelope of hyperplanes, one for each way to
    choose an option of every job. The lowest point of the known ones, the solution of a linear
    programme with a row for each kind and one more, is where to look for the next (Kelley 1960;
    seen from the other side, the decomposition of Dantzig and Wolfe 1960), drawn towards the best
    prices so far (Wentges 1997). With one kind it is the search for the price in
    :mod:`hpcext.policies.solve.apportion`.

    Attributes
    ----------
    prices : array of float, shape (t,)
        The prices with the least bound among those tried.
    bound : float
    mixture : list of (float, array of int of shape (j,))
        The optimum of the relaxation: shares, and the kinds of jobs as in :class:`_Answer`.
    """

    def __init__(self, offers: Offers, nothing: Floats) -> None:
        self.offers = offers
        self.prices = np.zeros(len(offers.totals))
        self.bound = math.inf
        self.mixture: list[tuple[float, Ints]] = []
        none = np.full(len(nothing), -1)
        self._known = [_Answer(math.fsum(nothing), np.zeros(len(offers.totals)), none)]

    def solve(self) -> None:
        """Compute the attributes."""
        # Columns: an unused GPU of each kind, then the answers; each has a share.
        count = len(self.prices)
        columns, worth = np.zeros((count + 1, count + 1 + ROUNDS)), np.zeros(count + 1 + ROUNDS)
        columns[:, : count + 1] = np.eye(count + 1)
        worth[count] = self._known[0].value
        basis = list(range(count + 1))
        right = np.append(self.offers.totals, 1.0)
        before = math.inf
        for last in range(count + 1, count + 1 + ROUNDS):
            shares, prices = _lowest(columns[:, :last], worth[:last], right, basis)
            reached = float(prices @ right)
            if self.bound - reached <= CLOSE * max(1.0, abs(reached)):
                break
            drawn = np.maximum(prices[:count], 0.0)
            # If the last answer was not new, these may be the best prices themselves.
            if reached > before:
                drawn = DAMPING * self.prices + (1 - DAMPING) * drawn
            answer, before = self._answer(drawn), reached
            columns[:, last], worth[last] = np.append(answer.used, 1.0), answer.value
            self._known.append(answer)
        self.mixture = [
            (float(share), self._known[column - count].kinds)
            for column, share in zip(basis, shares, strict=True)
            if column >= count and share > 0
        ]

    def _answer(self, prices: Floats) -> _Answer:
        """Choose the smallest best option of every job at these prices; keep the bound if lower."""
        reduced = self.offers.reduced(prices)
        bests = self.offers.best(reduced)
        kinds, best = bests.argmax(axis=0), bests.max(axis=0)
        chosen = kinds == np.arange(len(prices))[:, np.newaxis]
        sizes = self.offers.sizes[self.offers.first(reduced, np.where(chosen, best, np.inf))]
        # The sizes of the chosen owners, by kind, then by job.
        numbers, jobs = np.nonzero(chosen)
        used: Floats = np.bincount(numbers, sizes, len(prices)).astype(np.float64)
        kinds[jobs[sizes == 0]] = -1
        worth = float(best.sum())
        bound = worth + float(prices @ self.offers.totals)
        if bound < self.bound:
            self.bound, self.prices = bound, prices
        return _Answer(worth + float(prices @ used), used, kinds)


def _lowest(
    columns: Floats, worth: Floats, right: Floats, basis: list[int]
) -> tuple[Floats, Floats]:
    """Run the simplex method from a basis, which it changes; return column shares and row prices.

    The matrices have a row for each kind and are inverted at every step, since they are tiny.
    """
    equal = TOLERANCE * max(1.0, float(np.abs(worth).max()))
    # Degenerate bases can cycle; in that case the last one is good enough.
    for _ in range(ROUNDS):
        inverse = np.linalg.inv(columns[:, basis])
        shares, prices = inverse @ right, worth[basis] @ inverse
        gains = worth - prices @ columns
        gains[basis] = 0.0
        entering = int(gains.argmax())
        if gains[entering] <= equal:
            break
        change = inverse @ columns[:, entering]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(change > PIVOT, shares / change, np.inf)
        basis[int(ratios.argmin())] = entering
    return shares, prices
