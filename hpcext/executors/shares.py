"""How harvesters that see each other in the queue divide the idle nodes. No I/O.

Nobody deals nodes out. Each harvester computes the parts of all of them from what the queue shows,
by the same rule, and does what follows for itself: it takes idle nodes up to its part, it asks for
nodes of those that have more than theirs, and it gives back what it has beyond its own.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple


class Stake(NamedTuple):
    """What one harvester has, and what it could use.

    Attributes
    ----------
    user : str
    have : int
        Nodes.
    want : int
        Nodes, those that it has included.
    """

    user: str
    have: int
    want: int


def parts(nodes: int, stakes: Mapping[str, Stake], turn: int = 0) -> dict[str, int]:
    """How many nodes each harvester is to have.

    The users get equal parts, and the harvesters of a user equal parts of theirs; who wants less
    than its part leaves the rest to the others (max-min fairness). What is left over of a division
    stays where it is, so that no node changes hands for it; where nobody has it yet, it is
    another's in each turn.

    Parameters
    ----------
    nodes : int
        That are idle, or leased by any of them.
    stakes : Mapping[str, Stake]
        Harvester → what it has and wants.
    turn : int
        The same number for all who compute at the same time.
    """
    users: dict[str, list[str]] = defaultdict(list)
    for name, stake in stakes.items():
        users[stake.user].append(name)
    sums = {
        user: (
            sum(stakes[name].have for name in names),
            sum(stakes[name].want for name in names),
        )
        for user, names in users.items()
    }
    of_users = _divided(nodes, sums, turn)
    found = {}
    for user, names in users.items():
        own = {name: (stakes[name].have, stakes[name].want) for name in names}
        found.update(_divided(of_users[user], own, turn))
    return found


def _divided(nodes: int, asking: Mapping[str, tuple[int, int]], turn: int) -> dict[str, int]:
    """Name → its part; `asking` has what each has, and wants."""
    found: dict[str, int] = {}
    # Who wants less than an equal part of what is left gets all that it wants.
    rest = sorted(asking, key=lambda name: (asking[name][1], name))
    left = max(0, nodes)
    while rest and asking[rest[0]][1] <= left // len(rest):
        name = rest.pop(0)
        found[name] = asking[name][1]
        left -= found[name]
    if rest:
        each, over = divmod(left, len(rest))
        # One more for some: for those that have it already, if there are such.
        rest.sort(key=lambda name: (-min(asking[name][0], each + 1), drawn(name, str(turn))))
        for place, name in enumerate(rest):
            found[name] = each + (place < over)
    return found


def drawn(seed: str, node: str) -> str:
    """Where a node comes in the order of a harvester: at random, and the same each time."""
    return hashlib.sha256(f"{seed}\0{node}".encode()).hexdigest()
