"""Whose part is rounded up, so that over hours users have what their weights say. No I/O.

Nodes are whole. Where weights entitle fifty users to 7.8 nodes each, some have eight and others
seven, and without this always the same ones. A user who has got behind by :data:`SHARE` of what he
has been entitled to so far has the next node, until he is even again; one who is ahead by as much
goes without it. In the long run a node changes hands for that once in hours.

On its way from one user to another a node is still the former's for a while: the latter has to ask
the batch system for it, and the former's training has to end. :class:`Handovers` counts that time
for whom it was, or users whose parts change often would have more than others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

SHARE, LEAST_NODE_S, DUE_NODE_S = 0.01, 600.0, 3600.0
"""Parts are rounded otherwise from so large a share of what a user has been entitled to since he
came, but not from fewer node-seconds, since a node that changes hands costs two trainings time, and
from so many at the latest."""

MOST_NODE_S = 2 * DUE_NODE_S
"""More is forgotten: what users missed long ago, for whatever reason, they do not get later."""

UP, DOWN = 0.5, -0.5

LEAST_RATE = 1e-6
"""Nodes; a smaller difference from what weights entitle to is one of arithmetic."""


class Due(msgspec.Struct, frozen=True):
    """What a user is behind, of what weights have entitled the user to since the user came.

    Attributes
    ----------
    node_s : float
        Node-seconds; less than 0: ahead.
    entitled_node_s : float
        Of so many.
    """

    node_s: float = 0.0
    entitled_node_s: float = 0.0


class Handovers:
    """Node-seconds that users had of nodes that were others' by the decision.

    They are counted once the node is the other's: words alone, or a wish that nobody makes use of,
    take nothing from anybody.
    """

    def __init__(self) -> None:
        self._held: Mapping[str, int] | None = None
        self._lacking: dict[str, int] = {}
        # Node-seconds, of nodes that are still lacking or were had by others until now.
        self._lacked: dict[str, float] = defaultdict(float)
        self._kept: dict[str, float] = defaultdict(float)

    def pass_to(
        self, passed_s: float, parts: Mapping[str, int], held: Mapping[str, int]
    ) -> dict[str, float]:
        """Return what users have had beyond their parts, less than 0: not had, in node-seconds.

        The sum is 0.

        Parameters
        ----------
        passed_s : float
            Seconds since the last look.
        parts, held : Mapping[str, int]
            Nodes by user: as decided at the last look, and as this one shows.
        """
        # Nobody has come or gone before the first look.
        before, self._held = held if self._held is None else self._held, dict(held)
        paid = {}
        for user, part in parts.items():
            was, has = before.get(user, 0), held.get(user, 0)
            # A change came at some time between the looks.
            had = (was + has) / 2
            if had > part:
                self._kept[user] += (had - part) * passed_s
            if (lacking := part - was) <= 0:
                self._lacked.pop(user, None)
                continue
            if lacking < (before_that := self._lacking.get(user, 0)):
                # The decision has changed: it waits no more for some of them.
                self._lacked[user] *= lacking / before_that
            self._lacked[user] += max(0.0, part - had) * passed_s
            if has > was:
                paid[user] = self._lacked[user] * min(1.0, (has - was) / lacking)
                self._lacked[user] -= paid[user]
        for user in self._lacked.keys() - parts.keys():
            del self._lacked[user]
        self._lacking = {
            user: part - has for user, part in parts.items() if part > (has := held.get(user, 0))
        }
        return self._settle(paid)

    def _settle(self, paid: Mapping[str, float]) -> dict[str, float]:
        kept, lacked = math.fsum(self._kept.values()), math.fsum(paid.values())
        settled = min(kept, lacked)
        found: dict[str, float] = defaultdict(float)
        if settled:
            for user, node_s in paid.items():
                found[user] -= node_s * settled / lacked
            for user, node_s in self._kept.items():
                found[user] += node_s * settled / kept
                self._kept[user] = node_s * (1 - settled / kept)
        if not self._lacking:
            # Nobody has come too late to what was kept.
            self._kept.clear()
        return found


class Rounding:
    """What the parts of users were, beside what weights entitled them to.

    Parameters
    ----------
    due : Mapping[str, Due]
        What the last broker has counted, by user.

    Attributes
    ----------
    behind : dict of str to float
        As :func:`~hpcext.broker.division.divide` takes it.
    due : dict of str to Due
        By user.
    """

    def __init__(self, due: Mapping[str, Due] = MappingProxyType({})) -> None:
        self.due = dict(due)
        self.behind: dict[str, float] = {}
        self._handovers = Handovers()
        self._entitled: Mapping[str, float] = {}
        self._parts: Mapping[str, int] = {}
        self._since_s: float | None = None
        self._turn()

    def pass_to(self, now_s: float, held: Mapping[str, int] | None = None) -> None:
        """Count until now what was decided last.

        Parameters
        ----------
        now_s : float
        held : Mapping[str, int] or None
            Nodes that users have by now; None: what was decided.
        """
        since_s, self._since_s = self._since_s, now_s
        if since_s is None:
            return
        passed_s = now_s - since_s
        more = {}
        if held is not None:
            more = self._handovers.pass_to(passed_s, self._parts, held)
        due = {}
        for user, entitled in self._entitled.items():
            old = self.due.get(user, Due())
            had = self._parts.get(user, 0) * passed_s + more.get(user, 0.0)
            node_s = old.node_s + entitled * passed_s - had
            due[user] = Due(
                max(-MOST_NODE_S, min(MOST_NODE_S, node_s)),
                old.entitled_node_s + entitled * passed_s,
            )
        self.due = due
        self._turn()

    def _turn(self) -> None:
        self.behind = {user: way for user, due in self.due.items() if (way := self._way(user, due))}

    def decided(self, entitled: Mapping[str, float], parts: Mapping[str, int]) -> None:
        """Take up what holds from now on, by user.

        Parameters
        ----------
        entitled : Mapping[str, float]
        parts : Mapping[str, int]
            As nodes were divided: what a user makes of his part does not matter.
        """
        self._entitled, self._parts = entitled, parts

    def turns_s(self) -> float:
        """Return the seconds until a part is to be rounded otherwise, if nothing else happens."""
        return min((self._turns_s(user) for user in self._entitled), default=math.inf)

    def _turns_s(self, user: str) -> float:
        rate = self._entitled[user] - self._parts.get(user, 0)
        due, was = self.due.get(user, Due()), self.behind.get(user, 0.0)
        if abs(rate) < LEAST_RATE or was * rate > 0:
            return math.inf
        until = 0.0 if was else math.copysign(_limit(due), rate)
        return (until - due.node_s) / rate

    def _way(self, user: str, due: Due) -> float:
        if abs(due.node_s) >= _limit(due):
            return UP if due.node_s > 0 else DOWN
        # On the way back until even: else a node would come and go at the limit.
        was = self.behind.get(user, 0.0)
        return was if was * due.node_s > 0 else 0.0


def _limit(due: Due) -> float:
    """Return the node-seconds behind or ahead from which a part is rounded otherwise."""
    return max(LEAST_NODE_S, min(DUE_NODE_S, SHARE * due.entitled_node_s))
