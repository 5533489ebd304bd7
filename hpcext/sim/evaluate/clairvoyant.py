"""A lower bound on the time of any scheduler that pays for changes, even of a clairvoyant one.

It is a bound, not a schedule, by a Lagrangian relaxation: a node has a price at each instant. Each
of the places at which a job can run has as many nodes as pay for themselves, whatever the others
have; excess and shortage of nodes are settled at that price. So whatever the prices are, no
schedule does more. They are lowered where nodes are left over and raised where nodes are short
(subgradients; Shor, *Minimization Methods for Non-Differentiable Functions*, 1985).

Each place is solved exactly, by a dynamic programme over the instants at which nodes come or go. At
another instant a change is worth no more, because the gain grows linearly between two of them. Two
effects are ignored: which of a job's nodes leave, and the cost of starting a job where another one
ended. Both only slow a schedule down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.sim.evaluate.bounds import Floats, JobClass, NodeCounts, fluid_end_s, fluid_worths

ROUNDS = 150
"""Rounds in which prices are changed. Further rounds improve the bound less and less."""

STEP = 0.05
"""First change of a price where no node is used, or twice as many as there are, as a share of the
value of a node to a job of the largest size."""

SLOWER = 200.0
"""Rounds after which the step is halved."""

PIECE_S = 120.0
"""Longest piece of time: the work done by an instant within a piece is only known to be below the
straight line."""

KEPT = 0.9
"""Weight of earlier rounds in the use of nodes, since single rounds jump between sizes."""


def clairvoyant_end_s(
    kinds: Sequence[JobClass], nodes: NodeCounts, parallel: int, change_s: float, until_s: float
) -> float:
    """Return an instant before which no schedule can have done the work of all kinds.

    Parameters
    ----------
    kinds : sequence of JobClass
        A job's speed is linear between two of its sizes.
    nodes : NodeCounts
    parallel : int
        Largest number of jobs at once, of all classes together.
    change_s : float
        Fewest seconds without progress that a job pays for another number of nodes. A pause ends
        when nodes come or go, because a job may lose some and begin another pause.
    until_s : float
        A later instant, by which it can be done.

    Raises
    ------
    ValueError
        Even a fluid is not done by `until_s`.
    """
    free_s = fluid_end_s(kinds, nodes, parallel, until_s)
    worths = fluid_worths(kinds, nodes, parallel, free_s)
    gains = _gains(kinds, worths)
    times_s, counts, stays_s = _pieces(nodes, until_s)
    spans_s = np.diff(np.append(times_s, until_s))
    useful = np.minimum(counts, float(parallel * (len(gains) - 1)))
    place = _Place(gains, spans_s, np.minimum(change_s, stays_s))
    need = sum(worth * kind.work for worth, kind in zip(worths, kinds, strict=True))
    # The value of a further node if all places have the same number.
    prices = np.interp(useful / parallel, np.arange(1, len(gains)), np.diff(gains))
    prices[useful >= parallel * (len(gains) - 1)] = 0.0
    scale = STEP * float(gains[-1]) / (len(gains) - 1)
    best_s, had = free_s, np.zeros(len(times_s))
    for number in range(ROUNDS):
        path = place.best(prices)
        most = parallel * path.gained + np.cumsum(prices * useful * spans_s)
        best_s = max(best_s, _reached_s(times_s, spans_s, most, need))
        had = path.nodes if not number else KEPT * had + (1 - KEPT) * path.nodes
        short = (parallel * had - useful) / np.maximum(useful, float(len(gains)))
        prices = np.maximum(0.0, prices + scale / (1 + number / SLOWER) * short)
    return best_s


def _pieces(nodes: NodeCounts, until_s: float) -> tuple[Floats, Floats, Floats]:
    """Divide time at each change of nodes, and within long spans: there a place may change.

    Returns
    -------
    times_s, counts, stays_s : array of float, shape (k,)
        The instants, the number of nodes from each on, and how long it stays.
    """
    real_s = nodes.times_s[nodes.times_s < until_s]
    edges_s = np.append(real_s, until_s)
    parts = np.maximum(1, np.ceil(np.diff(edges_s) / PIECE_S)).astype(np.int64)
    which = np.repeat(np.arange(len(real_s)), parts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    times_s = real_s[which] + number * (np.diff(edges_s) / parts)[which]
    return times_s, nodes.counts[which], edges_s[which + 1] - times_s


def _gains(kinds: Sequence[JobClass], worths: Sequence[float]) -> Floats:
    """Return the value per second of the best class by its number of nodes, from 0 on."""
    counts = np.arange(1 + max(size for kind in kinds for size in kind.speed))
    each = []
    for worth, kind in zip(worths, kinds, strict=True):
        sizes, speeds = zip((0, 0.0), *sorted(kind.speed.items()), strict=True)
        each.append(worth * np.interp(counts, sizes, speeds))
    return np.asarray(np.max(each, axis=0))


def _reached_s(times_s: Floats, spans_s: Floats, most: Floats, need: float) -> float:
    """Return an instant before which less than `need` is done, given the most by each end."""
    at = int(np.argmax(most >= need))
    if most[at] < need:
        return float(times_s[-1] + spans_s[-1])
    # The work of the best of several paths is convex in time, and so below the straight line.
    before = most[at - 1] if at else 0.0
    return float(times_s[at] + spans_s[at] * max(0.0, need - before) / (most[at] - before))


class _Path(NamedTuple):
    """The best path of a place at some prices.

    `gained` is the most that any path gains by the end of each span; `nodes` are those of the path
    that gains most in all.
    """

    gained: Floats
    nodes: Floats


class _Place:
    """A place where jobs run one after the other.

    Parameters
    ----------
    gains : array of float, shape (n + 1,)
        Value per second, by number of nodes.
    spans_s : array of float, shape (k,)
        Seconds between two instants at which its size may change.
    pauses_s : array of float, shape (k,)
        Seconds without progress after a change at the beginning of each span.
    """

    def __init__(self, gains: Floats, spans_s: Floats, pauses_s: Floats) -> None:
        self._gains, self._spans_s = gains, spans_s
        self._costs = pauses_s[:, None] * gains

    def best(self, prices: Floats) -> _Path:
        """Return the best path at these prices per node and second."""
        counts = np.arange(len(self._gains))
        nets = (self._gains - prices[:, None] * counts) * self._spans_s[:, None]
        value = np.full(len(counts), -np.inf)
        value[0] = 0.0
        gained = np.empty(len(nets))
        from_: list[tuple[int, NDArray[np.bool_]]] = []
        for span, net in enumerate(nets):
            top = int(value.argmax())
            # A change costs the same from any size, so it comes from the best one.
            other = value[top] - self._costs[span]
            moved = other > value
            from_.append((top, moved))
            value = np.maximum(value, other) + net
            gained[span] = value.max()
        nodes = np.empty(len(nets))
        at = int(value.argmax())
        for span in range(len(nets) - 1, -1, -1):
            nodes[span] = at
            top, moved = from_[span]
            at = top if moved[at] else at
        return _Path(gained, nodes)
