"""The nodes of a partition as a harvester knows them from look to look."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from hpcext.batch.leasing import Idle
from hpcext.core.history.fragments import Fragments
from hpcext.harvest.given_up import GivenUp
from hpcext.harvest.leases import Hole, Steady, Terms, fits_s

REFUSED_S = 120.0
"""Seconds for which a node that was refused as a lease is not requested again."""


class Ground:
    """The nodes that could be leased, and those that are, as the last looks showed them.

    Parameters
    ----------
    terms : Terms
    seen : callable
        How long others stayed idle.

    Attributes
    ----------
    nodes : Mapping[str, Idle]
        As the last look showed them; empty before the first one.
    idle : list of str
        Suitable nodes that no job uses.
    steady : frozenset of str
        Those among them that were also idle at the look before.
    lost : set of str
        Nodes that were down since their lease was requested, which ended because of that.
    given_up : GivenUp
        Nodes that leases gave up, and that no job has taken yet.
    """

    def __init__(self, terms: Terms, seen: Callable[[], Fragments]) -> None:
        self._terms = terms
        self._seen = seen
        self.nodes: Mapping[str, Idle] = {}
        self.idle: list[str] = []
        self.steady: frozenset[str] = frozenset()
        self.lost: set[str] = set()
        self.given_up = GivenUp()
        self._refused: dict[str, float] = {}
        # Of these, those whose lease did not begin.
        self._passed_over: set[str] = set()
        self._idle_since: dict[str, float] = {}
        self._were_idle = Steady()

    @property
    def refused(self) -> Collection[str]:
        """The nodes that are not requested again yet."""
        return self._refused.keys()

    def refused_for(self, now: float) -> dict[str, float]:
        """Return for each of these how many seconds that lasts."""
        return {node: until - now for node, until in self._refused.items()}

    def see(self, nodes: Mapping[str, Idle], leased: Collection[str], now: float) -> None:
        """Take up what the batch system shows.

        Parameters
        ----------
        nodes : Mapping[str, Idle]
        leased : collection of str
            Nodes of our leases.
        now : float
            Epoch seconds.
        """
        if self._terms.whole:
            # In use, then, as any node of others is. A claim that is made in its likeness would
            # begin beside others, too.
            nodes = {
                name: node._replace(idle=False, shared=False) if node.shared else node
                for name, node in nodes.items()
            }
        self.nodes = nodes
        self.idle = [name for name, node in nodes.items() if node.idle and self.suits(node)]
        down = {name for name, node in nodes.items() if node.lost}
        self.lost |= down & set(leased)
        # Somebody else had the hole, so the next one is another; and so is one that comes back
        # from being down.
        filled = self._passed_over.difference(self.idle) | down
        self._passed_over -= filled
        # A clock that was set back makes no wait longer than it is.
        self._refused = {
            node: min(until, now + REFUSED_S)
            for node, until in self._refused.items()
            if until > now and node not in filled
        }
        self._idle_since = {name: min(now, self._idle_since.get(name, now)) for name in self.idle}
        self.steady = self._were_idle(self.idle)

    def suits(self, node: Idle) -> bool:
        """Return whether a node has GPUs enough."""
        return self._terms.logical or node.gpus >= self._terms.gpus

    def suiting(self) -> list[str]:
        """Return all nodes that have GPUs enough, idle or not."""
        return [name for name, node in self.nodes.items() if self.suits(node)]

    def refuse(self, node: str, *, passed_over: bool = False) -> None:
        """Ask for a node no more for a while; `passed_over`: somebody else had its hole.

        All others are asked for again together. A trainer that needs several nodes would never
        have them at once if each lease, unused, ended before the next one begins.
        """
        until = time.time() + REFUSED_S
        if passed_over:
            self._passed_over.add(node)
        else:
            others = self._refused.keys() - self._passed_over
            until = min([until, *(self._refused[each] for each in others)])
        self._refused[node] = until

    def idle_since(self, node: str) -> float:
        """Return since when a node has been idle, as far as observed; epoch seconds."""
        return self._idle_since.get(node, time.time())

    def hole(self, node: str, ends_s: float) -> Hole:
        """Describe a node that is idle until an instant.

        Parameters
        ----------
        node : str
        ends_s : float
            Epoch seconds; infinite if no end is known.
        """
        age_s = time.time() - self.idle_since(node)
        lasts_s = fits_s(self._seen(), age_s, self._terms.longest_s)
        return Hole(node, ends_s, self.nodes[node].limit_s, lasts_s)
