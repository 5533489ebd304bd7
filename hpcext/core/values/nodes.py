"""Nodes, and GPUs on them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Alloc = Mapping[str, int]
"""Node name → GPUs on it."""


def total(alloc: Alloc | None) -> int:
    """Count the GPUs in an allocation; 0 for None."""
    return sum(alloc.values()) if alloc else 0


def per_node(alloc: Alloc) -> int:
    """Return how many GPUs an allocation has on each node; 0 where that differs."""
    counts = set(alloc.values())
    return counts.pop() if len(counts) == 1 else 0


class Node(msgspec.Struct, frozen=True):
    """A node that may be used.

    Attributes
    ----------
    name : str
    gpus : int
        How many GPUs (or logical slots) it offers.
    kind : str
        The kind of these GPUs, as the batch system or the driver names it; empty if unknown. GPUs
        of the same kind are alike.
    since_s : float or None
        Since when it has been idle, or offered; None in a fact: since the fact.
    ends_s : float or None
        When it must be given back at the latest, if that is known.
    planned : bool
        Whether another job is planned to use it then. Otherwise `ends_s` is only a limit, and the
        node will probably leave before it.
    seats : int
        How many jobs share each of its GPUs, each on a seat of its own: what it offers as GPUs are
        these seats. 0: a GPU is one job's.
    """

    name: str
    gpus: int
    kind: str = ""
    since_s: float | None = None
    ends_s: float | None = None
    planned: bool = True
    seats: int = 0

    @property
    def real_gpus(self) -> int:
        """GPUs, whether jobs share them or not."""
        return self.gpus // self.seats if self.seats else self.gpus
