"""What no scheduler can beat that pays for its changes, even if it knows when which nodes come.

A bound, not a schedule. It is a Lagrangian relaxation: a node has a price at each instant, and each
of the places at which a job can run has as many nodes as pay for themselves, whatever the others
have; what these have too many or too few of is settled at that price. So whatever the prices are,
no schedule does more. They are lowered where nodes are left over and raised where they are short
(subgradients; Shor, *Minimization Methods for Non-Differentiable Functions*, 1985).

Each place is solved exactly, by a dynamic programme over the instants at which nodes come or go; at
another one a change is worth no more, since what is gained grows evenly between two of them. It is
left out that it matters which nodes a job has when some leave, and what it costs that a job begins
where another one ended: both only make a schedule slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.sim.bounds import Floats, Kind, Nodes, fluid_end_s, fluid_worths

ROUNDS = 150
"""In which prices are changed. More make the bound better by less and less."""

STEP = 0.05
"""How much a price changes at first where none of the nodes are used, or twice as many, in parts of
what a node is worth to a job that has the most it can."""

SLOWER = 200.0
"""After so many rounds half as much."""

PIECE_S = 120.0
"""No two instants that are looked at are further apart: what is done by one between them is not
known, only that it is below the straight line."""

KEPT = 0.9
"""Of what places had in the rounds before: one round alone jumps from one size to another."""


def clairvoyant_end_s(
    kinds: Sequence[Kind], nodes: Nodes, parallel: int, change_s: float, until_s: float
) -> float:
    """Before this instant no schedule can have done the work of all kinds.

    Parameters
    ----------
    kinds : sequence of Kind
        Between two of its sizes a job's speed is on a straight line.
    nodes : Nodes
    parallel : int
        Jobs at once, of all kinds together.
    change_s : float
        Seconds without progress, at the least, that a job pays for any other number of nodes. A
        pause ends when nodes come or go, since it may lose some and begin another one.
    until_s : float
        A later instant, at which it could be done.

    Raises
    ------
    ValueError
        Even a fluid is not done at `until_s`.
    """
    free_s = fluid_end_s(kinds, nodes, parallel, until_s)
    worths = fluid_worths(kinds, nodes, parallel, free_s)
    gains = _gains(kinds, worths)
    times_s, counts, stays_s = _pieces(nodes, until_s)
    spans_s = np.diff(np.append(times_s, until_s))
    useful = np.minimum(counts, float(parallel * (len(gains) - 1)))
    place = _Place(gains, spans_s, np.minimum(change_s, stays_s))
    need = sum(worth * kind.work for worth, kind in zip(worths, kinds, strict=True))
    # What another node is worth if all places have as many.
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


def _pieces(nodes: Nodes, until_s: float) -> tuple[Floats, Floats, Floats]:
    """When a place may change: at each change of nodes, and now and then between these.

    Returns
    -------
    times_s, counts, stays_s : array of float, shape (k,)
        The instants, how many nodes there are from then on, and for how long they stay as they are.
    """
    real_s = nodes.times_s[nodes.times_s < until_s]
    edges_s = np.append(real_s, until_s)
    parts = np.maximum(1, np.ceil(np.diff(edges_s) / PIECE_S)).astype(np.int64)
    which = np.repeat(np.arange(len(real_s)), parts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    times_s = real_s[which] + number * (np.diff(edges_s) / parts)[which]
    return times_s, nodes.counts[which], edges_s[which + 1] - times_s


def _gains(kinds: Sequence[Kind], worths: Sequence[float]) -> Floats:
    """By the number of nodes from 0 on: what the best kind is worth on them per second."""
    counts = np.arange(1 + max(size for kind in kinds for size in kind.speed))
    each = []
    for worth, kind in zip(worths, kinds, strict=True):
        sizes, speeds = zip((0, 0.0), *sorted(kind.speed.items()), strict=True)
        each.append(worth * np.interp(counts, sizes, speeds))
    return np.asarray(np.max(each, axis=0))


def _reached_s(times_s: Floats, spans_s: Floats, most: Floats, need: float) -> float:
    """Before this instant less than `need` is done; at most `most` is by the end of each span."""
    at = int(np.argmax(most >= need))
    if most[at] < need:
        return float(times_s[-1] + spans_s[-1])
    # What the best of several paths has done is convex in time: below the straight line.
    before = most[at - 1] if at else 0.0
    return float(times_s[at] + spans_s[at] * max(0.0, need - before) / (most[at] - before))


class _Path(NamedTuple):
    """The best that a place can do at some prices: until the end of each span, the most that any
    path gains by then; and the nodes in each span of the one that gains most in all."""

    gained: Floats
    nodes: Floats


class _Place:
    """Where one job after the other runs.

    Parameters
    ----------
    gains : array of float, shape (n + 1,)
        Per second, by nodes.
    spans_s : array of float, shape (k,)
        Between two instants at which it may change.
    pauses_s : array of float, shape (k,)
        That a change takes at the beginning of each.
    """

    def __init__(self, gains: Floats, spans_s: Floats, pauses_s: Floats) -> None:
        self._gains, self._spans_s = gains, spans_s
        self._costs = pauses_s[:, None] * gains

    def best(self, prices: Floats) -> _Path:
        """At these prices of a node and a second."""
        counts = np.arange(len(self._gains))
        nets = (self._gains - prices[:, None] * counts) * self._spans_s[:, None]
        value = np.full(len(counts), -np.inf)
        value[0] = 0.0
        gained = np.empty(len(nets))
        from_: list[tuple[int, NDArray[np.bool_]]] = []
        for span, net in enumerate(nets):
            top = int(value.argmax())
            # A change costs the same from wherever it is made: from the best there is, then.
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
