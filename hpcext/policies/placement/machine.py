"""The inventory of all nodes: their kinds, and their widths in GPUs."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

from hpcext.core.values import Node
from hpcext.scaling.identity import of_a_machine

Widths = tuple[tuple[int, int], ...]
"""Pairs of a width in GPUs and the number of nodes of that width, the widest first."""


class Inventory(NamedTuple):
    """Facts about all nodes that policies need repeatedly.

    Attributes
    ----------
    parts : Mapping[str, Widths]
        Widths by kind.
    widths : Mapping[str, int]
        GPUs by node.
    kinds : Mapping[str, str]
        Kind by node.
    alike : int
        GPUs of each node; 0 if the nodes differ.
    """

    parts: Mapping[str, Widths]
    widths: Mapping[str, int]
    kinds: Mapping[str, str]
    alike: int


@of_a_machine
def machine_of(nodes: Mapping[str, Node]) -> Inventory:
    """Return the facts about nodes; they are computed once while the nodes stay the same."""
    widths = {name: node.gpus for name, node in nodes.items()}
    kinds = {name: node.kind for name, node in nodes.items()}
    alike = collections.Counter(zip(kinds.values(), widths.values(), strict=True))
    by_kind: dict[str, list[tuple[int, int]]] = {}
    for (kind, gpus), count in alike.items():
        by_kind.setdefault(kind, []).append((gpus, count))
    parts = {kind: tuple(sorted(each, reverse=True)) for kind, each in by_kind.items()}
    found = set(widths.values())
    return Inventory(parts, widths, kinds, found.pop() if len(found) == 1 else 0)


def free_of(kinds: Mapping[str, str], free: Mapping[str, int]) -> dict[str, int]:
    """Return the number of free GPUs by kind, in the order of the nodes.

    Parameters
    ----------
    kinds : Mapping[str, str]
        Kind by node.
    free : Mapping[str, int]
        Free GPUs by node.
    """
    one = only_kind(kinds)
    if one is not None:
        return {one: sum(free.values())}
    totals: dict[str, int] = {}
    for name, left in free.items():
        totals[kinds[name]] = totals.get(kinds[name], 0) + left
    return totals


@of_a_machine
def only_kind(kinds: Mapping[str, str]) -> str | None:
    """Return the kind of all nodes; None if there are several."""
    found = set(kinds.values())
    return found.pop() if len(found) == 1 else None
