"""Nodes by when they leave: what is believed of each class of them, piece of time by piece.

Nodes that became idle at one instant were given up by one job, and leave together more often than
not (on Summit 84 of 100 pairs); so do those of which the same end is known. They are one class
here: alike in lifetime, and a job that loses several of them at once stalls once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.core.fragments import Fragments
from hpcext.core.values import Node
from hpcext.scaling.survival import Survival, early_share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PIECES = 8
"""Of the time in which work counts, longer and longer ones."""

FIRST = 1 / 16
"""The first of them, as a part of all."""

BEYOND = 5
"""Pieces of the time after it, in which stalls count alone."""

LATER_S = 1800.0
"""So long is looked at there, and so much later a stall counts e times less: what a decision brings
in can be had by a later one as well, but who has nodes that end one after the other will stall for
each, unless it changes anyway before."""


class Span:
    """The time that is looked at, in pieces.

    Parameters
    ----------
    edges_s : array of float, shape (k + 1,)
        From now, 0, on.
    near : int or None
        In how many of the pieces work counts, not stalls alone; None: in all.

    Attributes
    ----------
    pieces_s : array of float, shape (k,)
        Their lengths.
    beyond : array of float, shape (k,)
        1 where stalls alone count, else 0.
    counts : array of float, shape (k,)
        How much a second counts.
    """

    def __init__(self, edges_s: Floats, near: int | None = None) -> None:
        self.edges_s = edges_s
        self.pieces_s = np.diff(edges_s)
        self.beyond = np.ones(len(self.pieces_s))
        self.beyond[:near] = 0.0
        middles_s = edges_s[:-1] + self.pieces_s / 2
        self.counts = np.where(self.beyond > 0, np.exp(-middles_s / LATER_S), 1.0)

    @classmethod
    def of(cls, long_s: float) -> Span:
        """So long, and beyond."""
        near = np.geomspace(FIRST * long_s, long_s, PIECES)
        beyond = np.geomspace(long_s, long_s + LATER_S, BEYOND + 1)[1:]
        return cls(np.concatenate([[0.0], near, beyond]), PIECES)

    def after(self, stall_s: Floats | float) -> Floats:
        """What counts of each piece after a stall, in seconds; for several stalls a row for
        each."""
        ends_s = self.edges_s[1:] - np.asarray(stall_s)[..., None]
        return np.asarray(np.clip(ends_s, 0.0, self.pieces_s)) * self.counts


class Holes(NamedTuple):
    """Classes of nodes.

    Attributes
    ----------
    of : Mapping[str, int]
        Node → class.
    stays : array of float, shape (c, k)
        Share of a class that is expected to be there, in each piece of time.
    calm : array of float, shape (c, k)
        Logarithm of the probability that who has nodes of a class does not stall for their leaving.
    """

    of: Mapping[str, int]
    stays: Floats
    calm: Floats


LEAST = 1e-6
"""Of such a probability: its logarithm must be finite."""


def holes(
    nodes: Mapping[str, Node], seen: Fragments, now_s: float, span: Span, stall_s: float
) -> Holes:
    """Put nodes into classes.

    Parameters
    ----------
    nodes : Mapping[str, Node]
    seen : Fragments
        For how long others stayed.
    now_s : float
    span : Span
    stall_s : float
        For how long a job stalls that loses a node.
    """
    classes: dict[tuple[float | None, float | None, bool], int] = {}
    of: dict[str, int] = {}
    since_s: list[float] = []
    sizes: list[int] = []
    for name, node in nodes.items():
        began_s = now_s if node.since_s is None else node.since_s
        # One that is there beyond its end has none that is known.
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
    """Of each class: what was learned, its age, how long it is to stay at most, and how probable it
    is that it leaves earlier, 1 where no end is planned."""

    learned: Survival
    ages_s: Floats
    left_s: Floats
    early: Floats


def _expected(of: Believed, span: Span, stall_s: float) -> tuple[Floats, Floats]:
    """For each class and piece: the share that is there, and the chance of no stall, as a
    logarithm."""
    begin_s, end_s = span.edges_s[:-1], span.edges_s[1:]
    middle_s = (begin_s + end_s) / 2
    before_s = np.maximum(middle_s - stall_s, 0.0)
    then, before = (of.learned.stays(of.ages_s, later_s) for later_s in (middle_s, before_s))
    early, left_s = of.early[:, None], of.left_s[:, None]
    there = np.clip((left_s - begin_s) / span.pieces_s, 0.0, 1.0)
    stays = there * (1.0 - early + early * then)
    stalled_s = np.minimum(end_s, left_s + stall_s) - np.maximum(begin_s, left_s)
    at_end = np.clip(stalled_s / span.pieces_s, 0.0, 1.0) * (1.0 - early + early * before)
    # What was learned does not tell when, so much later.
    stalls = at_end + there * early * (before - then) * (1.0 - span.beyond)
    return stays, np.log(np.clip(1.0 - stalls, LEAST, 1.0))
