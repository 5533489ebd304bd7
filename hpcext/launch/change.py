"""A change of the group of ranks: what the manager requests, and one that is under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hpcext import documents, protocol
from hpcext.rendezvous import REPAIRS, Group


class Request(NamedTuple):
    """A change that the manager requests: ``rescale.json``.

    Attributes
    ----------
    number : int
        The number of the group that it is to lead to.
    gpus, had : tuple of str
        ``HOST:INDEX``, one for each rank that is to be, and that is for all that the manager knows.
    nodes : tuple of int
        The index of the node of each rank that is to be.
    devices : str
        The GPUs of the first node in the order of its ranks.
    lost : frozenset of str
        Those of `had` that are gone without having left: their nodes are lost.
    """

    number: int
    gpus: tuple[str, ...]
    had: tuple[str, ...]
    nodes: tuple[int, ...]
    devices: str
    lost: frozenset[str]

    @classmethod
    def read(cls, attempt: protocol.Attempt) -> Request | None:
        """Read the last request to an attempt; None if there is none."""
        try:
            path = attempt.report_dir / protocol.RESCALE_FILE
            asked = documents.read_json(path, protocol.RESCALE)
            if (asked["attempt"], asked["op"]) != (attempt.attempt, attempt.op):
                return None
            gpus, had = (tuple(str(gpu) for gpu in asked[key]) for key in ("gpus", "had"))
            return cls(
                int(asked["resize"]) * REPAIRS,
                gpus,
                had,
                tuple(int(index) for index in asked.get("nodes") or [0] * len(gpus)),
                str(asked["devices"]),
                frozenset(str(gpu) for gpu in asked.get("lost") or ()),
            )
        except documents.UNFIT:
            return None


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
        ``HOST:INDEX``, one for each rank that is to be, and that is.
    """

    group: Group
    nodes: tuple[int, ...]
    devices: str | None = None
    proposed: bool = False
    asked: bool = False
    gpus: tuple[str, ...] = ()
    had: tuple[str, ...] = ()
