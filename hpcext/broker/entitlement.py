"""What weights entitle users to, if nodes could be divided into parts of any size. No I/O.

This is the measure of a division into whole nodes: it follows from the same weights, priorities,
limits and reservations, but by another method. The level ``nodes / weight`` of those who have least
rises until something stops one of them, again and again (weighted max-min fairness).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from hpcext.broker.division import NO_POOLS, Bounds, Pools, Reserved, Share, bounds_of

TINY = 1e-9
"""Nodes that are none, but an error of rounding."""


def entitled(
    nodes: float,
    wants: Mapping[str, int],
    shares: Mapping[str, Share],
    without: Mapping[str, int],
    pools: Pools = NO_POOLS,
    *,
    reserved: Iterable[Reserved] = (),
) -> dict[str, float]:
    """Return the nodes that each user is entitled to, besides those without leave.

    Parameters
    ----------
    nodes : float
        That are divided.
    wants : Mapping[str, int]
        By user.
    shares, without, pools, reserved
        As for :func:`~hpcext.broker.division.divide`.
    """
    bounds = bounds_of(wants, shares, without, pools, reserved)
    return filled(nodes, shares, bounds, pools.of)


def filled(
    nodes: float,
    shares: Mapping[str, Share],
    bounds: Bounds,
    pools_of: Mapping[str, tuple[str, ...]],
) -> dict[str, float]:
    """Return the nodes that each user is entitled to within bounds.

    Parameters
    ----------
    nodes : float
        That are divided.
    shares : Mapping[str, Share]
        By user.
    bounds : Bounds
    pools_of : Mapping[str, tuple of str]
        User → the pools that count the nodes of this user.
    """
    glasses = _Glasses(shares, bounds, pools_of)
    for part, users in bounds.first:
        nodes -= glasses.pour(min(nodes, part), bounds.most.keys() & users)
    glasses.pour(nodes, bounds.most.keys())
    return glasses.gained()


class _Glasses:
    """What users have, as the levels of glasses that are as wide as their weights."""

    def __init__(
        self,
        shares: Mapping[str, Share],
        bounds: Bounds,
        pools_of: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._shares = {user: shares.get(user, Share()) for user in bounds.most}
        self._begin = bounds.begin
        self._has = {user: float(begin) for user, begin in bounds.begin.items()}
        self._most = bounds.most
        self._pools = pools_of
        self._left = {pool: float(left) for pool, left in bounds.left.items()}

    def gained(self) -> dict[str, float]:
        return {user: has - self._begin[user] for user, has in self._has.items()}

    def pour(self, nodes: float, users: Collection[str]) -> float:
        """Fill the glasses of some users, those of the highest priority first; return how much."""
        of_priority: dict[float, list[str]] = defaultdict(list)
        for user in users:
            of_priority[self._shares[user].priority].append(user)
        left = nodes
        for priority in sorted(of_priority, reverse=True):
            left -= self._fill(left, of_priority[priority])
        return nodes - left

    def _fill(self, nodes: float, users: Collection[str]) -> float:
        left = nodes
        while left > TINY and (able := [user for user in users if self._able(user)]):
            levels = {user: self._has[user] / self._shares[user].weight for user in able}
            lowest = min(levels.values())
            edge = lowest * (1 + TINY) + TINY
            rising = [user for user in able if levels[user] <= edge]
            above = min((level for level in levels.values() if level > edge), default=math.inf)
            rise = min(above - lowest, self._room(rising, left))
            for user in rising:
                more = self._shares[user].weight * rise
                self._has[user] += more
                left -= more
                for pool in self._pools.get(user, ()):
                    self._left[pool] -= more
        return nodes - left

    def _able(self, user: str) -> bool:
        room = self._most[user] - self._has[user]
        return room > TINY and all(self._left[pool] > TINY for pool in self._pools.get(user, ()))

    def _room(self, rising: Collection[str], nodes: float) -> float:
        """Return how far the level of some users can rise before something ends or is full."""
        weights = {user: self._shares[user].weight for user in rising}
        of_pool: dict[str, float] = defaultdict(float)
        for user, weight in weights.items():
            for pool in self._pools.get(user, ()):
                of_pool[pool] += weight
        full = ((self._most[user] - self._has[user]) / weight for user, weight in weights.items())
        ends = (self._left[pool] / weight for pool, weight in of_pool.items())
        return min(nodes / math.fsum(weights.values()), *full, *ends)
