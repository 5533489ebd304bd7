"""The division of nodes among users by their weights, and of a user's among harvesters. No I/O.

What a user says counts as a wish alone: it bounds what the user gets, and takes nothing from others
beyond the weights that the administrator has given.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Share(NamedTuple):
    """What an administrator grants a user.

    Attributes
    ----------
    weight : float
        Beside the other users of the same priority, > 0.
    priority : float
        Users of a higher one have all that they want first.
    limit : int or None
        The most nodes at a time.
    """

    weight: float = 1.0
    priority: float = 0.0
    limit: int | None = None


class Pools(NamedTuple):
    """Limits of several users together.

    Attributes
    ----------
    limits : Mapping[str, int]
        Pool → the most nodes at a time of all of its users.
    of : Mapping[str, tuple of str]
        User → the pools that count the nodes of this user.
    """

    limits: Mapping[str, int] = {}
    of: Mapping[str, tuple[str, ...]] = {}

    def left(self, without: Mapping[str, int]) -> Counter[str]:
        """Return how many nodes each pool may have besides those without leave."""
        left = Counter(self.limits)
        for user, nodes in without.items():
            for pool in self.of.get(user, ()):
                left[pool] -= nodes
        return left


NO_POOLS = Pools()


class Wish(NamedTuple):
    """What a harvester wants.

    Attributes
    ----------
    user : str
    want : int
        The most nodes that it can use.
    have : int
        Those that it has.
    """

    user: str
    want: int
    have: int = 0


class _Claim(NamedTuple):
    share: Share
    want: int
    have: int
    begin: int = 0
    pools: tuple[str, ...] = ()


def divide(
    nodes: int,
    wishes: Mapping[str, Wish],
    shares: Mapping[str, Share],
    without: Mapping[str, int],
    pools: Pools = NO_POOLS,
) -> dict[str, int]:
    """Divide nodes among harvesters.

    Parameters
    ----------
    nodes : int
        That are idle, or leased by one of these harvesters.
    wishes : Mapping[str, Wish]
        By harvester.
    shares : Mapping[str, Share]
        By user.
    without : Mapping[str, int]
        Nodes that a user's other harvesters hold without leave: they count as had.
    pools : Pools
        What several users may have together.
    """
    of_user: dict[str, dict[str, Wish]] = defaultdict(dict)
    for name, wish in wishes.items():
        of_user[wish.user][name] = wish
    claims = {}
    for user, own in of_user.items():
        share, begin = shares.get(user, Share()), without.get(user, 0)
        want = begin + sum(each.want for each in own.values())
        want = want if share.limit is None else min(want, max(begin, share.limit))
        have = begin + sum(each.have for each in own.values())
        claims[user] = _Claim(share, want, have, begin, pools.of.get(user, ()))
    parts = _dealt(nodes, claims, pools.left(without))
    found = {}
    for user, own in of_user.items():
        equal = {name: _Claim(Share(), each.want, each.have) for name, each in own.items()}
        found.update(_dealt(parts[user], equal))
    return found


def _dealt(
    nodes: int, claims: Mapping[str, _Claim], left: Mapping[str, int] = NO_POOLS.limits
) -> dict[str, int]:
    """Give each node to the one that has least at that point by weight; return what each gained.

    The next node goes where ``(n + 1/2) / weight`` is smallest (the method of Webster), so that
    parts are proportional up to rounding; a tie stays where the node is. `left` is how many nodes
    pools may have; whoever is in one that has none left gets no more.
    """
    left = dict(left)
    counts = {name: claim.begin for name, claim in claims.items()}

    def place(name: str) -> tuple[float, float, bool, str]:
        share, there = claims[name].share, counts[name]
        return -share.priority, (there + 0.5) / share.weight, there >= claims[name].have, name

    able = [place(name) for name, claim in claims.items() if claim.want > claim.begin]
    heapq.heapify(able)
    while able and nodes > 0:
        name = able[0][-1]
        pools = claims[name].pools
        if any(left[pool] <= 0 for pool in pools):
            heapq.heappop(able)
            continue
        nodes -= 1
        counts[name] += 1
        for pool in pools:
            left[pool] -= 1
        if counts[name] < claims[name].want:
            heapq.heapreplace(able, place(name))
        else:
            heapq.heappop(able)
    return {name: counts[name] - claim.begin for name, claim in claims.items()}


def assign(
    parts: Mapping[str, int],
    nodes: Iterable[str],
    held: Mapping[str, str],
    used: Mapping[str, Iterable[str]],
) -> dict[str, list[str]]:
    """Choose the nodes of each part: first those that it has and uses, then free ones by name.

    Parameters
    ----------
    parts : Mapping[str, int]
        By harvester.
    nodes : iterable of str
    held : Mapping[str, str]
        Node → the harvester that has it.
    used : Mapping[str, iterable of str]
        The nodes that a harvester's trainers have by the last decision.
    """
    left = dict.fromkeys(sorted(nodes))
    own: dict[str, list[str]] = defaultdict(list)
    for node, name in held.items():
        if node in left:
            own[name].append(node)
    found: dict[str, list[str]] = {}
    for name, part in sorted(parts.items()):
        known = set(used.get(name, ()))
        found[name] = sorted(own[name], key=lambda node: (node not in known, node))[:part]
        for node in found[name]:
            del left[node]
    for name, part in sorted(parts.items()):
        again = sorted(node for node in used.get(name, ()) if node in left)
        for node in again[: part - len(found[name])]:
            found[name].append(node)
            del left[node]
    # Free ones before those that another harvester has yet to give back.
    rest = iter(sorted(left, key=lambda node: (node in held, node)))
    for name, part in sorted(parts.items()):
        found[name] += itertools.islice(rest, part - len(found[name]))
    return found
