"""Lower bounds on the time that any scheduler needs on nodes that come and go.

They are those of a fluid: nodes and trainers are divisible, changes cost nothing, every trainer is
there from the beginning, and the future is known. So no policy is faster, and even the best one is
slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, linprog
from scipy.sparse import coo_matrix

Floats = NDArray[np.float64]

SPANS = 120
"""Largest number of node counts to distinguish. Others are merged into their mean, with which a
fluid does at least as much, because its work is concave in the number of nodes."""

NEAR_S = 1.0


class JobClass(NamedTuple):
    """Jobs that are alike.

    Attributes
    ----------
    speed : Mapping[int, float]
        Work per second by number of nodes, for all sizes that one of them may have. Between two
        sizes a job mixes these; below the smallest one, that and nothing.
    work : float
        Work of all of them together, > 0.
    """

    speed: Mapping[int, float]
    work: float


class NodeCounts:
    """The number of nodes over time.

    Parameters
    ----------
    levels : iterable of (float, int)
        Instants, ascending, and the number of nodes from each on. The last number stays.

    Attributes
    ----------
    times_s, counts : array of float
        The instants and the numbers, as two arrays.
    """

    def __init__(self, levels: Iterable[tuple[float, int]]) -> None:
        times, counts = zip(*levels, strict=True)
        self.times_s = np.array(times, dtype=np.float64)
        self.counts = np.array(counts, dtype=np.float64)

    def spans(self, until_s: float, useful: float = math.inf) -> tuple[Floats, Floats]:
        """Return how long each number of nodes exists until an instant.

        A fluid does not depend on the order of these times. More nodes than are `useful` count as
        `useful`.

        Parameters
        ----------
        until_s : float
        useful : float

        Returns
        -------
        seconds, nodes : array of float
            Nodes ascending.
        """
        edges = np.append(self.times_s[self.times_s < until_s], until_s)
        counts = np.minimum(self.counts[: len(edges) - 1], useful)
        nodes, which = np.unique(counts, return_inverse=True)
        long_s = np.bincount(which, weights=np.diff(edges))
        group = np.arange(len(nodes)) * min(SPANS, len(nodes)) // len(nodes)
        together_s = np.bincount(group, weights=long_s).astype(np.float64)
        return together_s, np.bincount(group, weights=long_s * nodes) / together_s


def fluid_rate(speed: Mapping[int, float], nodes: float, parallel: float = math.inf) -> float:
    """Return the largest work per second of equal jobs on nodes, with at most `parallel` at once.

    Parameters
    ----------
    speed : Mapping[int, float]
        As in :class:`JobClass`.
    nodes, parallel : float

    Examples
    --------
    >>> fluid_rate({1: 1.0, 4: 3.0}, nodes=5, parallel=2)
    4.0
    """
    return _fluid([JobClass(speed, 1.0)], np.ones(1), np.array([nodes]), parallel).times


def fluid_end_s(
    kinds: Sequence[JobClass], nodes: NodeCounts, parallel: float, until_s: float
) -> float:
    """Return an instant before which no schedule can have done the work of all kinds.

    Parameters
    ----------
    kinds : sequence of JobClass
    nodes : NodeCounts
    parallel : float
        Largest number of jobs at once, of all classes together.
    until_s : float
        A later instant, by which it can be done.

    Raises
    ------
    ValueError
        Even a fluid is not done by `until_s`.
    """
    useful = parallel * max(size for kind in kinds for size in kind.speed)

    def left(end_s: float) -> float:
        return 1.0 - _fluid(kinds, *nodes.spans(end_s, useful), parallel).times

    if left(until_s) > 0:
        raise ValueError(f"no schedule is done within {until_s:g} s")
    low_s = NEAR_S
    if left(low_s) <= 0:
        return low_s
    return float(brentq(left, low_s, until_s, xtol=NEAR_S))


def fluid_worths(
    kinds: Sequence[JobClass], nodes: NodeCounts, parallel: float, until_s: float
) -> tuple[float, ...]:
    """Return the value of a unit of each class's work to a fluid, as a share of all work.

    The values of all work sum to 1. Classes that use nodes badly are worth more, because all work
    has to be done. The parameters are those of :func:`fluid_end_s`.
    """
    useful = parallel * max(size for kind in kinds for size in kind.speed)
    return _fluid(kinds, *nodes.spans(until_s, useful), parallel).worths


class _Fluid(NamedTuple):
    """How many times a fluid can do all the work, and the value of a unit of each class's work."""

    times: float
    worths: tuple[float, ...]


def _fluid(kinds: Sequence[JobClass], long_s: Floats, nodes: Floats, parallel: float) -> _Fluid:
    """Solve the linear programme for the number of jobs of each class and size in each span."""
    choices = [(k, size, rate) for k, kind in enumerate(kinds) for size, rate in kind.speed.items()]
    spans, each = len(long_s), len(choices)
    columns = spans * each  # followed by the factor to maximise
    span = np.repeat(np.arange(spans), each)
    kind = np.tile([k for k, _, _ in choices], spans)
    size = np.tile([size for _, size, _ in choices], spans).astype(np.float64)
    rate = np.tile([rate / kinds[k].work for k, _, rate in choices], spans)
    at = np.arange(columns)
    rows = [span]
    parts, limits = [size], [nodes]
    if math.isfinite(parallel):
        rows.append(span + spans)
        parts.append(np.ones(columns))
        limits.append(np.full(spans, parallel))
    base = spans * len(limits)
    rows += [base + kind, base + np.arange(len(kinds))]
    parts += [-rate * long_s[span], np.ones(len(kinds))]
    limits.append(np.zeros(len(kinds)))
    places = [at] * (len(rows) - 1) + [np.full(len(kinds), columns)]
    shape = (base + len(kinds), columns + 1)
    table = coo_matrix(
        (np.concatenate(parts), (np.concatenate(rows), np.concatenate(places))), shape=shape
    )
    gain = np.zeros(columns + 1)
    gain[-1] = -1.0
    found = linprog(gain, A_ub=table.tocsr(), b_ub=np.concatenate(limits), method="highs")
    if not found.success:
        raise RuntimeError(f"the bound was not found: {found.message}")
    shares = -found.ineqlin.marginals[base:]
    worths = tuple(float(share) / kind.work for share, kind in zip(shares, kinds, strict=True))
    return _Fluid(float(-found.fun), worths)
