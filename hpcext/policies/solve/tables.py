"""The values of jobs by the number of their units, laid out in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.scaling.identity import by_identity

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TOLERANCE = 1e-12
"""Relative tolerance: values that differ by less than this part of the largest one are equal."""

ABSURD = 1e9
"""Factor by which one job's differences in value may exceed those of others without rounding the
latter away."""


class ValueTable(NamedTuple):
    """The value of a job by the number of its units.

    Attributes
    ----------
    sizes : array of int, shape (k,)
        The numbers of units that it can have, ascending; the first is 0.
    values : array of float, shape (k,)
        Finite values in any unit; they may be negative.
    """

    sizes: Ints
    values: Floats


class Options(NamedTuple):
    """The options of all jobs, one job after the other, shape (m,); `starts` has shape (j,)."""

    sizes: Ints
    values: Floats
    starts: Ints
    jobs: Ints

    @classmethod
    def of(cls, tables: Sequence[ValueTable], total: int) -> Options:
        """Return the options that fit into the total.

        Parameters
        ----------
        tables : sequence of ValueTable
            One for each job.
        total : int
            Units to divide.

        Raises
        ------
        ValueError
            A table is not valid.
        """
        every = [table.sizes for table in tables]
        # A scheduler asks repeatedly about the same sizes, with other values.
        kept = all(isinstance(each, np.ndarray) and not each.flags.writeable for each in every)
        sizes, starts, jobs, lengths = (_known if kept else _layout)(*every)
        if [len(table.values) for table in tables] != lengths:
            number = next(n for n, table in enumerate(tables) if len(table.values) != lengths[n])
            count = len(tables[number].values)
            raise ValueError(f"table {number}: ({lengths[number]},) sizes and ({count},) values")
        values = np.concatenate([table.values for table in tables], dtype=np.float64)
        finite = np.isfinite(values)
        if not finite.all():
            at = int(np.argmin(finite))
            raise ValueError(f"table {jobs[at]}: the value of {sizes[at]} is {values[at]}")
        fits = sizes <= total
        if not fits.all():
            sizes, values, jobs = sizes[fits], values[fits], jobs[fits]
            counts = np.bincount(jobs, minlength=len(tables))
            starts = np.cumsum(counts) - counts
        return cls(sizes, values, starts, jobs)


class _Layout(NamedTuple):
    """The sizes of all tables in one array; where each table begins, its job, and its length."""

    sizes: Ints
    starts: Ints
    jobs: Ints
    lengths: list[int]


def _layout(*every: Ints) -> _Layout:
    """Lay out the sizes of several tables for vectorised operations.

    Raises
    ------
    ValueError
        Some sizes are not valid.
    """
    checked = [_sizes(number, sizes) for number, sizes in enumerate(every)]
    lengths = [len(sizes) for sizes in checked]
    sizes: Ints = np.concatenate(checked)
    jobs = np.repeat(np.arange(len(every)), lengths)
    starts: Ints = np.cumsum(lengths) - np.array(lengths)
    if sizes[starts].any():
        raise ValueError(f"table {int(np.argmax(sizes[starts] != 0))}: the first size is not 0")
    rises = np.diff(sizes) > 0
    rises[starts[1:] - 1] = True
    if not rises.all():
        raise ValueError(f"table {jobs[int(np.argmin(rises))]}: sizes do not ascend")
    return _Layout(sizes, starts, jobs, lengths)


_known = by_identity(_layout, most=64)


def _sizes(number: int, sizes: Ints) -> Ints:
    sizes = np.asarray(sizes)
    if sizes.ndim != 1 or not len(sizes):
        raise ValueError(f"table {number}: {sizes.shape} sizes")
    if sizes.dtype.kind not in "iu":
        raise ValueError(f"table {number}: sizes are {sizes.dtype}, not whole numbers")
    return sizes.astype(np.int64, copy=False)


def without_extremes(options: Options) -> Options:
    """Return options with the same best division, without values so large that others are lost.

    A value is irrelevant beyond all that the other jobs could gain together.
    """
    _, values, starts, jobs = options
    nothing = values[starts]
    gains = np.maximum.reduceat(values, starts) - nothing
    others = float(gains.sum()) - gains
    # For such an option to be chosen, the others would have to gain more than they can.
    least = nothing - others * (1.0 + TOLERANCE)
    if (np.minimum.reduceat(values, starts) < least).any():
        hopeless = values < least[jobs]
        values = np.where(hopeless, (nothing - 2.0 * others - 1.0)[jobs], values)
    largest = np.maximum(gains, nothing - np.minimum.reduceat(values, starts))
    at = int(largest.argmax())
    # If several jobs have such values, these are compared as they are stated.
    if largest[at] > ABSURD * float(np.delete(largest, at).max(initial=0.0)):
        values = values.copy()
        own = np.flatnonzero(jobs == at)
        own = own[np.argsort(values[own], kind="stable")]
        rises = np.minimum(np.diff(values[own]), 2.0 * others[at] + 1.0)
        values[own] = np.cumsum([0.0, *rises])
    return options if values is options.values else options._replace(values=values)
