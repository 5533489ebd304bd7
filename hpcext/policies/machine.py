"""All nodes as policies look at them: their kinds, and how wide they are."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

from hpcext.core.values import Node
from hpcext.scaling.identity import of_a_machine

Widths = tuple[tuple[int, int], ...]
"""Of the nodes of a kind: GPUs, and how many nodes have so many; the widest first."""


class Machine(NamedTuple):
    """What is asked of all nodes again and again.

    Attributes
    ----------
    parts : Mapping[str, Part]
        By kind.
    widths : Mapping[str, int]
        GPUs by node.
    kinds : Mapping[str, str]
        By node.
    alike : int
        GPUs of every node; 0 if these differ.
    """

    parts: Mapping[str, Widths]
    widths: Mapping[str, int]
    kinds: Mapping[str, str]
    alike: int


@of_a_machine
def machine_of(nodes: Mapping[str, Node]) -> Machine:
    """In one pass, as long as they are the same."""
    widths = {name: node.gpus for name, node in nodes.items()}
    kinds = {name: node.kind for name, node in nodes.items()}
    alike = collections.Counter(zip(kinds.values(), widths.values(), strict=True))
    by_kind: dict[str, list[tuple[int, int]]] = {}
    for (kind, gpus), count in alike.items():
        by_kind.setdefault(kind, []).append((gpus, count))
    parts = {kind: tuple(sorted(each, reverse=True)) for kind, each in by_kind.items()}
    found = set(widths.values())
    return Machine(parts, widths, kinds, found.pop() if len(found) == 1 else 0)


def free_of(kinds: Mapping[str, str], free: Mapping[str, int]) -> dict[str, int]:
    """GPUs that are free, by kind in the order of the nodes."""
    one = only_kind(kinds)
    if one is not None:
        return {one: sum(free.values())}
    totals: dict[str, int] = {}
    for name, left in free.items():
        totals[kinds[name]] = totals.get(kinds[name], 0) + left
    return totals


@of_a_machine
def only_kind(kinds: Mapping[str, str]) -> str | None:
    """The kind of all nodes; None if there are several."""
    found = set(kinds.values())
    return found.pop() if len(found) == 1 else None
