"""Other harvesters of a partition, as its queue shows them, and our own part beside them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from hpcext import private
from hpcext.batch.leasing import Other
from hpcext.harvest.shares import WINDOW_S, Stake, drawn, parts

TURN_S = 60.0
"""Seconds for which the remainder of a division goes to the same harvester, if it is still free."""

STUCK_S = 600.0
"""Seconds for which others ignore a harvester whose leases did not begin despite idle nodes."""


class Neighbours:
    """The other harvesters of a partition, as far as its queue shows them.

    Parameters
    ----------
    name : str
        Of our own jobs.
    patience_s : float
        Seconds for which an idle node may wait for another harvester's lease to begin. Limits of
        the site may prevent that for ever, and the node should not stay idle because of it.

    Attributes
    ----------
    leased, asked : frozenset of str
        Nodes that they have, and that they wait for.
    waiting : int
        The number of their leases that wait, for one of these nodes or for any.
    next : bool
        Whether the next node that becomes free should be ours.
    """

    def __init__(self, name: str, patience_s: float) -> None:
        self._name = name
        self._patience_s = patience_s
        # As squeue(1) has it (%u).
        self._user = private.own_name()
        self._others: tuple[Other, ...] = ()
        self.leased: frozenset[str] = frozenset()
        self.asked: frozenset[str] = frozenset()
        self.waiting = 0
        self.next = False
        # Of all harvesters, ourselves included: the leases of the last minutes, by harvester, node
        # and begin. The queue forgets those that have ended.
        self._past: dict[tuple[str, str, float], Other] = {}
        self._shown: tuple[Other, ...] = ()
        self._parts: dict[str, int] = {}
        # Nodes that others have beyond what the broker of the site grants them.
        self._beyond: frozenset[str] = frozenset()
        self._now_s = 0.0
        self._had: Counter[str] = Counter()
        # Since when leases of a harvester wait while nodes are idle; until when they are ignored.
        self._waits: dict[str, float] = {}
        self._stuck: dict[str, float] = {}

    def see(self, others: Iterable[Other], idle: bool, now_s: float) -> None:
        """Take up what the queue shows now.

        Parameters
        ----------
        others : iterable of Other
            The leases of all harvesters; ours as well if the queue shows when they began.
        idle : bool
            Whether there are free nodes.
        now_s : float
        """
        self._now_s = now_s
        self._shown = tuple(others)
        self._remember()
        known = tuple(
            each for each in self._shown if each.harvester != self._name and each.until_s is None
        )
        has = Counter(each.harvester for each in known if each.begun)
        asking = {each.harvester for each in known if not each.begun and idle}
        more = {name for name in has if has[name] > self._had[name]}
        self._had = has
        # A clock that was set back makes no wait longer than it is.
        self._waits = {name: min(now_s, self._waits.get(name, now_s)) for name in asking - more}
        late = {name for name, at in self._waits.items() if now_s - at >= self._patience_s}
        self._stuck = {
            name: min(until, now_s + STUCK_S)
            for name, until in self._stuck.items()
            if until > now_s and name not in more
        } | dict.fromkeys(late, now_s + STUCK_S)
        self._others = tuple(
            each for each in known if each.begun or each.harvester not in self._stuck
        )
        self.leased = frozenset(each.node for each in known if each.begun)
        waiting = [each.node for each in self._others if not each.begun]
        self.waiting = len(waiting)
        self.asked = frozenset(waiting) - {""}

    def _remember(self) -> None:
        """Record the node time of the last minutes.

        A lease that is no longer shown is assumed to have ended at the last look.
        """
        for each in self._shown:
            if each.begun and each.since_s is not None:
                until_s = self._now_s if each.until_s is None else each.until_s
                key = (each.harvester, each.node, each.since_s)
                self._past[key] = each._replace(until_s=until_s)
        gone_s = self._now_s - WINDOW_S
        self._past = {
            key: each for key, each in self._past.items() if (each.until_s or 0.0) > gone_s
        }

    def _used(self, users: Mapping[str, str]) -> dict[str, float]:
        """Count the node-seconds of the last minutes, since all these users have been there.

        Parameters
        ----------
        users : Mapping[str, str]
            Harvester → its user, to whom the time of ended harvesters is charged as well.
        """
        came: dict[str, float] = {}
        for each in (*self._past.values(), *self._shown):
            at_s = each.since_s if each.asked_s is None else each.asked_s
            if at_s is not None:
                came[each.user] = min(at_s, came.get(each.user, math.inf))
        # A user who has only just come has no claim to what others had before.
        from_s = max(came.get(user, self._now_s) for user in users.values())
        from_s = max(from_s, self._now_s - WINDOW_S)
        count = Counter(users.values())
        used = dict.fromkeys(users, 0.0)
        for each in self._past.values():
            node_s = max(0.0, (each.until_s or 0.0) - max(each.since_s or 0.0, from_s))
            if each.harvester in used:
                used[each.harvester] += node_s
            else:
                for name in (name for name, user in users.items() if user == each.user):
                    used[name] += node_s / count[each.user]
        return used

    def divide(self, idle: int, held: int, have: int, want: int) -> int | None:
        """Return our part of all nodes; None if there are no others and were none lately.

        Parameters
        ----------
        idle : int
            Free nodes that could be leased.
        held : int
            Those that we have.
        have : int
            Those among them that we are not giving back.
        want : int
            The number of nodes that we could use.
        """
        self.next, self._beyond = False, frozenset()
        # Main jobs may have taken all that others had a moment ago.
        if not self._others and all(each.harvester == self._name for each in self._past.values()):
            self._parts = {}
            return None
        has = Counter(each.harvester for each in self._others if each.begun)
        wants = Counter(each.harvester for each in self._others)
        users = {each.harvester: each.user for each in self._others}
        used = self._used({**users, self._name: self._user})
        stakes = {
            name: Stake(user, has[name], wants[name], used[name]) for name, user in users.items()
        }
        stakes[self._name] = Stake(self._user, have, want, used[self._name])
        nodes, turn = idle + held + len(self.leased), int(self._now_s // TURN_S)
        self._parts = parts(nodes, stakes, turn)
        part = self._parts[self._name]
        # Not before others that still wait for their part: we would take back what we just gave.
        due = any(self._parts[name] > has[name] for name in users)
        self.next = not due and parts(nodes + 1, stakes, turn)[self._name] > part
        return part

    def obey(self, part: int, is_next: bool, claim: Iterable[str]) -> int:
        """Take up what the broker of the site says in place of :meth:`divide`, and return our part.

        Parameters
        ----------
        part : int
            The number of nodes that we may have.
        is_next : bool
            Whether the next node that becomes free should be ours.
        claim : iterable of str
            Nodes that others have beyond their part.
        """
        self.next, self._beyond, self._parts = is_next, frozenset(claim), {}
        return part

    def to_ask(self, nodes: Iterable[str]) -> list[str]:
        """Order nodes for claims: first those of harvesters that have more than their part.

        Where a batch system takes any node, it is one like the first.
        """
        has = Counter(each.harvester for each in self._others if each.begun)
        more = {name for name in has if has[name] > self._parts.get(name, 0)}
        give = self._beyond or {
            each.node for each in self._others if each.begun and each.harvester in more
        }
        free = (node for node in nodes if node not in self.asked)
        return sorted(free, key=lambda node: (node not in give, drawn(self._name, node)))
