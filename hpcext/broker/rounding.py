"""Whose part is rounded up, so that over hours users have what their weights say. No I/O.

Nodes are whole. Where weights entitle fifty users to 7.8 nodes each, some have eight and others
seven, and without this always the same ones. A user who has got behind by :data:`SHARE` of what he
has been entitled to so far has the next node, until he is even again; one who is ahead by as much
goes without it. In the long run a node changes hands for that once in hours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

SHARE, LEAST_NODE_S, DUE_NODE_S = 0.01, 600.0, 3600.0
"""Parts are rounded otherwise from so large a share of what a user has been entitled to since he
came, but not from fewer node-seconds, since a node that changes hands costs two trainings time, and
from so many at the latest."""

MOST_NODE_S = 2 * DUE_NODE_S
"""More is forgotten: what users missed long ago, for whatever reason, they do not get later."""

UP, DOWN = 0.5, -0.5

LEAST_RATE = 1e-6
"""Nodes; a smaller difference from what weights entitle to is one of arithmetic."""


class Rounding:
    """What the parts of users were, beside what weights entitled them to.

    Attributes
    ----------
    behind : dict of str to float
        As :func:`~hpcext.broker.division.divide` takes it.
    """

    def __init__(self) -> None:
        self.behind: dict[str, float] = {}
        self._due: dict[str, float] = {}
        # Since a user came, in node-seconds.
        self._sums: dict[str, float] = {}
        self._entitled: Mapping[str, float] = {}
        self._parts: Mapping[str, int] = {}
        self._since_s: float | None = None

    def pass_to(self, now_s: float) -> None:
        """Count until now what was decided last."""
        since_s, self._since_s = self._since_s, now_s
        if since_s is None:
            return
        passed_s = now_s - since_s
        due, sums = {}, {}
        for user, entitled in self._entitled.items():
            more = (entitled - self._parts.get(user, 0)) * passed_s
            due[user] = max(-MOST_NODE_S, min(MOST_NODE_S, self._due.get(user, 0.0) + more))
            sums[user] = self._sums.get(user, 0.0) + entitled * passed_s
        self._due, self._sums = due, sums
        self.behind = {
            user: way for user, node_s in due.items() if (way := self._way(user, node_s))
        }

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
        due, was = self._due.get(user, 0.0), self.behind.get(user, 0.0)
        if abs(rate) < LEAST_RATE or was * rate > 0:
            return math.inf
        until = 0.0 if was else math.copysign(self._limit(user), rate)
        return (until - due) / rate

    def _way(self, user: str, node_s: float) -> float:
        if abs(node_s) >= self._limit(user):
            return UP if node_s > 0 else DOWN
        # On the way back until even: else a node would come and go at the limit.
        was = self.behind.get(user, 0.0)
        return was if was * node_s > 0 else 0.0

    def _limit(self, user: str) -> float:
        """Return the node-seconds behind or ahead from which a part is rounded otherwise."""
        return max(LEAST_NODE_S, min(DUE_NODE_S, SHARE * self._sums.get(user, 0.0)))
