"""The division of nodes among users by their weights, and of a user's among harvesters. No I/O.

What a user says counts as a wish alone: it bounds what the user gets, and takes nothing from others
beyond the weights and the reservations that the administrator has given.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType
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
    limits : Mapping[str, int]
        Class of nodes → the most nodes of it at a time.
    """

    weight: float = 1.0
    priority: float = 0.0
    limit: int | None = None
    limits: Mapping[str, int] = MappingProxyType({})


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


class Reserved(NamedTuple):
    """Nodes that some users have before all others, at this moment.

    Attributes
    ----------
    nodes : int
        So many at most, of all these users together; no more than they want.
    users : frozenset of str
    ends_at : float
        When that ends, in seconds since the epoch.
    until : str
        The same, in words for those who wait.
    """

    nodes: int
    users: frozenset[str]
    ends_at: float = 0.0
    until: str = ""


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


class Bounds(NamedTuple):
    """What bounds the parts of users in a division.

    Numbers are whole where nodes are.

    Attributes
    ----------
    begin : Mapping[str, float]
        User → nodes that count as had already.
    most : Mapping[str, float]
        User → the most nodes to come to, those included.
    left : Mapping[str, float]
        Pool → the nodes that it may have besides.
    first : tuple of (float, frozenset of str)
        Nodes that some users have before all others, in this order.
    """

    begin: Mapping[str, float]
    most: Mapping[str, float]
    left: Mapping[str, float]
    first: tuple[tuple[float, frozenset[str]], ...] = ()


def bounds_of(
    wants: Mapping[str, int],
    shares: Mapping[str, Share],
    without: Mapping[str, int],
    pools: Pools,
    reserved: Iterable[Reserved],
) -> Bounds:
    """Return the bounds of users who want nodes, where all nodes are of one class.

    Parameters
    ----------
    wants : Mapping[str, int]
        By user.
    shares, without, pools, reserved
        As for :func:`divide`.
    """
    begin = {user: without.get(user, 0) for user in wants}
    return Bounds(
        begin,
        {user: _most(shares.get(user, Share()), begin[user], want) for user, want in wants.items()},
        pools.left(without),
        tuple(unmet(reserved, without)),
    )


class _Claim(NamedTuple):
    share: Share
    want: int
    have: int
    begin: int = 0
    pools: tuple[str, ...] = ()
    behind: float = 0.0


def divide(
    nodes: int,
    wishes: Mapping[str, Wish],
    shares: Mapping[str, Share],
    without: Mapping[str, int],
    pools: Pools = NO_POOLS,
    *,
    reserved: Iterable[Reserved] = (),
    behind: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, int]:
    """Divide nodes among harvesters.

    Reserved nodes come first, in the order of `reserved`: a user who has more than his part by
    weight for that reason gets no more until others have theirs. So nobody else has less than his
    weight gives of the other nodes.

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
    reserved : iterable of Reserved
        Those of now.
    behind : Mapping[str, float]
        By how much of a node the part of a user is rounded up rather than to the nearest, from -½
        (always down) to ½ (always up); see :mod:`hpcext.broker.rounding`.
    """
    bounds = bounds_of(wants_of(wishes), shares, without, pools, reserved)
    return dealt(nodes, wishes, shares, bounds, pools.of, behind=behind)


def wants_of(wishes: Mapping[str, Wish]) -> Counter[str]:
    """Return how many nodes each user wants."""
    found = Counter[str]()
    for wish in wishes.values():
        found[wish.user] += wish.want
    return found


def dealt(
    nodes: int,
    wishes: Mapping[str, Wish],
    shares: Mapping[str, Share],
    bounds: Bounds,
    pools_of: Mapping[str, tuple[str, ...]],
    *,
    behind: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, int]:
    """Divide nodes among harvesters within bounds.

    Parameters
    ----------
    nodes, wishes, shares, behind
        As for :func:`divide`.
    bounds : Bounds
    pools_of : Mapping[str, tuple of str]
        User → the pools that count the nodes of this user.
    """
    of_user: dict[str, dict[str, Wish]] = defaultdict(dict)
    for name, wish in wishes.items():
        of_user[wish.user][name] = wish
    claims = {}
    for user, own in of_user.items():
        begin = int(bounds.begin[user])
        have = begin + sum(each.have for each in own.values())
        claims[user] = _Claim(
            shares.get(user, Share()),
            int(bounds.most[user]),
            have,
            begin,
            pools_of.get(user, ()),
            behind.get(user, 0.0),
        )
    deal = _Deal(claims, bounds.left)
    for part, users in bounds.first:
        nodes -= deal.give(min(nodes, int(part)), users)
    deal.give(nodes)
    parts, found = deal.gained(), {}
    for user, own in of_user.items():
        within = _Deal({name: _Claim(Share(), each.want, each.have) for name, each in own.items()})
        within.give(parts[user])
        found.update(within.gained())
    return found


def _most(share: Share, begin: int, want: int) -> int:
    """Return the most nodes that a user may come to, who has some without leave."""
    want += begin
    return want if share.limit is None else min(want, max(begin, share.limit))


def unmet(
    reserved: Iterable[Reserved], without: Mapping[str, float]
) -> Iterator[tuple[float, frozenset[str]]]:
    """Yield how many nodes of each reservation its users do not hold without leave, and the users.

    A node counts for one reservation of its user alone: several add up.
    """
    had = dict(without)
    for each in reserved:
        left: float = each.nodes
        for user in sorted(each.users & had.keys()):
            counts = min(left, had[user])
            had[user] -= counts
            left -= counts
        yield left, each.users


class _Deal:
    """Nodes that are given one by one, each to whoever has least at that point by weight.

    The next node goes where ``(n + 1/2) / weight`` is smallest (the method of Webster), so that
    parts are proportional up to rounding; a tie stays where the node is. `left` is how many nodes
    pools may have; whoever is in one that has none left gets no more.
    """

    def __init__(
        self, claims: Mapping[str, _Claim], left: Mapping[str, float] = NO_POOLS.limits
    ) -> None:
        self._claims = claims
        self._left = dict(left)
        self._counts = {name: claim.begin for name, claim in claims.items()}

    def give(self, nodes: int, among: Set[str] | None = None) -> int:
        """Give nodes to some of the users, or to all; return how many were given."""
        claims, counts, left = self._claims, self._counts, self._left
        able = [
            self._place(name)
            for name, claim in claims.items()
            if counts[name] < claim.want and (among is None or name in among)
        ]
        heapq.heapify(able)
        given = 0
        while able and given < nodes:
            name = able[0][-1]
            pools = claims[name].pools
            if any(left[pool] <= 0 for pool in pools):
                heapq.heappop(able)
                continue
            given += 1
            counts[name] += 1
            for pool in pools:
                left[pool] -= 1
            if counts[name] < claims[name].want:
                heapq.heapreplace(able, self._place(name))
            else:
                heapq.heappop(able)
        return given

    def gained(self) -> dict[str, int]:
        """Return how many nodes each was given."""
        return {name: self._counts[name] - claim.begin for name, claim in self._claims.items()}

    def _place(self, name: str) -> tuple[float, float, bool, str]:
        claim, there = self._claims[name], self._counts[name]
        level = (there + 0.5 - claim.behind) / claim.share.weight
        return -claim.share.priority, level, there >= claim.have, name


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
