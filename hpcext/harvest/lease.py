"""A lease, which is a node that a batch system lends; and the choice of leases to give back."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from hpcext import documents
from hpcext.harvest.leases import Terms
from hpcext.launch import agent

log = logging.getLogger(__name__)

Loss = Callable[[str], "tuple[int, ...] | None"]
"""The cost of giving up a node, smaller if it costs less; None: it cannot be given up now."""


@dataclasses.dataclass
class Lease:
    """A lease as its harvester knows it.

    Attributes
    ----------
    number : int
    node : str
    kind : str
        Of its GPUs.
    directory : pathlib.Path
    asked_at : float
        Epoch.
    idle_at : float
        Since when its node was idle, as far as observed; epoch.
    job_id : int or None
        None until the batch system has said it.
    ends_at : float or None
        When its job ends at the latest, epoch.
    planned : bool
        Whether another job needs the node then.
    devices : tuple of str
        CUDA's names of the lease's GPUs; empty until its agent runs.
    answers : bool
        Whether its agent answers calls, as those of 0.2.0 do not.
    joined : bool
        The engine has its node.
    leaving : bool
        The node is wanted back.
    missing : int
        How many times in a row its job was not known.
    stopped_at : float or None
        When its job was first observed to be stopped; epoch.
    withdrawn : bool
        Whether it did not begin in time, so that the harvester no longer waits for it.
    released : bool
        Whether it is given back although no other job wants it.
    stale : bool
        Whether its file must be written again.
    claim : bool
        Whether it waits for a node that another harvester has, and should give up.
    anywhere : bool
        Whether it may begin on any node like its own, as far as is known.
    why : str
        The batch system's last reason why its job waits.
    """

    number: int
    node: str
    kind: str
    directory: Path
    asked_at: float
    idle_at: float
    job_id: int | None = None
    ends_at: float | None = None
    planned: bool = False
    devices: tuple[str, ...] = ()
    answers: bool = False
    joined: bool = False
    leaving: bool = False
    missing: int = 0
    stopped_at: float | None = None
    withdrawn: bool = False
    released: bool = False
    stale: bool = False
    claim: bool = False
    anywhere: bool = False
    why: str = ""

    @classmethod
    def read(cls, path: Path) -> Lease:
        """Read a ``lease.json`` that :meth:`write` has written.

        Raises
        ------
        UNFIT
            It is none, see :data:`hpcext.documents.UNFIT`.
        """
        said = documents.read_json(path, agent.LEASE)
        return cls(
            int(said["number"]),
            str(said["node"]),
            str(said["kind"]),
            path.parent,
            float(said["asked_at"]),
            float(said["idle_at"]),
            None if said["job_id"] is None else int(said["job_id"]),
            None if said["ends_at"] is None else float(said["ends_at"]),
            bool(said.get("planned", True)),
            released=(path.parent / agent.RELEASE_FILE).exists(),
            claim=bool(said.get("claim", False)),
            # It is not written down.
            anywhere=bool(said.get("claim", False)),
        )

    def write(self, terms: Terms) -> None:
        """Replace its ``lease.json``.

        Raises
        ------
        OSError
            There is no room, for example.
        """
        documents.write_json(self.directory / agent.LEASE_FILE, self._document(terms))
        self.stale = False

    def release(self) -> None:
        """Have its agent leave as soon as nothing runs there."""
        (self.directory / agent.RELEASE_FILE).touch()
        self.released = True

    def closing(self) -> bool:
        """Return whether nothing more is started there."""
        return self.released or os.path.lexists(self.directory / agent.LEAVING_FILE)

    def unused(self) -> bool:
        """Return whether that is so since nothing was."""
        return self._why() == agent.UNUSED

    def unneeded(self) -> bool:
        """Return whether its node was given back although no other job had asked for it."""
        why = self._why()
        if why == agent.AT_ITS_END:
            return not self.planned
        return why == agent.UNUSED or (self.released and why is None)

    def _why(self) -> str | None:
        """Read what its agent said when it began to leave; None: it has not said it."""
        with contextlib.suppress(OSError, ValueError):
            return documents.read_untrusted(self.directory / agent.LEAVING_FILE).decode()
        return None

    def _document(self, terms: Terms) -> dict[str, Any]:
        leave_at = None if self.ends_at is None else self.ends_at - terms.before_s
        return {
            "schema": agent.LEASE,
            "number": self.number,
            "node": self.node,
            "kind": self.kind,
            "asked_at": self.asked_at,
            "idle_at": self.idle_at,
            "job_id": self.job_id,
            "ends_at": self.ends_at,
            "planned": self.planned,
            "leave_at": leave_at,
            "idle_s": terms.idle_s,
            "claim": self.claim,
        }


def surplus(
    leases: Iterable[Lease], want: int, loss: Loss, asked: Collection[str] = ()
) -> list[Lease]:
    """Choose the leases to give back so that at most a number is left: those that cost least.

    Among leases with equal costs, one whose node another harvester has requested comes first, then
    the one that ends soonest. A lease that cannot be given up now is kept.

    Parameters
    ----------
    leases : iterable of Lease
    want : int
        Nodes.
    loss : callable
        The cost of giving up a node.
    asked : collection of str
        Nodes that other harvesters have requested.
    """
    there = [lease for lease in leases if not lease.leaving]
    costs = ((loss(lease.node) if lease.joined else (), lease) for lease in there)
    able = [(cost, lease) for cost, lease in costs if cost is not None]
    # Without an end it has not begun.
    able.sort(
        key=lambda each: (
            each[0], each[1].node not in asked, each[1].ends_at or 0.0, -each[1].number
        )
    )  # fmt: skip
    return [lease for _, lease in able[: max(0, len(there) - want)]]


def read_all(directory: Path) -> dict[int, Lease]:
    """Read the leases of an earlier manager, by number; files that are not valid are left alone."""
    found = {}
    for path in directory.glob(f"*/{agent.LEASE_FILE}"):
        try:
            lease = Lease.read(path)
        except documents.UNFIT as error:
            log.warning("%s cannot be read as a lease: %s", path, error)
            continue
        found[lease.number] = lease
    return found


def recorded(directory: Path) -> frozenset[str]:
    """Return the nodes of all recorded leases, including those that have ended."""
    found = set()
    for path in directory.glob(f"*/{agent.LEASE_FILE}"):
        with contextlib.suppress(*documents.UNFIT):
            found.add(str(documents.read_json(path, agent.LEASE)["node"]))
    return frozenset(found)
