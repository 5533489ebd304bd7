"""The expected departure of nodes: a belief about each class of them, for pieces of time.

Nodes that became idle at the same instant were released by one job, and usually leave together (on
Summit, 84 of 100 pairs); so do nodes with the same known end. Such nodes form one class here: they
have the same lifetime, and a job that loses several of them at once stalls once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Node
from hpcext.scaling.survival import Survival, early_share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PIECES = 8
"""Number of pieces of the time in which work counts; they grow geometrically."""

FIRST = 1 / 16
"""Length of the first piece as a share of the time in which work counts."""

BEYOND = 5
"""Number of pieces of the time beyond, in which only stalls count."""

LATER_S = 1800.0
"""Seconds beyond in which the weight of a stall falls by a factor e. A later decision can make up
for lost gains, but a job with nodes that leave one after the other stalls for each of them, unless
it changes before."""


class Horizon:
    """The time that a decision considers, in pieces.

    Parameters
    ----------
    edges_s : array of float, shape (k + 1,)
        Seconds from now; the first is 0.
    near : int or None
        Number of pieces in which work counts, not only stalls; None for all.

    Attributes
    ----------
    pieces_s : array of float, shape (k,)
        Lengths of the pieces.
    beyond : array of float, shape (k,)
        1 where only stalls count, else 0.
    counts : array of float, shape (k,)
        Weight of a second.
    """

    def __init__(self, edges_s: Floats, near: int | None = None) -> None:
        self.edges_s = edges_s
        self.pieces_s = np.diff(edges_s)
        self.beyond = np.ones(len(self.pieces_s))
        self.beyond[:near] = 0.0
        middles_s = edges_s[:-1] + self.pieces_s / 2
        self.counts = np.where(self.beyond > 0, np.exp(-middles_s / LATER_S), 1.0)

    @classmethod
    def of(cls, long_s: float) -> Horizon:
        """Make a horizon in which work counts for `long_s` seconds, and only stalls beyond.

        Parameters
        ----------
        long_s : float
        """
        near = np.geomspace(FIRST * long_s, long_s, PIECES)
        beyond = np.geomspace(long_s, long_s + LATER_S, BEYOND + 1)[1:]
        return cls(np.concatenate([[0.0], near, beyond]), PIECES)

    def after(self, stall_s: Floats | float) -> Floats:
        """Return the weighted seconds of each piece after a stall.

        For several stalls, the result has a row for each.
        """
        ends_s = self.edges_s[1:] - np.asarray(stall_s)[..., None]
        return np.asarray(np.clip(ends_s, 0.0, self.pieces_s)) * self.counts


class Holes(NamedTuple):
    """Classes of nodes.

    Attributes
    ----------
    of : Mapping[str, int]
        Class of each node.
    stays : array of float, shape (c, k)
        Expected share of a class that is still there, in each piece of time.
    calm : array of float, shape (c, k)
        Logarithm of the probability that a job with nodes of a class is not stalled by their
        departure.
    """

    of: Mapping[str, int]
    stays: Floats
    calm: Floats


LEAST = 1e-6
"""Lower limit of that probability, so that its logarithm is finite."""


def holes(
    nodes: Mapping[str, Node], seen: Fragments, now_s: float, span: Horizon, stall_s: float
) -> Holes:
    """Divide nodes into classes.

    Parameters
    ----------
    nodes : Mapping[str, Node]
    seen : Fragments
        Lifetimes of nodes that have left.
    now_s : float
    span : Horizon
    stall_s : float
        Seconds for which a job stalls that loses a node.
    """
    classes: dict[tuple[float | None, float | None, bool], int] = {}
    of: dict[str, int] = {}
    since_s: list[float] = []
    sizes: list[int] = []
    for name, node in nodes.items():
        began_s = now_s if node.since_s is None else node.since_s
        # A node that is still there after its planned end has no known end.
        ends_s = node.ends_s if node.ends_s is not None and node.ends_s > now_s else None
        planned = ends_s is not None and node.planned
        key = (None if planned else began_s, ends_s, planned)
        at = of[name] = classes.setdefault(key, len(classes))
        if at == len(sizes):
            since_s.append(0.0)
            sizes.append(0)
        since_s[at] += began_s
        sizes[at] += 1
    counts = np.array(sizes, dtype=np.float64)
    ages_s = now_s - np.array(since_s) / np.maximum(counts, 1.0)
    left_s = np.array([math.inf if ends_s is None else ends_s - now_s for _, ends_s, _ in classes])
    share = early_share(seen)
    early = np.array([share if planned else 1.0 for _, _, planned in classes])
    believed = Believed(Survival(seen, ages_s, counts), ages_s, left_s, early)
    return Holes(of, *_expected(believed, span, stall_s))


class Believed(NamedTuple):
    """The beliefs about each class: survival curve, age, longest stay, chance of an early end.

    The chance is 1 where no end is planned.
    """

    learned: Survival
    ages_s: Floats
    left_s: Floats
    early: Floats


def _expected(of: Believed, span: Horizon, stall_s: float) -> tuple[Floats, Floats]:
    """Return the share of each class that is left in each piece, and the log chance of no stall."""
    begin_s, end_s = span.edges_s[:-1], span.edges_s[1:]
    middle_s = (begin_s + end_s) / 2
    before_s = np.maximum(middle_s - stall_s, 0.0)
    then, before = (of.learned.stays(of.ages_s, later_s) for later_s in (middle_s, before_s))
    early, left_s = of.early[:, None], of.left_s[:, None]
    there = np.clip((left_s - begin_s) / span.pieces_s, 0.0, 1.0)
    stays = there * (1.0 - early + early * then)
    stalled_s = np.minimum(end_s, left_s + stall_s) - np.maximum(begin_s, left_s)
    at_end = np.clip(stalled_s / span.pieces_s, 0.0, 1.0) * (1.0 - early + early * before)
    # The survival curve does not tell when a node leaves so far ahead.
    stalls = at_end + there * early * (before - then) * (1.0 - span.beyond)
    return stays, np.log(np.clip(1.0 - stalls, LEAST, 1.0))
