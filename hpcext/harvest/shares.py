"""The division of idle nodes among harvesters that see each other in the queue. No I/O.

No central process deals out nodes. Each harvester computes all parts from what the queue shows,
by the same rule, and does what follows for itself: it takes idle nodes up to its part, it asks for
nodes when it has less, and it gives back what it has beyond its own and another asks for.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

WINDOW_S = 300.0
"""Seconds after which past use no longer counts."""

SLACK = 0.1
"""A user whose recent use exceeds the mean by this part counts as having one node more."""

SLACK_NODE_S = 20.0
"""Smaller differences do not count: a node takes this long to change hands."""

AHEAD = 2
"""The most nodes that past use counts for: it leaves a user one node less than an equal part, or
two less if parts differ by one."""


class Stake(NamedTuple):
    """A harvester's nodes, and how many it could use.

    Attributes
    ----------
    user : str
    have : int
        Nodes.
    want : int
        Nodes, those that it has included.
    used : float
        Node-seconds that it had in the last :data:`WINDOW_S`.
    """

    user: str
    have: int
    want: int
    used: float = 0.0


def parts(nodes: int, stakes: Mapping[str, Stake], turn: int = 0) -> dict[str, int]:
    """Divide nodes among harvesters.

    The users get equal parts, and the harvesters of a user equal parts of theirs; a harvester that
    wants less than its part leaves the rest to the others (max-min fairness). A user who had more
    node-seconds lately is treated as having a node or two already, so that inequality is evened
    out. The remainder of a division stays where it is, so that no node changes hands because of it;
    if it is free, it goes to the user who had least lately, and to another one in each turn.

    Parameters
    ----------
    nodes : int
        That are idle, or leased by any of them.
    stakes : Mapping[str, Stake]
        Harvester → what it has and wants.
    turn : int
        The same number for all harvesters that compute at the same time.
    """
    users: dict[str, dict[str, Stake]] = defaultdict(dict)
    for name, stake in stakes.items():
        users[stake.user][name] = stake
    sums = {
        user: Stake(
            user,
            sum(stake.have for stake in own.values()),
            sum(stake.want for stake in own.values()),
            sum(stake.used for stake in own.values()),
        )
        for user, own in users.items()
    }
    of_users = _divided(nodes, sums, turn)
    found = {}
    for user, own in users.items():
        found.update(_divided(of_users[user], own, turn))
    return found


def _divided(nodes: int, stakes: Mapping[str, Stake], turn: int) -> dict[str, int]:
    """Give each node to the one that has least at that point; return the parts by name."""
    found = dict.fromkeys(stakes, 0)
    ahead = _ahead(stakes)
    order = {name: drawn(name, str(turn)) for name in stakes}

    def place(name: str) -> tuple[int, bool, float, str, str]:
        there, stake = found[name], stakes[name]
        return there + ahead[name], there >= stake.have, stake.used, order[name], name

    able = [place(name) for name, stake in stakes.items() if stake.want > 0]
    heapq.heapify(able)
    for _ in range(nodes):
        if not able:
            break
        name = able[0][-1]
        found[name] += 1
        if found[name] < stakes[name].want:
            heapq.heapreplace(able, place(name))
        else:
            heapq.heappop(able)
    return found


def _ahead(stakes: Mapping[str, Stake]) -> dict[str, int]:
    """Return with how many nodes each is counted for what it had lately."""
    had = [stake.used for stake in stakes.values()]
    # Who has all that it wants is no measure for the others.
    short = [stake.used for stake in stakes.values() if stake.want > stake.have]
    least = min(short or had, default=0.0)
    much = max(SLACK * sum(had) / max(1, len(had)), SLACK_NODE_S)
    return {
        name: min(AHEAD, max(0, int((stake.used - least) // much)))
        for name, stake in stakes.items()
    }


def drawn(seed: str, node: str) -> str:
    """Draw where a node comes in the order of a harvester: at random, and the same each time.

    Parameters
    ----------
    seed : str
        The name of the harvester.
    node : str
    """
    return hashlib.sha256(f"{seed}\0{node}".encode()).hexdigest()
