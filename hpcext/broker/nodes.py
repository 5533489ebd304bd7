"""The nodes of a partition that a broker divides, as looks show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcext.batch.leasing import Idle
from hpcext.broker.settings import Settings
from hpcext.core.facts import Ended, Fact, NodeJoined, NodeLost, Outcome
from hpcext.core.values import Node
from hpcext.core.world import World
from hpcext.harvest.leases import Steady


class Nodes:
    """What the looks have shown so far.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._steady = Steady()
        # Those that were neither idle nor leased at the last look.
        self._missed: set[str] = set()

    def free(self, nodes: Mapping[str, Idle]) -> frozenset[str]:
        """Return the idle nodes that could be leased, once they were so twice in a row."""
        return self._steady([name for name, each in nodes.items() if each.idle and self.gpus(each)])

    def gpus(self, node: Idle) -> int:
        """Return how many GPUs or slots of a node harvesters may use; 0: it is left alone."""
        if not node.gpus:
            return self._settings.slots
        wanted = self._settings.gpus or node.gpus
        return wanted if node.gpus >= wanted else 0

    def news(self, world: World, nodes: Mapping[str, Idle], there: set[str]) -> Iterable[Fact]:
        """Yield which nodes have come and gone; what a trainer had on those is over.

        Parameters
        ----------
        world : World
        nodes : Mapping[str, Idle]
            Of the partition.
        there : set of str
            Those that are idle, or leased by a harvester that asks.
        """
        there = self._kept(world, nodes, there)
        gone = world.nodes.keys() - there
        for job in world.queue.busy():
            if job.state.active and not gone.isdisjoint(job.held):
                yield Ended(job.id, job.op, Outcome.SUSPENDED)
        for name in sorted(gone):
            yield NodeLost(name)
        for name in sorted(there):
            gpus, before = self.gpus(nodes[name]), world.nodes.get(name)
            if before is None or (before.gpus, before.kind) != (gpus, nodes[name].kind):
                yield NodeJoined(Node(name, gpus, nodes[name].kind))

    def _kept(self, world: World, nodes: Mapping[str, Idle], there: set[str]) -> set[str]:
        """Return the nodes that are divided: one is gone once it was missed twice in a row.

        On its way from one harvester to another it is neither leased nor idle for a moment, and
        nobody should give up a node because of that.
        """
        missed = (world.nodes.keys() & nodes.keys()) - there
        found = there | (missed - self._missed)
        self._missed = missed
        return found
