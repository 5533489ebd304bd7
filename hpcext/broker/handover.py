"""What harvesters are told while nodes are on their way from one to another. No I/O."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from hpcext.broker.by_class import NONE, Layout
from hpcext.broker.division import Share, assign
from hpcext.broker.harvesters import Harvester


class Told(NamedTuple):
    """What harvesters are told.

    Attributes
    ----------
    nodes : Mapping[str, int]
        By harvester: how many it may have.
    only : Mapping[str, tuple of str] or None
        By harvester: the nodes that it may have, and no others; None: any.
    beyond : frozenset of str
        Nodes that harvesters have beyond what they are granted.
    """

    nodes: Mapping[str, int]
    only: Mapping[str, tuple[str, ...]] | None = None
    beyond: frozenset[str] = frozenset()

    def only_of(self, name: str) -> tuple[str, ...] | None:
        """Return the nodes that a harvester may have, and no others; None: any."""
        return None if self.only is None else self.only.get(name, ())

    def users_of(
        self, idle: Collection[str], own: Mapping[str, Iterable[Harvester]]
    ) -> Collection[str]:
        """Return the users who may take one of some idle nodes, as they have been told.

        Parameters
        ----------
        idle : collection of str
        own : Mapping[str, iterable of Harvester]
            The harvesters of each user.
        """
        if self.only is None:
            return own.keys() if idle else ()
        there = set(idle)
        return {
            user
            for user, harvesters in own.items()
            if any(not there.isdisjoint(self.only.get(one.key, ())) for one in harvesters)
        }


def told(
    granted: Mapping[str, Collection[str]],
    held: Mapping[str, str],
    waits: Iterable[tuple[str, str]],
    nodes: Collection[str],
    layout: Layout,
) -> Told:
    """Return what harvesters are told after a decision.

    Without classes they are told numbers. With classes they are also told which nodes, as a number
    says nothing of the class: those that they have and may keep, those that are idle, and those
    that others have yet to give back.

    Parameters
    ----------
    granted : Mapping[str, collection of str]
        The nodes of each harvester by the decision. Nodes of a class are alike: it may have as many
        others of the class.
    held : Mapping[str, str]
        Node → the harvester that has it.
    waits : iterable of (str, str)
        Harvester and node of each lease that waits in the queue; the node is empty if it waits for
        any, or that is unknown.
    nodes : collection of str
        That were divided.
    layout : Layout
    """
    waiting = list(waits)
    if not layout.names:
        grants = {name: len(own) for name, own in granted.items()}
        have = Counter(held.values())
        over = (node for node, name in held.items() if have[name] > grants.get(name, 0))
        may = may_have(grants, have, Counter(name for name, _ in waiting))
        return Told(may, beyond=frozenset(over))
    asked = {node for _, node in waiting}
    there, in_class = layout.by_class(nodes), layout.by_class(held)
    counts = {name: layout.counts(own) for name, own in granted.items()}
    numbers, only, beyond = Counter[str](), dict[str, list[str]](), set[str]()
    for of in layout.names:
        grants = {name: count[of] for name, count in counts.items()}
        here = {node: held[node] for node in in_class[of]}
        waits_here = Counter(
            name for name, node in waiting if not node or layout.of.get(node, NONE) == of
        )
        may = may_have(grants, Counter(here.values()), waits_here)
        parts = assign(grants, there[of], here, granted)
        for name, number in may.items():
            own = parts.get(name, [])
            more = [node for node, holder in here.items() if holder == name and node not in own]
            beyond.update(more)
            # Those for which somebody waits are the first to be given back.
            more.sort(key=lambda node: (node in asked, node))
            only.setdefault(name, []).extend(own + more[: max(0, number - grants.get(name, 0))])
            numbers[name] += number
    return Told(numbers, {name: tuple(own) for name, own in only.items()}, frozenset(beyond))


def excess(
    granted: Mapping[str, Collection[str]], held: Mapping[str, str], before: Told
) -> Counter[str]:
    """Return how many nodes each harvester has beyond what it was granted.

    Where it was told which nodes, others count that it was not told, whatever their number.

    Parameters
    ----------
    granted : Mapping[str, collection of str]
        By harvester.
    held : Mapping[str, str]
        Node → the harvester that has it.
    before : Told
        What harvesters were told last.
    """
    have, others = Counter(held.values()), Counter[str]()
    if before.only is not None:
        may = {name: frozenset(own) for name, own in before.only.items()}
        others.update(name for node, name in held.items() if node not in may.get(name, ()))
    return Counter(
        {name: max(0, have[name] - len(granted.get(name, ())), others[name]) for name in have}
    )


def over_limits(
    holders: Mapping[str, str], shares: Mapping[str, Share], layout: Layout
) -> Counter[str]:
    """Return how many nodes users have beyond their limits by class.

    Parameters
    ----------
    holders : Mapping[str, str]
        Node → the user who has it.
    shares : Mapping[str, Share]
        By user.
    layout : Layout
    """
    found = Counter[str]()
    have = Counter((user, layout.of.get(node, NONE)) for node, user in holders.items())
    for (user, name), count in have.items():
        limit = shares[user].limits.get(name) if user in shares else None
        if limit is not None:
            found[user] += max(0, count - limit)
    return found


def may_have(
    grants: Mapping[str, int], have: Mapping[str, int], waits: Mapping[str, int]
) -> dict[str, int]:
    """Return how many nodes each harvester is told that it may have.

    That is its grant, or what it has, as long as nobody who is granted more than he has waits for
    a node in the queue: words alone take no node from anybody.

    Parameters
    ----------
    grants, have, waits : Mapping[str, int]
        By harvester: nodes granted, nodes held, leases that wait in the queue.
    """
    owed = sum(
        max(0, min(may - have.get(name, 0), waits.get(name, 0))) for name, may in grants.items()
    )
    told = {
        name: max(grants.get(name, 0), have.get(name, 0)) for name in grants.keys() | have.keys()
    }
    over = [(grants.get(name, 0) - told[name], name) for name in sorted(told)]
    heapq.heapify(over)
    for _ in range(owed):
        less, name = over[0]
        if less >= 0:
            break
        told[name] -= 1
        heapq.heapreplace(over, (less + 1, name))
    return told
