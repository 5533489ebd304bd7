"""A change of the group of ranks that is under way, as the launcher keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from hpcext.rendezvous import Group


@dataclass
class Change:
    """A change of the group that is under way.

    Attributes
    ----------
    group : Group
        The group that it is to become.
    nodes : tuple of int
        The index of the node of each of its ranks.
    devices : str or None
        The GPUs of this node in the order of its ranks; None: as they are.
    proposed : bool
        Whether every new rank is ready, and the old ones have been told.
    asked : bool
        Whether the manager has asked for it, and not the death of a rank.
    gpus, had : tuple of str
        What the manager said: ``HOST:INDEX``, one for each rank that is to be, and that was.
    """

    group: Group
    nodes: tuple[int, ...]
    devices: str | None = None
    proposed: bool = False
    asked: bool = False
    gpus: tuple[str, ...] = ()
    had: tuple[str, ...] = ()
