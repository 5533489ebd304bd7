"""The division of idle nodes among harvesters that see each other in the queue. No I/O.

Nobody deals nodes out. Each harvester computes the parts of all of them from what the queue shows,
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
"""What was had before does not count."""

SLACK = 0.1
"""Who had more than the others lately, by this part of the mean, is counted as one node more."""

SLACK_NODE_S = 20.0
"""By less than that nobody is behind: so long it takes until a node has changed hands."""

AHEAD = 2
"""Nobody is counted with more nodes than these for what it had: it is left one less than equal
parts, or two of them where parts are equal but for one."""


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

    The users get equal parts, and the harvesters of a user equal parts of theirs; who wants less
    than its part leaves the rest to the others (max-min fairness). Who had more node-seconds
    lately is dealt as if it had a node or two already, so that what was unequal is made up for.
    What is left over of a division stays where it is, so that no node changes hands for it; where
    nobody has it yet, it is of who had least lately, and of another in each turn.

    Parameters
    ----------
    nodes : int
        That are idle, or leased by any of them.
    stakes : Mapping[str, Stake]
        Harvester → what it has and wants.
    turn : int
        The same number for all who compute at the same time.
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
    """Give each node to who has least by then; returns the parts by name."""
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
