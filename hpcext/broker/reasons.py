"""Why a harvester is granted fewer nodes than it wants, in a sentence for its user. No I/O.

It names no other user, and says of others' parts only that they have them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hpcext.broker.decision import Standing
from hpcext.broker.division import Share
from hpcext.text import listed

MOST_NAMED = 3
"""Classes that a sentence names at most."""


def less(
    key: str,
    standing: Standing,
    granted: Mapping[str, Collection[str]],
    offered: Collection[str],
    *,
    said: int,
) -> str:
    """Return why a harvester is granted fewer nodes than it wants; empty if it is not.

    Parameters
    ----------
    key : str
        Of the harvester.
    standing : Standing
        At the last decision.
    granted : Mapping[str, collection of str]
        The nodes that harvesters were granted then.
    offered : collection of str
        Nodes that were divided.
    said : int
        How many nodes it says it can use.
    """
    party, nodes = standing.parties[key], len(offered)
    grants = {name: len(own) for name, own in granted.items()}
    if grants.get(key, 0) >= said:
        return ""
    if party.want < said and grants.get(key, 0) >= party.want:
        return "its user has not used what was granted before, so others may have it for a while"
    own = sum(grants.get(name, 0) for name in standing.of(party.user))
    if why := _limit(party.user, own, standing, grants):
        return why
    full, others = _classes(party.user, standing, granted, offered)
    if full and not others:
        return full
    why = _rest(key, own, standing, grants, nodes)
    return f"{full}, and {why}" if full else why


def _rest(key: str, own: int, standing: Standing, grants: Mapping[str, int], nodes: int) -> str:
    """Return why a user who has reached no limit has no more than his own nodes."""
    user = standing.parties[key].user
    if sum(grants.values()) < nodes:
        return "its trainers cannot use more of its part"
    if own == nodes:
        others = own - grants.get(key, 0)
        return "other harvesters of its user have the rest" if others else "there are no more"
    return _of_others(user, standing, grants)


def _classes(
    user: str,
    standing: Standing,
    granted: Mapping[str, Collection[str]],
    offered: Collection[str],
) -> tuple[str, bool]:
    """Return which limits by class a user has reached, and whether there are other nodes for him.

    A class of which he has all nodes matters to neither.
    """
    limits = standing.shares.get(user, Share()).limits
    if not limits:
        return "", True
    layout = standing.layout
    there = layout.counts(offered)
    has = layout.counts(node for name in standing.of(user) for node in granted.get(name, ()))
    said, others = [], False
    for name in layout.names:
        if there[name] <= has[name]:
            continue
        without = layout.without.get(name, {}).get(user, 0)
        if name in limits and has[name] + without >= limits[name]:
            said.append(f"the limit of the class {name} is {limits[name]}")
        else:
            others = True
    return listed(said, most=MOST_NAMED), others


def _limit(user: str, own: int, standing: Standing, grants: Mapping[str, int]) -> str:
    """Return which limit a user with so many nodes of his own has reached; empty if none."""
    limit = standing.shares.get(user, Share()).limit
    if limit is not None and own + standing.without.get(user, 0) >= limit:
        return f"the limit of its user is {limit}"
    for pool in standing.pools.of.get(user, ()):
        most = standing.pools.limits[pool]
        if _pooled(pool, standing, grants) >= most:
            return f"all users of its {pool} may have {most} together"
    return ""


def _of_others(user: str, standing: Standing, grants: Mapping[str, int]) -> str:
    if until := _reserved(user, standing, grants):
        return f"others have a reservation until {until}, and the rest is divided by weights"
    mine = standing.shares.get(user, Share()).priority
    for name, party in standing.parties.items():
        theirs = standing.shares.get(party.user, Share()).priority
        if theirs > mine and grants.get(name, 0):
            return "users of a higher priority, and others by their weights, have the rest"
    return "other users have the rest, by their weights"


def _reserved(user: str, standing: Standing, grants: Mapping[str, int]) -> str:
    """Return until when others have nodes by a reservation; empty if none have."""
    have = {party.user for name, party in standing.parties.items() if grants.get(name, 0)}
    theirs = [each for each in standing.reserved if user not in each.users and each.users & have]
    return max(theirs, key=lambda each: each.ends_at).until if theirs else ""


def _pooled(pool: str, standing: Standing, grants: Mapping[str, int]) -> int:
    """Return how many nodes of a pool are granted, or had without leave."""
    users = {user for user, pools in standing.pools.of.items() if pool in pools}
    found = sum(standing.without.get(user, 0) for user in users)
    return found + sum(grants.get(name, 0) for user in users for name in standing.of(user))
