"""What harvesters are told while nodes are on their way from one to another. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def may_have(
    grants: Mapping[str, int], have: Mapping[str, int], waits: Mapping[str, int]
) -> dict[str, int]:
    """Return how many nodes each harvester is told that it may have.

    That is its grant, or what it has, as long as nobody who is granted more than he has waits for
    a node in the queue: words alone take no node from anybody.

    Parameters
    ----------
    grants, have, waits : Mapping[str, int]
        By harvester: nodes granted, nodes held, leases that wait in the queue.
    """
    owed = sum(
        max(0, min(may - have.get(name, 0), waits.get(name, 0))) for name, may in grants.items()
    )
    told = {
        name: max(grants.get(name, 0), have.get(name, 0)) for name in grants.keys() | have.keys()
    }
    over = [(grants.get(name, 0) - told[name], name) for name in sorted(told)]
    heapq.heapify(over)
    for _ in range(owed):
        less, name = over[0]
        if less >= 0:
            break
        told[name] -= 1
        heapq.heapreplace(over, (less + 1, name))
    return told
