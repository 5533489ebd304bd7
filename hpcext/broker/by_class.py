"""The division of nodes of several classes, one class after another. No I/O.

The nodes of each class are divided like those of a site without classes: by the same weights,
priorities, reservations and limits, among users who may have nodes of the class and still want any.
What a user was given of the classes before counts towards all that is for all nodes: what he wants,
his limit, limits together, and reservations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpcext.broker.division import Bounds, Pools, Reserved, Share, Wish, dealt, unmet, wants_of
from hpcext.broker.entitlement import filled

NONE = ""
"""The class of nodes that are of no class; these are divided last."""

Parts = Mapping[str, Mapping[str, int]]
"""Class → harvester → nodes."""


class Layout(NamedTuple):
    """The nodes of a site in classes.

    Attributes
    ----------
    names : tuple of str
        The classes in the order in which their nodes are divided, :data:`NONE` at the end. Empty:
        the site has no classes.
    of : Mapping[str, str]
        Node → class; what is not there is of no class.
    without : Mapping[str, Mapping[str, int]]
        Class → user → nodes without leave.
    """

    names: tuple[str, ...] = ()
    of: Mapping[str, str] = MappingProxyType({})
    without: Mapping[str, Mapping[str, int]] = MappingProxyType({})

    def by_class(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        """Return nodes by class, each class in its order, also those without nodes."""
        if not self.names:
            return {NONE: list(nodes)}
        found: dict[str, list[str]] = {name: [] for name in self.names}
        for node in nodes:
            found[self.of.get(node, NONE)].append(node)
        return found

    def counts(self, nodes: Iterable[str]) -> Counter[str]:
        """Return how many of some nodes are of each class."""
        return Counter(self.of.get(node, NONE) for node in nodes)


def totals(parts: Parts) -> Counter[str]:
    """Return the nodes of each harvester, of all classes."""
    found = Counter[str]()
    for own in parts.values():
        found.update(own)
    return found


class Rules(NamedTuple):
    """What a division by class obeys, for all classes.

    Attributes
    ----------
    shares : Mapping[str, Share]
        By user.
    had : Mapping[str, Mapping[str, int]]
        Class → user → nodes that count as had already, as those without leave do.
    pools : Pools
    reserved : tuple of Reserved
    behind : Mapping[str, float]
        As for :func:`~hpcext.broker.division.divide`, in each class.
    """

    shares: Mapping[str, Share]
    had: Mapping[str, Mapping[str, int]]
    pools: Pools
    reserved: tuple[Reserved, ...] = ()
    behind: Mapping[str, float] = MappingProxyType({})


def divide_by_class(
    nodes: Mapping[str, int],
    wishes: Mapping[str, Wish],
    have: Mapping[str, Mapping[str, int]],
    rules: Rules,
    keep: Collection[str] = (),
) -> dict[str, dict[str, int]]:
    """Divide nodes among harvesters, class after class; return the parts by class.

    Parameters
    ----------
    nodes : Mapping[str, int]
        Class → nodes, in the order in which classes are divided.
    wishes : Mapping[str, Wish]
        By harvester, of all classes together.
    have : Mapping[str, Mapping[str, int]]
        Class → harvester → the nodes that it has.
    rules : Rules
    keep : collection of str
        Harvesters that get no other nodes than those that they have.
    """
    course, found = _Course(rules), {}
    left = {name: wish.want for name, wish in wishes.items()}
    for name, count in nodes.items():
        own = have.get(name, {})
        now = {}
        for each, wish in wishes.items():
            has = own.get(each, 0)
            want = min(left[each], has) if each in keep else left[each]
            now[each] = Wish(wish.user, want, has)
        bounds = course.bounds(name, wants_of(now))
        found[name] = dealt(count, now, rules.shares, bounds, rules.pools.of, behind=rules.behind)
        gained = Counter[str]()
        for each, part in found[name].items():
            left[each] -= part
            gained[wishes[each].user] += part
        course.take(gained)
    return found


def entitled_by_class(
    nodes: Mapping[str, int], wants: Mapping[str, int], rules: Rules
) -> dict[str, float]:
    """Return what users are entitled to of all classes together, if nodes could be divided.

    Parameters
    ----------
    nodes : Mapping[str, int]
        Class → nodes, in the order in which classes are divided.
    wants : Mapping[str, int]
        By user, of all classes together.
    rules : Rules
    """
    course = _Course(rules)
    left: dict[str, float] = dict(wants)
    for name, count in nodes.items():
        bounds = course.bounds(name, left)
        gained = filled(count, rules.shares, bounds, rules.pools.of)
        left = {user: want - gained[user] for user, want in left.items()}
        course.take(gained)
    return {user: course.gained[user] for user in wants}


class _Course:
    """What users may have of the next class, after what they were given of those before."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        # Of all classes, with what was given so far.
        self._has: dict[str, float] = defaultdict(int)
        for own in rules.had.values():
            for user, nodes in own.items():
                self._has[user] += nodes
        self._left: dict[str, float] = dict(rules.pools.limits)
        self._count_in_pools(self._has)
        self.gained: dict[str, float] = defaultdict(int)

    def bounds(self, name: str, wants: Mapping[str, float]) -> Bounds:
        """Return the bounds of a class, for users who want so many nodes besides."""
        had = self._rules.had.get(name, {})
        begin = {user: had.get(user, 0) for user in wants}
        return Bounds(
            begin,
            {user: begin[user] + self._room(user, name, want) for user, want in wants.items()},
            self._left,
            tuple(unmet(self._rules.reserved, self._has)),
        )

    def _room(self, user: str, name: str, want: float) -> float:
        share = self._rules.shares.get(user, Share())
        room = want
        if share.limit is not None:
            room = min(room, share.limit - self._has[user])
        if name in share.limits:
            had = self._rules.had.get(name, {}).get(user, 0)
            room = min(room, share.limits[name] - had)
        return max(0, room)

    def take(self, gained: Mapping[str, float]) -> None:
        """Take up what users were given of a class."""
        for user, nodes in gained.items():
            self._has[user] += nodes
            self.gained[user] += nodes
        self._count_in_pools(gained)

    def _count_in_pools(self, nodes: Mapping[str, float]) -> None:
        for user, count in nodes.items():
            for pool in self._rules.pools.of.get(user, ()):
                self._left[pool] = self._left.get(pool, 0) - count
