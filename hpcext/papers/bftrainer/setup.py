"""The setting of BFTrainer's evaluation: idle nodes (§4.3) and trainers (§4.2).

Trainers are those of a published file, or of the paper's Table 2. Idle nodes are those of a
recorded trace, or of one that is generated from the paper's figures for Summit.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcext.core.values import Job
from hpcext.sim.replay.physics import Physics
from hpcext.sim.traces.generate import find_machine, generate
from hpcext.sim.traces.idle import NodeChange, read_idle
from hpcext.sim.workloads.find import find_workload
from hpcext.sim.workloads.trainers import Trainer, simulated
from hpcext.sim.workloads.workload import Costs, Jobs, Setting

WEEK_HOURS = 168.0
WEEK_S = 3600 * WEEK_HOURS

NODES = (1, 2, 4, 8, 16, 32, 64)

TABLE_2 = {
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
}
"""Thousands of samples per second on :data:`NODES`, in the order of the published mixture."""

BY_SCALING = (
    "AlexNet", "ResNet18", "MnasNet", "MobileNets", "ShuffleNet", "VGG-16", "DenseNet",
)  # fmt: skip
"""Networks by scaling efficiency, the worst first, as in Figure 15; the order by speed is the same,
as in Table 3."""

SAMPLES = 130e6
"""Samples of a training: 100 epochs (§4.2)."""

TRAINERS = 1000
GAP_S = 36.0
UP_S, DOWN_S = 18.0, 12.0
"""Mean seconds between submissions (`GAP_S`), and the seconds of a change of size, in the published
files."""

MIX = "mix"
"""Name of the mixture: all networks of Table 2, in turn."""


class Idle(NamedTuple):
    """Idle nodes.

    Attributes
    ----------
    trace : str
        A file; empty: a generated trace, like Summit's.
    seed : int
        Seed of a generated trace.
    lowest : int or None
        Number of nodes to use, those with the lowest numbers; None for all.
    skip : int
        Changes to skip at the beginning.
    again : bool
        Whether the week is repeated without end.
    """

    trace: str = ""
    seed: int = 0
    lowest: int | None = None
    skip: int = 0
    again: bool = False

    def changes(self) -> Iterator[NodeChange]:
        """Yield the changes; the first one, at 0 s, has all nodes that are idle then."""
        if self.lowest is None and not self.again:
            return _begun(_week(self.trace, self.seed), self.skip)
        week = _kept(self.trace, self.seed, self.lowest)
        return _begun(_again(week, WEEK_S) if self.again else week, self.skip)


def _week(trace: str, seed: int) -> Iterator[NodeChange]:
    """Yield the changes of the recorded or generated week."""
    return read_idle(Path(trace)) if trace else generate(find_machine("summit"), seed, WEEK_HOURS)


@functools.lru_cache(maxsize=2)
def _kept(trace: str, seed: int, lowest: int | None) -> tuple[NodeChange, ...]:
    """Return the changes of a week, cached for repeated use."""
    week = _week(trace, seed)
    return tuple(week if lowest is None else _lowest(week, lowest))


def _lowest(changes: Iterable[NodeChange], nodes: int) -> Iterator[NodeChange]:
    """Yield the changes of the nodes whose number is below `nodes`."""
    for change in changes:
        joined = tuple(node for node in change.joined if node < nodes)
        left = tuple(node for node in change.left if node < nodes)
        if joined or left:
            yield NodeChange(change.time_s, joined, left)


def _again(week: Sequence[NodeChange], period_s: float) -> Iterator[NodeChange]:
    """Repeat a week; at each repetition, nodes change as if its last state came before."""
    there: set[int] = set()
    for number in itertools.count():
        for change in week:
            joined, left = set(change.joined), set(change.left)
            if number and change is week[0]:
                joined, left = joined - there, there - joined
            there = (there - left) | joined
            when_s = change.time_s + number * period_s
            yield NodeChange(when_s, tuple(sorted(joined)), tuple(sorted(left)))


def _begun(changes: Iterable[NodeChange], skip: int) -> Iterator[NodeChange]:
    """Skip changes, but keep the nodes that they leave idle at the beginning."""
    following = iter(changes)
    there: set[int] = set()
    for change in itertools.islice(following, skip + 1):
        there = (there - set(change.left)) | set(change.joined)
        start_s = change.time_s
    yield NodeChange(0.0, tuple(sorted(there)), ())
    for change in following:
        yield change._replace(time_s=change.time_s - start_s)


class Level(NamedTuple):
    """A number of nodes from an instant on."""

    time_s: float
    nodes: int


def levels(changes: Iterable[NodeChange]) -> Iterator[Level]:
    """Yield the number of nodes over time."""
    nodes = 0
    for change in changes:
        nodes += len(change.joined) - len(change.left)
        yield Level(change.time_s, nodes)


def node_s(changes: Iterable[NodeChange], until_s: Iterable[float]) -> list[float]:
    """Return the node-seconds from the beginning to each of ascending instants (Eq. 17).

    Parameters
    ----------
    changes : iterable of NodeChange
    until_s : iterable of float
        Instants, ascending.
    """
    marks = sorted(until_s)
    found: list[float] = []
    now_s = total = 0.0
    nodes = 0
    for level in itertools.chain(levels(changes), (Level(math.inf, 0),)):
        while len(found) < len(marks) and marks[len(found)] <= level.time_s:
            found.append(total + nodes * (marks[len(found)] - now_s))
        if len(found) == len(marks):
            return found
        total += nodes * (level.time_s - now_s)
        now_s, nodes = level
    return found


def trainers(text: str, rescale: float = 1.0) -> Jobs:
    """Return the trainers of a file, or 1,000 trainers of one network of Table 2 or of all in turn.

    Parameters
    ----------
    text : str
        A path, a key of :data:`TABLE_2`, or :data:`MIX`.
    rescale : float
        Factor on the cost of rescaling.
    """
    if text != MIX and text not in TABLE_2:
        return find_workload(text, Setting(costs=Costs(rescale=rescale))).jobs(0)
    names = itertools.cycle(TABLE_2 if text == MIX else (text,))
    return [_trainer(next(names), order, rescale) for order in range(TRAINERS)]


def curve(name: str) -> dict[int, float]:
    """Return samples per second by number of nodes, from Table 2."""
    return {nodes: 1000 * speed for nodes, speed in zip(NODES, TABLE_2[name], strict=True)}


def _trainer(name: str, order: int, rescale: float) -> tuple[Job, Physics]:
    costs = (rescale * UP_S, rescale * DOWN_S)
    title = f"J{order:05}-{name}"
    trainer = Trainer(title, curve(name), SAMPLES, (1, NODES[-1]), *costs, GAP_S * order)
    return simulated(trainer, order)


ALIASES = {"vgg16": "VGG-16", "resnet18": "ResNet18", "mnasnet1": "MnasNet",
           "shufflenet": "ShuffleNet", "mobilenet": "MobileNets"}  # fmt: skip


def network(name: str) -> str:
    """Return the network of a trainer, a key of :data:`TABLE_2`, by the trainer's name.

    Published files have other names for some networks.
    """
    _, _, found = name.partition("-")
    return ALIASES.get(found, found)
