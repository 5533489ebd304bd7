"""What a broker shows of users: rows of its status, made of what is decided. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

from hpcext.broker.account import Account, Had
from hpcext.broker.decision import Standing
from hpcext.broker.division import Pools, Share
from hpcext.broker.fair_share import Reading
from hpcext.broker.harvesters import Harvester
from hpcext.broker.reservations import USER, Reservation
from hpcext.broker.settings import Settings

MOST_ROWS = 1000
"""Users beyond whom those are shown as one who have nothing now, so that an answer has room."""


def users(
    known: Set[str], own: Mapping[str, Sequence[Harvester]], settings: Settings, reading: Reading,
    *, grants: Mapping[str, int], held: Mapping[str, int], account: Account,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:  # fmt: skip
    """Return a row for each user, and what all those had together for whom there is no room.

    Parameters
    ----------
    known : set of str
        Users.
    own : Mapping[str, sequence of Harvester]
        Those of each user that have asked.
    settings : Settings
    reading : Reading
        What the batch system has said.
    grants : Mapping[str, int]
        By harvester.
    held : Mapping[str, int]
        Nodes of users, as the batch system shows.
    account : Account
    """
    here = set(known) & (own.keys() | held.keys())
    past = sorted(set(known) - here, key=lambda user: (-account.of(user).held_node_s, user))
    room = max(0, MOST_ROWS - len(here))
    # Rounded as in rows: sums do not fall when a user comes back.
    left = [_rounded(account.of(user)) for user in past[room:]]
    rows = [
        row(
            user,
            own.get(user, ()),
            settings,
            reading,
            grants=grants,
            held=held.get(user, 0),
            had=account.of(user),
        )
        for user in sorted(here.union(past[:room]))
    ]
    sums = {key: round(sum(had[key] for had in left), 1) for key in _rounded(Had())}
    return rows, {"users": len(left), **sums}


def shares(settings: Settings, reading: Reading, now_s: float) -> dict[str, Any]:
    """Return where weights come from, and whether that can be read.

    Parameters
    ----------
    settings : Settings
    reading : Reading
        What the batch system has said.
    now_s : float
    """
    age_s = None if reading.read_s is None else round(now_s - reading.read_s, 1)
    failed = reading.failed if settings.asks else ""
    return {"from": settings.shares, "age_s": age_s, "failed": failed}


def together(pools: Pools, held: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return what `pools` may have, and have, from the nodes `held` by users."""
    sums = Counter[str]()
    for user, nodes in held.items():
        sums.update(dict.fromkeys(pools.of.get(user, ()), nodes))
    return [
        {"name": name, "limit": limit, "held": sums[name]} for name, limit in pools.limits.items()
    ]


def reservation(
    each: Reservation, at_s: float, names: Mapping[str, Set[str]], held: Mapping[str, int], *,
    all_: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return what is shown of a reservation.

    Parameters
    ----------
    each : Reservation
    at_s : float
        Now, in seconds since the epoch.
    names : Mapping[str, set of str]
        User → the names of limits and reservations that are for this user.
    held : Mapping[str, int]
        Nodes of users.
    all_ : bool
        Whether nodes of other users are shown.
    """
    users = [user for user in names if each.owner in names[user]]
    return {
        "for": each.owner,
        "nodes": each.nodes,
        "begins_at": each.begins_at,
        "ends_at": each.ends_at,
        "holds": each.holds(at_s),
        "held": sum(held[user] for user in users) if all_ or each.kind == USER else None,
    }


def reservations(
    all_of: Sequence[Reservation], at_s: float, names_of: Callable[[str], Set[str]],
    held: Mapping[str, int], *, viewer: str | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the reservations that hold or are to come, as somebody may see them.

    Of those of a group or an account, only administrators see what its members have.

    Parameters
    ----------
    all_of : sequence of Reservation
    at_s : float
        Now, in seconds since the epoch.
    names_of : callable
        The names of limits and reservations that are for a user.
    held : Mapping[str, int]
        Nodes of users.
    viewer : str or None
        The user who sees the own ones; None: an administrator, who sees all.
    """
    if not all_of:
        return []
    names = {user: names_of(user) for user in (held if viewer is None else (viewer,))}
    return [
        reservation(each, at_s, names, held, all_=viewer is None)
        for each in all_of
        if each.ends_at > at_s and (viewer is None or each.owner in names[viewer])
    ]


def classes(
    known: Set[str], standing: Standing, granted: Mapping[str, Collection[str]],
    holders: Mapping[str, str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return what users have of each class of nodes, and may have.

    Parameters
    ----------
    known : set of str
        Users who are shown.
    standing : Standing
        At the last decision.
    granted : Mapping[str, collection of str]
        The nodes of each harvester by it.
    holders : Mapping[str, str]
        Node → the user who has it.
    """
    layout = standing.layout
    held = Counter((user, layout.of.get(node, "")) for node, user in holders.items())
    given = Counter(
        (standing.parties[name].user, layout.of.get(node, ""))
        for name, nodes in granted.items()
        if name in standing.parties
        for node in nodes
    )
    rows = [
        {
            "class": name,
            "user": user,
            "limit": standing.shares.get(user, Share()).limits.get(name),
            "granted": given[user, name],
            "held": held[user, name],
        }
        for name in layout.names
        for user in sorted(known & {*standing.shares, *holders.values()})
    ]
    return [row for row in rows if row["limit"] is not None or row["granted"] or row["held"]][
        :MOST_ROWS
    ]


def row(
    user: str, own: Sequence[Harvester], settings: Settings, reading: Reading, *,
    grants: Mapping[str, int], held: int, had: Had,
) -> dict[str, Any]:  # fmt: skip
    """Return what is shown of a user.

    Parameters
    ----------
    user : str
    own : sequence of Harvester
        Those of the user that have asked.
    settings : Settings
    reading : Reading
        What the batch system has said.
    grants : Mapping[str, int]
        By harvester.
    held : int
        Nodes that the user has, as the batch system shows.
    had : Had
        The account of the user.
    """
    share, _ = settings.part(user, reading)
    granted = sum(grants.get(one.key, 0) for one in own)
    return {
        "user": user,
        "weight": share.weight,
        "fair_share": settings.factor(user, reading),
        "priority": share.priority,
        "limit": share.limit,
        "harvesters": len(own),
        "trainers": sum(len(one.said) for one in own),
        "want": sum(one.want for one in own),
        "granted": granted,
        "held": held,
        "owed": max(0, granted - held),
        **_rounded(had),
    }


def _rounded(had: Had) -> dict[str, float]:
    return {
        "held_node_s": round(had.held_node_s, 1),
        "without_leave_node_s": round(had.without_node_s, 1),
    }
