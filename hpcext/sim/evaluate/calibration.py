"""Calibration of the predicted stay of nodes: predictions of a run, checked later.

The predictions are those of the :class:`~hpcext.scaling.survival.Survival` of the nodes that have
left so far. The outcome follows from the facts alone, and is the same under every policy.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcext.core.facts import Fact, NodeJoined, NodeLost
from hpcext.core.values import Action
from hpcext.core.world import World
from hpcext.scaling.survival import Floats, Survival
from hpcext.sim.evaluate.outcome import Bin, Reliability

HORIZONS_S = (60.0, 300.0, 900.0, 3600.0)

EVERY_S = 600.0
"""Seconds between two instants of prediction."""

BINS = 10

Ints = npt.NDArray[np.int64]


class _Predictions(NamedTuple):
    """The predictions of an instant: the probability that each node stays, for each horizon."""

    when_s: float
    stays: Ints
    said: Floats


class _Stay(NamedTuple):
    """The stay of a node: its unique number, and its beginning."""

    number: int
    since_s: float


class Calibration:
    """An observer of an engine's steps that predicts the probability that each node stays.

    A prediction counts if nodes have changed after its instant, because it is unknown which nodes
    would have left after the last change. All predictions of an instant and a horizon count, or
    none: otherwise nodes that leave early, whose outcome is known first, would have too much
    weight.

    Memory is bounded by the present nodes, times the instants within the longest horizon.

    Parameters
    ----------
    world : World
        The engine's world; only its record of nodes that have left is used.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._fragments = world.seen.fragments
        self._there: dict[str, _Stay] = {}
        self._numbers = itertools.count()
        self._next_s = EVERY_S
        self._open: tuple[deque[_Predictions], ...] = tuple(deque() for _ in HORIZONS_S)
        self._tallies = tuple(_Tally(horizon_s) for horizon_s in HORIZONS_S)

    def __call__(self, now_s: float, facts: Iterable[Fact], _: Iterable[Action] = ()) -> None:
        """Observe a step whose facts are already in the world."""
        changes = [fact for fact in facts if isinstance(fact, (NodeJoined, NodeLost))]
        if not changes:
            return
        # Nothing has changed between the step recorded last and this one.
        while self._next_s < now_s:
            self._predict(self._next_s)
            self._next_s += EVERY_S
            self._count_outcomes(now_s)
        self._count_outcomes(now_s)
        for fact in changes:
            self._update(now_s, fact)
        self._fragments = self._world.seen.fragments

    def found(self) -> tuple[Reliability, ...]:
        """Return the outcome of the predictions for each horizon; empty if none is known yet."""
        return tuple(tally.found() for tally in self._tallies if tally.asked)

    def _update(self, now_s: float, fact: NodeJoined | NodeLost) -> None:
        if isinstance(fact, NodeLost):
            self._there.pop(fact.name, None)
            return
        node = fact.node
        before = self._there.get(node.name)
        since_s = node.since_s
        if since_s is None:
            since_s = before.since_s if before else now_s
        number = before.number if before else next(self._numbers)
        self._there[node.name] = _Stay(number, since_s)

    def _predict(self, when_s: float) -> None:
        """Predict for each node the probability that it stays."""
        if not self._there:
            return
        stays = np.array([each.number for each in self._there.values()])
        every_s = when_s - np.array([each.since_s for each in self._there.values()])
        # Nodes come in groups, so few ages differ.
        ages_s, group, nodes = np.unique(every_s, return_inverse=True, return_counts=True)
        model = Survival(self._fragments, ages_s, nodes.astype(np.float64))
        asked = _Predictions(when_s, stays, model.stays(ages_s, np.array(HORIZONS_S))[group])
        for waiting in self._open:
            waiting.append(asked)

    def _count_outcomes(self, now_s: float) -> None:
        """Count the outcomes that are known by an instant, before its own facts."""
        there: Ints | None = None
        for column, (waiting, tally) in enumerate(zip(self._open, self._tallies, strict=True)):
            while waiting and waiting[0].when_s + tally.horizon_s < now_s:
                asked = waiting.popleft()
                if there is None:
                    there = np.array([each.number for each in self._there.values()], np.int64)
                tally.add(asked.said[:, column], np.isin(asked.stays, there))


class _Tally:
    """A count of the predictions of one horizon."""

    def __init__(self, horizon_s: float) -> None:
        self.horizon_s = horizon_s
        self._nodes = np.zeros(BINS, np.int64)
        self._expected = np.zeros(BINS)
        self._stayed = np.zeros(BINS, np.int64)
        self._squares = 0.0

    @property
    def asked(self) -> bool:
        return bool(self._nodes.any())

    def add(self, said: Floats, stayed: npt.NDArray[np.bool_]) -> None:
        """Count predictions, each with its probability and its outcome."""
        at = np.minimum((said * BINS).astype(np.int64), BINS - 1)
        self._nodes += np.bincount(at, minlength=BINS)
        self._expected += np.bincount(at, said, BINS)
        self._stayed += np.bincount(at[stayed], minlength=BINS)
        self._squares += float(np.sum((said - stayed) ** 2))

    def found(self) -> Reliability:
        columns = (self._nodes.tolist(), self._expected.tolist(), self._stayed.tolist())
        bins = tuple(Bin(*each) for each in zip(*columns, strict=True))
        return Reliability(self.horizon_s, bins, self._squares)


def pooled(every: Iterable[tuple[Reliability, ...]]) -> tuple[Reliability, ...]:
    """Pool the results of several runs by their horizons."""
    found: dict[float, Reliability] = {}
    for each in itertools.chain.from_iterable(every):
        before = found.get(each.horizon_s)
        found[each.horizon_s] = each if before is None else _both(before, each)
    return tuple(found[horizon_s] for horizon_s in sorted(found))


def _both(one: Reliability, other: Reliability) -> Reliability:
    bins = tuple(
        Bin(a.nodes + b.nodes, a.expected + b.expected, a.stayed + b.stayed)
        for a, b in zip(one.bins, other.bins, strict=True)
    )
    return Reliability(one.horizon_s, bins, one.squares + other.squares)
