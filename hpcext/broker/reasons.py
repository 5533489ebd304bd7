"""Why a harvester is granted fewer nodes than it wants, in a sentence for its user. No I/O.

It names no other user, and says of others' parts only that they have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcext.broker.decision import Standing
from hpcext.broker.division import Share


def less(key: str, standing: Standing, grants: Mapping[str, int], nodes: int, *, said: int) -> str:
    """Return why a harvester is granted fewer nodes than it wants; empty if it is not.

    Parameters
    ----------
    key : str
        Of the harvester.
    standing : Standing
        At the last decision.
    grants : Mapping[str, int]
        What harvesters were granted then.
    nodes : int
        That were divided.
    said : int
        How many nodes it says it can use.
    """
    party = standing.parties[key]
    if grants.get(key, 0) >= said:
        return ""
    if party.want < said and grants.get(key, 0) >= party.want:
        return "its user has not used what was granted before, so others may have it for a while"
    own = sum(grants.get(name, 0) for name in standing.of(party.user))
    if why := _limit(party.user, own, standing, grants):
        return why
    if sum(grants.values()) < nodes:
        return "its trainers cannot use more of its part"
    if own == nodes:
        others = own - grants.get(key, 0)
        return "other harvesters of its user have the rest" if others else "there are no more"
    return _of_others(party.user, standing, grants)


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
