"""The division of GPUs of several kinds among jobs that each take one kind.

Unequal GPUs are separate resources: the value of a job depends on the kind, and a job does not span
two of them. The question is which kind each job gets, and how many of it, so that the sum of the
jobs' values is largest.

That is a multiple-choice knapsack in as many dimensions as there are kinds (Kellerer, Pferschy and
Pisinger, *Knapsack Problems*, 2004, chapters 9 and 11), which is hard, unlike that with one kind
(:mod:`hpcext.policies.solve.apportion`). So the result comes with a bound:

1. The prices of a GPU of each kind, the multipliers of the Lagrangian relaxation, are those with
   the
   least bound (:mod:`hpcext.policies.solve.relaxation`). No division is worth more than that.
2. The relaxation mixes a few ways to choose a kind for every job, which differ in few jobs. These
   jobs are assigned in the shares of the mixture; each kind is then divided exactly.
3. An option's *loss* is the difference of its value, at the prices, from that of its job's best
   one.
   A division is below the bound by the losses of its options and the price of what is left over. So
   a better one has no option whose loss exceeds the gap to the bound: few are left, and among them
   jobs change their kind as long as that gains.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.relaxation import Dual, Offers, begins
from hpcext.policies.solve.tables import TOLERANCE, Floats, Ints, ValueTable

TRIES = 100
"""Largest number of changes of kind to try, of one job or of two at once."""

Change = tuple[tuple[int, int], ...]
"""Jobs with the kinds that they change to."""


class KindDivision(NamedTuple):
    """A division of several kinds.

    Attributes
    ----------
    choices : tuple of (str, int)
        Kind and number of GPUs of each job; ``("", 0)`` for none.
    value : float
        Sum of the jobs' values with these.
    bound : float
        An upper bound on the value of any division.
    """

    choices: tuple[tuple[str, int], ...]
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """The most by which the best division may exceed this one, in the unit of the values."""
        return max(0.0, self.bound - self.value)


def share(tables: Sequence[Mapping[str, ValueTable]], totals: Mapping[str, int]) -> KindDivision:
    """Divide GPUs of several kinds among jobs so that the sum of their values is large.

    With one kind this is :func:`apportion`, and exact; with several, the result states how far it
    may be from the best. The cost grows with the number of options, about fifty passes over them,
    and with the exact divisions of the core, two for each change of kind that is tried.

    Parameters
    ----------
    tables : sequence of mapping from str to ValueTable
        For each job and kind, its value by the number of GPUs; the value of 0 is the same for all
        kinds. A job cannot use a kind that it does not name. The order of jobs and kinds breaks
        ties, as far as exact divisions and equal kinds go.
    totals : mapping from str to int
        Number of GPUs by kind, in order.

    Returns
    -------
    KindDivision

    Raises
    ------
    ValueError
        A table is not valid, or a job names no kind or an unknown one, or has different values of 0
        on two kinds.
    """
    for kind, total in totals.items():
        if total < 0:
            raise ValueError(f"{kind}: {total} GPUs cannot be divided")
    nothing = _nothing(tables, totals)
    if not tables:
        return KindDivision((), 0.0, 0.0)
    every = [_of_kind(tables, kind, nothing) for kind in totals]
    offers = Offers.of(every, totals)
    if len(totals) == 1:
        return _divided(every, totals, np.zeros(len(tables), dtype=np.int64))
    dual = Dual(offers, nothing)
    dual.solve()
    search = _Search(offers, dual)
    found = _divided(every, totals, search.kinds)
    if search.improve(found.value):
        found = _divided(every, totals, search.kinds)
    return found._replace(bound=max(dual.bound, found.value))


def _divided(
    every: Sequence[Sequence[ValueTable]], totals: Mapping[str, int], kinds: Ints
) -> KindDivision:
    """Divide each kind exactly among the jobs that will have it."""
    choices = [("", 0)] * len(kinds)
    value = bound = 0.0
    for number, (kind, total) in enumerate(totals.items()):
        jobs = np.flatnonzero(kinds == number).tolist()
        division = apportion([every[number][job] for job in jobs], total)
        value, bound = value + division.value, bound + division.bound
        for job, count in zip(jobs, division.counts, strict=True):
            choices[job] = (kind, count) if count else ("", 0)
    return KindDivision(tuple(choices), value, max(bound, value))


def _nothing(tables: Sequence[Mapping[str, ValueTable]], totals: Mapping[str, int]) -> Floats:
    """Return the value of each job with no GPU."""
    found = np.zeros(len(tables))
    for job, offer in enumerate(tables):
        if unknown := [kind for kind in offer if kind not in totals]:
            valid = ", ".join(totals)
            raise ValueError(
                f"job {job}: {unknown[0]!r} is not a kind of GPU; known kinds: {valid}"
            )
        if not offer:
            raise ValueError(f"job {job} names no kind of GPU; known kinds: {', '.join(totals)}")
        firsts = {
            kind: float(table.values[0]) for kind, table in offer.items() if len(table.values)
        }
        found[job] = next(iter(firsts.values()), 0.0)
        for kind, first in firsts.items():
            if first != found[job]:
                has = f"{first} on {kind} and {found[job]} on {next(iter(firsts))}"
                raise ValueError(f"job {job}: with no GPU it is worth {has}, not the same")
    return found


def _of_kind(
    tables: Sequence[Mapping[str, ValueTable]], kind: str, nothing: Floats
) -> list[ValueTable]:
    """Return the tables of all jobs for one kind."""
    none = np.zeros(1, dtype=np.int64)
    return [
        offer.get(kind) or ValueTable(none, nothing[job : job + 1])
        for job, offer in enumerate(tables)
    ]


class _Core(NamedTuple):
    """The options of a kind that a better division may have.

    Attributes
    ----------
    total : int
    sizes, values, losses, jobs : array, shape (m,)
    """

    total: int
    sizes: Ints
    values: Floats
    losses: Floats
    jobs: Ints

    def value(self, members: NDArray[np.bool_]) -> float:
        """Return the value of the best division among these jobs; -inf if they do not fit."""
        kept = members[self.jobs]
        sizes, values, jobs = self.sizes[kept], self.values[kept], self.jobs[kept]
        firsts = begins(jobs)
        free = self.total - int(sizes[firsts].sum())
        if len(firsts) < np.count_nonzero(members) or free < 0:
            return -math.inf
        # Every job has its smallest option; divide what larger options add.
        tables, alone = [], []
        for begin, end in itertools.pairwise([*firsts.tolist(), len(jobs)]):
            if end - begin > 1:
                tables.append(ValueTable(sizes[begin:end] - sizes[begin], values[begin:end]))
            else:
                alone.append(values[begin])
        return apportion(tables, free).value + math.fsum(alone)


class _Search:
    """A search over the kind of each job.

    Attributes
    ----------
    kinds : array of int, shape (j,)
        Index of the present kind of each job.
    """

    def __init__(self, offers: Offers, dual: Dual) -> None:
        self.offers = offers
        self.bound = dual.bound
        reduced = offers.reduced(dual.prices)
        best = np.tile(offers.best(reduced).max(axis=0), len(offers.totals))
        self.losses = np.repeat(best, offers.lengths) - reduced
        self.kinds = self._assigned(dual.mixture)

    def _assigned(self, mixture: Sequence[tuple[float, Ints]]) -> Ints:
        """Assign each job one of its kinds in the mixture, so that all kinds get their shares.

        The largest jobs come first, each to the kind that has got the smallest part of its share so
        far. A job that gets nothing goes to the kind whose GPUs would cost it the least loss.
        """
        some = np.where(self.offers.sizes > 0, -self.losses, -np.inf)
        least = self.offers.best(some)
        sizes = self.offers.sizes[self.offers.first(some, least)].reshape(least.shape)
        parts = np.zeros(least.shape)
        for part, kinds in mixture:
            jobs = np.flatnonzero(kinds >= 0)
            parts[kinds[jobs], jobs] += part
        found: Ints = np.where(parts.any(axis=0), parts.argmax(axis=0), least.argmax(axis=0))
        loads = parts * sizes
        several = np.flatnonzero((parts > 0).sum(axis=0) > 1)
        left = loads[:, several].sum(axis=1)
        for job in several[np.argsort(-loads[:, several].sum(axis=0), kind="stable")].tolist():
            found[job] = np.where(parts[:, job] > 0, left, -np.inf).argmax()
            left[found[job]] -= sizes[found[job], job]
        return found

    def improve(self, value: float) -> bool:
        """Change kinds as long as that gains, starting from `value`; return whether any did."""
        tries, better = itertools.count(1), False
        while gain := self._step(self.bound - value, tries):
            value, better = value + gain, True
        return better

    def _step(self, most: float, tries: Iterator[int]) -> float:
        """Make the first change that gains; return its gain, or 0 if none does.

        Parameters
        ----------
        most : float
            The most that the options of a better division may lose in all.
        """
        equal = TOLERANCE * max(1.0, abs(self.bound))
        if most <= equal:
            return 0.0
        # The losses of the present division must be within it, up to rounding.
        most += equal
        cores = self._cores(most)
        found: dict[tuple[int, bytes], float] = {}

        def value(kind: int, kinds: Ints) -> float:
            members = kinds == kind
            key = kind, members.tobytes()
            if key not in found:
                found[key] = cores[kind].value(members)
            return found[key]

        for change in self._changes(cores, most):
            if next(tries) > TRIES:
                break
            kinds = self.kinds.copy()
            for job, kind in change:
                kinds[job] = kind
            touched = {int(each[job]) for job, _ in change for each in (kinds, self.kinds)}
            gain = sum(value(kind, kinds) - value(kind, self.kinds) for kind in sorted(touched))
            if gain > equal:
                self.kinds = kinds
                return gain
        return 0.0

    def _cores(self, most: float) -> list[_Core]:
        """Return for each kind the options with at most this loss."""
        kept = np.flatnonzero(self.losses <= most)
        kinds, jobs = np.divmod(self.offers.owners[kept], len(self.kinds))
        edges = np.searchsorted(kinds, np.arange(len(self.offers.totals) + 1)).tolist()
        return [
            _Core(
                int(self.offers.totals[number]),
                self.offers.sizes[kept[begin:end]].astype(np.int64),
                self.offers.values[kept[begin:end]],
                self.losses[kept[begin:end]],
                jobs[begin:end],
            )
            for number, (begin, end) in enumerate(itertools.pairwise(edges))
        ]

    def _changes(self, cores: Sequence[_Core], most: float) -> Iterator[Change]:
        """Yield changes of one job's kind, then of two jobs' at once, the least loss first."""
        least: dict[tuple[int, int], float] = {}
        for number, core in enumerate(cores):
            other = np.flatnonzero((core.sizes > 0) & (self.kinds[core.jobs] != number))
            for job, loss in zip(
                core.jobs[other].tolist(), core.losses[other].tolist(), strict=True
            ):
                least[job, number] = min(loss, least.get((job, number), math.inf))
        single = []
        alike: Counter[tuple[float, int, int]] = Counter()
        for job, kind in sorted(least, key=least.__getitem__):
            # Jobs with the same loss are alike, and a change needs at most two of them.
            same = least[job, kind], int(self.kinds[job]), kind
            alike[same] += 1
            if alike[same] <= 2:
                single.append((job, kind))
        yield from ((change,) for change in single)
        double = (
            (least[one] + least[two], one, two)
            for one, two in itertools.combinations(single[:TRIES], 2)
            if one[0] != two[0]
        )
        yield from ((one, two) for loss, one, two in sorted(double) if loss <= most)
