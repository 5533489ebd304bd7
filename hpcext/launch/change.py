"""A change of the group of ranks: what the manager requests, and one that is under way."""

from __future__ import annotations

from collections.abc import Collection
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


def leaving(size: int, lost: Collection[int], multiple: int) -> set[int]:
    """Return which ranks leave because others are lost, so that whole replicas are left.

    Parameters
    ----------
    size : int
        The ranks before.
    lost : collection of int
    multiple : int
        Ranks that hold the model together; each one's remainder says which part of it it has.
    """
    left = [rank for rank in range(size) if rank not in lost]
    broken = {rank // multiple for rank in lost}
    # Rather those whose replica is not whole; not the first, and none that alone has its part.
    order = sorted(left[1:], key=lambda rank: (rank // multiple not in broken, -rank))
    found: set[int] = set()
    for rank in order:
        if not (len(left) - len(found)) % multiple:
            break
        same = [other for other in left if other % multiple == rank % multiple]
        if len({*same} - found) > 1:
            found.add(rank)
    return found
