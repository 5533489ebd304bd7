"""Whether nodes stay as long as they are believed to: asked during a run, and looked at later.

What is believed is :class:`~hpcext.scaling.survival.Survival` of the nodes that have left so far;
what comes true is told by the facts alone, and is the same under every policy.
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
from hpcext.sim.outcome import Bin, Reliability

HORIZONS_S = (60.0, 300.0, 900.0, 3600.0)

EVERY_S = 600.0
"""Between the instants at which it is asked."""

BINS = 10

Ints = npt.NDArray[np.int64]


class _Asked(NamedTuple):
    """What was said at an instant: of each node's stay (its number), at each horizon."""

    when_s: float
    stays: Ints
    said: Floats


class _There(NamedTuple):
    """A node's stay: its number, which no other stay has, and since when it lasts."""

    number: int
    since_s: float


class Calibration:
    """Told of each step of an engine, it asks how probable the stay of each node is.

    A prediction counts when nodes have changed after the instant that it is of: behind the last
    change nobody knows who would have left. All predictions of one instant and horizon count, or
    none does: those who left early are known first, and would count for too much alone.

    Memory is bounded: by the nodes that are there, times the instants within the longest horizon.

    Parameters
    ----------
    world : World
        Of the engine; asked for nothing but the nodes that have left so far.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._fragments = world.seen.fragments
        self._there: dict[str, _There] = {}
        self._numbers = itertools.count()
        self._next_s = EVERY_S
        self._open: tuple[deque[_Asked], ...] = tuple(deque() for _ in HORIZONS_S)
        self._tallies = tuple(_Tally(horizon_s) for horizon_s in HORIZONS_S)

    def __call__(self, now_s: float, facts: Iterable[Fact], _: Iterable[Action] = ()) -> None:
        """Note one step, whose facts the world knows already."""
        changes = [fact for fact in facts if isinstance(fact, (NodeJoined, NodeLost))]
        if not changes:
            return
        # Since the last change all was as it is here still.
        while self._next_s < now_s:
            self._ask(self._next_s)
            self._next_s += EVERY_S
            self._look(now_s)
        self._look(now_s)
        for fact in changes:
            self._hear(now_s, fact)
        self._fragments = self._world.seen.fragments

    def found(self) -> tuple[Reliability, ...]:
        """What came of the predictions so far, for each horizon; empty if of none it is known."""
        return tuple(tally.found() for tally in self._tallies if tally.asked)

    def _hear(self, now_s: float, fact: NodeJoined | NodeLost) -> None:
        if isinstance(fact, NodeLost):
            self._there.pop(fact.name, None)
            return
        node = fact.node
        before = self._there.get(node.name)
        since_s = node.since_s
        if since_s is None:
            since_s = before.since_s if before else now_s
        number = before.number if before else next(self._numbers)
        self._there[node.name] = _There(number, since_s)

    def _ask(self, when_s: float) -> None:
        """How probable is it of each node that it stays?"""
        if not self._there:
            return
        stays = np.array([each.number for each in self._there.values()])
        every_s = when_s - np.array([each.since_s for each in self._there.values()])
        # Nodes come in groups: few ages are told apart.
        ages_s, group, nodes = np.unique(every_s, return_inverse=True, return_counts=True)
        model = Survival(self._fragments, ages_s, nodes.astype(np.float64))
        asked = _Asked(when_s, stays, model.stays(ages_s, np.array(HORIZONS_S))[group])
        for waiting in self._open:
            waiting.append(asked)

    def _look(self, now_s: float) -> None:
        """Count what is known by an instant, before what happens at it."""
        there: Ints | None = None
        for column, (waiting, tally) in enumerate(zip(self._open, self._tallies, strict=True)):
            while waiting and waiting[0].when_s + tally.horizon_s < now_s:
                asked = waiting.popleft()
                if there is None:
                    there = np.array([each.number for each in self._there.values()], np.int64)
                tally.add(asked.said[:, column], np.isin(asked.stays, there))


class _Tally:
    """Counts predictions of one horizon."""

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
        """Count some, of each of which it was said how probable it is, and whether it came."""
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
    """Several runs as one, by their horizons."""
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
