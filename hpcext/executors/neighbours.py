"""Other harvesters of a partition, as its queue shows them, and a harvester's part beside them."""

from __future__ import annotations

import os
import pwd
from collections import Counter
from collections.abc import Iterable

from hpcext.batch.leasing import Other
from hpcext.executors.shares import Stake, drawn, parts

TURN_S = 60.0
"""So long what is left over of a division is for the same one, if nobody has it yet."""

STUCK_S = 600.0
"""So long nobody waits for a harvester whose leases did not begin though there were idle nodes."""


class Neighbours:
    """What is known of them.

    Parameters
    ----------
    name : str
        Of our own jobs.
    patience_s : float
        So long an idle node may wait for the lease of another to begin. Limits of a site may keep
        it from that for ever, and the node is not to stay idle for it.

    Attributes
    ----------
    leased, asked : frozenset of str
        Nodes that they have, and that they wait for.
    """

    def __init__(self, name: str, patience_s: float) -> None:
        self._name = name
        self._patience_s = patience_s
        self._user = _user()
        self._others: tuple[Other, ...] = ()
        self.leased: frozenset[str] = frozenset()
        self.asked: frozenset[str] = frozenset()
        self._parts: dict[str, int] = {}
        self._now_s = 0.0
        self._had: Counter[str] = Counter()
        # Since when leases of a harvester wait while nodes are idle; until when nobody minds them.
        self._waits: dict[str, float] = {}
        self._stuck: dict[str, float] = {}

    def see(self, others: Iterable[Other], idle: bool, now_s: float) -> None:
        """Take up what the queue shows now.

        Parameters
        ----------
        others : iterable of Other
        idle : bool
            Whether there are nodes that nobody has.
        now_s : float
        """
        known = tuple(others)
        self._now_s = now_s
        has = Counter(each.harvester for each in known if each.begun)
        waiting = {each.harvester for each in known if not each.begun and idle}
        more = {name for name in has if has[name] > self._had[name]}
        self._had = has
        self._waits = {name: self._waits.get(name, now_s) for name in waiting - more}
        late = {name for name, at in self._waits.items() if now_s - at >= self._patience_s}
        self._stuck = {
            name: until for name, until in self._stuck.items() if until > now_s and name not in more
        } | dict.fromkeys(late, now_s + STUCK_S)
        self._others = tuple(
            each for each in known if each.begun or each.harvester not in self._stuck
        )
        self.leased = frozenset(each.node for each in known if each.begun)
        self.asked = frozenset(each.node for each in self._others if not each.begun)

    def divide(self, idle: int, held: int, have: int, want: int) -> int | None:
        """Our part of all nodes; None where there is nobody else.

        Parameters
        ----------
        idle : int
            Nodes that nobody has, and that could be leased.
        held : int
            Those that we have.
        have : int
            Of these, those that we are not giving back.
        want : int
            So many we could use.
        """
        if not self._others:
            self._parts = {}
            return None
        has = Counter(each.harvester for each in self._others if each.begun)
        users = {each.harvester: each.user for each in self._others}
        wants = Counter(each.harvester for each in self._others)
        stakes = {name: Stake(user, has[name], wants[name]) for name, user in users.items()}
        stakes[self._name] = Stake(self._user, have, want)
        nodes, turn = idle + held + len(self.leased), int(self._now_s // TURN_S)
        self._parts = parts(nodes, stakes, turn)
        return self._parts[self._name]

    def to_give(self) -> list[str]:
        """Nodes of those that have more than their part, and that nobody waits for; in the order
        in which we ask for them."""
        has = Counter(each.harvester for each in self._others if each.begun)
        found = [
            each.node
            for each in self._others
            if each.begun
            and has[each.harvester] > self._parts.get(each.harvester, 0)
            and each.node not in self.asked
        ]
        return sorted(found, key=lambda node: drawn(self._name, node))


def _user() -> str:
    """Our name, as squeue(1) has it (%u)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
