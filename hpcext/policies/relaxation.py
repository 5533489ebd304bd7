"""The relaxation of the division of several kinds of GPUs: prices of each kind, and a bound.

Part of :mod:`hpcext.policies.kinds`, which says what is divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcext.policies.apportion import TOLERANCE, Floats, Ints, Options, Table

CLOSE = 1e-10
"""The prices are found when their bound is within this part of the relaxation's optimum."""

ROUNDS = 500
"""Prices that are tried at most. Those of any round give a bound; about fifty find the least."""

DAMPING = 0.5
"""How far towards the best prices so far the next ones are drawn, which halves the rounds."""

PIVOT = 1e-9
"""What is less is zero in a column of the linear programme, which counts GPUs."""


class Offers(NamedTuple):
    """The options of all jobs, one after the other: by kind, then by job, then by size.

    Attributes
    ----------
    totals : array of int, shape (t,)
        GPUs of each kind.
    sizes, values : array of float, shape (m,)
    owners : array of int, shape (m,)
        Whose options they are: kind times jobs, plus job.
    starts, lengths : array of int, shape (t * j,)
        Where those of each owner begin, and how many they are: at least that of nothing.
    """

    totals: Ints
    sizes: Floats
    values: Floats
    owners: Ints
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, every: Sequence[Sequence[Table]], totals: Mapping[str, int]) -> Offers:
        """Those that fit into the total of their kind at all."""
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
        """What each option is worth when GPUs have these prices."""
        counts = self.lengths.reshape(len(self.totals), -1).sum(axis=1)
        return self.values - np.repeat(prices, counts) * self.sizes

    def best(self, worth: Floats) -> Floats:
        """The largest value of each owner: shape (t, j)."""
        return np.maximum.reduceat(worth, self.starts).reshape(len(self.totals), -1)

    def first(self, worth: Floats, enough: Floats) -> Ints:
        """The smallest option of each owner that is worth enough; for those that have one."""
        found = np.flatnonzero(worth >= np.repeat(enough.ravel(), self.lengths))
        return found[begins(self.owners[found])]


def begins(owners: Ints) -> Ints:
    """Where the runs of equal numbers begin."""
    return np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]])[: len(owners)])


class _Answer(NamedTuple):
    """The best choice of every job at some prices: a hyperplane that supports the dual.

    Attributes
    ----------
    value : float
        Sum of what the choices are worth, without their price.
    used : array of float, shape (t,)
        How many GPUs of each kind they take.
    kinds : array of int, shape (j,)
        The kind that each job takes; -1 for nothing.
    """

    value: float
    used: Floats
    kinds: Ints


class Dual:
    """The least bound that prices of the kinds give.

    The dual is convex and piecewise linear: the upper envelope of hyperplanes, one for each way to
    choose an option of every job. The lowest point of those that are known, a linear programme with
    a row for each kind and one more, says at which prices to look for the next (Kelley 1960; seen
    from the other side, the decomposition of Dantzig and Wolfe 1960), drawn towards the best ones
    so far (Wentges 1997). With one kind it is the search for the price in
    :mod:`hpcext.policies.apportion`.

    Attributes
    ----------
    prices : array of float, shape (t,)
        Of those that were tried, the ones with the least bound.
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
        """Find all three attributes."""
        # Columns: a GPU of each kind that nobody has, then the answers; each has a share.
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
            # Where the last answer told nothing new, these may be the best prices themselves.
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
        """What every job does at these prices, the smallest of its best options; keep the bound."""
        reduced = self.offers.reduced(prices)
        bests = self.offers.best(reduced)
        kinds, best = bests.argmax(axis=0), bests.max(axis=0)
        chosen = kinds == np.arange(len(prices))[:, np.newaxis]
        sizes = self.offers.sizes[self.offers.first(reduced, np.where(chosen, best, np.inf))]
        # Those of the chosen owners, which are by kind, then by job.
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
    """The simplex method, from a basis that it changes: shares of its columns, and prices of rows.

    The matrices have a row for each kind and are inverted anew at every step: they are tiny.
    """
    equal = TOLERANCE * max(1.0, float(np.abs(worth).max()))
    # Bases with a share of zero can follow each other in a circle: then the last one will do.
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
