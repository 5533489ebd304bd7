"""Simulated auto-scaling: only worthwhile nodes are held, by the harvester's own rule.

The engine learns only of the nodes that are taken from those of a source. A node that is to be
given back first loses its GPUs, so that jobs leave it, and is removed when they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hpcext.core.band import Band
from hpcext.core.engine import Engine
from hpcext.core.facts import Fact, NodeJoined, NodeLost
from hpcext.core.values import Action, Job, Node
from hpcext.harvest.leases import Terms, wanted
from hpcext.policies.autoscale import Autoscaler, AvailableNodes, loss
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.heap import Heap


class Autoscaled:
    """A source that takes and gives back nodes by the rule of auto-scaling.

    Parameters
    ----------
    band : Band
    engine : Engine
    executor : SimulatedExecutor
    heap : Heap
    """

    def __init__(self, band: Band, engine: Engine, executor: SimulatedExecutor, heap: Heap) -> None:
        self._rule = Autoscaler(band)
        self._engine = engine
        self._executor = executor
        self._heap = heap
        self._offered: dict[str, Node] = {}
        self._held: set[str] = set()
        self._leaving: set[str] = set()

    def offered(self, facts: Iterable[Fact]) -> tuple[Fact, ...]:
        """Return the facts for the engine when offered nodes come or go."""
        heard: list[Fact] = []
        for fact in facts:
            if isinstance(fact, NodeJoined):
                self._offered[fact.node.name] = fact.node
                if fact.node.name in self._held:
                    heard.append(fact)
            elif isinstance(fact, NodeLost):
                self._offered.pop(fact.name, None)
                if fact.name in self._held | self._leaving:
                    heard.append(fact)
                self._held.discard(fact.name)
                self._leaving.discard(fact.name)
            else:
                heard.append(fact)
        return (*heard, *self._more(self._wanted()))

    def watch(self, _: float, __: tuple[Fact, ...], ___: tuple[Action, ...]) -> None:
        """Check after each step which nodes are worthwhile, and which leaving ones are empty.

        It is an observer, :data:`~hpcext.sim.replay.heap.Observe`.
        """
        want = self._wanted()
        if want != len(self._held) or self._empty():
            self._heap.after(0.0, self._change)

    def _change(self) -> tuple[Fact, ...]:
        gone = [NodeLost(name, unneeded=True) for name in self._empty()]
        self._leaving.difference_update(fact.name for fact in gone)
        want = self._wanted()
        return self._executor.happen(*gone, *self._fewer(want), *self._more(want))

    def _wanted(self) -> int:
        jobs = self._engine.world.unfinished()
        if not self._offered:
            return 0
        # All offered nodes are alike.
        one = next(iter(self._offered.values()))
        terms = Terms(partition="", gpus=one.gpus)
        most = min(len(self._offered), wanted(jobs, terms))
        return self._rule.wanted(self._heap.now_s, jobs, AvailableNodes(most, one.gpus, one.kind))

    def _more(self, want: int) -> Iterator[Fact]:
        free = (name for name in self._offered if name not in self._held | self._leaving)
        for _, name in zip(range(want - len(self._held)), list(free), strict=False):
            self._held.add(name)
            yield NodeJoined(self._offered[name])

    def _fewer(self, want: int) -> Iterator[Fact]:
        busy = self._engine.world.queue.busy()
        costs = {name: loss(busy, name) for name in sorted(self._held)}
        able = [name for name, cost in costs.items() if cost is not None]
        able.sort(key=lambda name: costs[name] or ())
        for name in able[: max(0, len(self._held) - want)]:
            self._held.remove(name)
            self._leaving.add(name)
            yield NodeJoined(replace(self._offered[name], gpus=0))

    def _empty(self) -> list[str]:
        """Return the leaving nodes that no job holds any more."""
        if not self._leaving:
            return []
        busy: tuple[Job, ...] = self._engine.world.queue.busy()
        taken = {name for job in busy for name in job.held}
        return sorted(self._leaving - taken)
