"""What a harvester asks of a batch system: idle nodes, when they are needed, and leases of them.

One for each system; which it is, :func:`hpcext.backends.leasing` says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

WAITING = frozenset({"pending", "configuring", "requeued", "requeue_hold", "power_up_node"})
THERE = frozenset({"running", "completing", "suspended", "stopped", "signaling", "expediting"})
"""States, in Slurm's words, of leases that have their node."""


class Idle(NamedTuple):
    """What a partition, or a queue, says of a node.

    Attributes
    ----------
    name : str
    idle : bool
        Whether it may be had: up, awake, neither reserved nor drained, in a partition that starts
        jobs; and nobody uses any of it, or little beside all its GPUs.
    planned : bool
        Whether the batch system keeps it for a job.
    gpus : int
    kind : str
        The kind of its GPUs; empty if they have none, or several.
    cpus, memory_mb : int
        If it is shared, what a lease may have.
    limit_s : float
        The longest time that a job of the partition may last.
    lost : bool
        Whether it is down, or cannot be reached.
    shared : bool
        Whether somebody uses a part of it without GPUs, such as a ticket.
    """

    name: str
    idle: bool
    planned: bool
    gpus: int
    kind: str
    cpus: int
    memory_mb: int
    limit_s: float = math.inf
    lost: bool = False
    shared: bool = False


class Held(NamedTuple):
    """A job of ours.

    Attributes
    ----------
    job_id : int
    comment : str
        What we said of it.
    state, node : str
        The state in Slurm's words. `node` is empty while it is pending.
    end_s : float or None
        The latest instant of its end, epoch.
    why : str
        Why it is pending.
    stopped : bool
        Whether the batch system has given its node to others, and may have stopped what runs there.
    """

    job_id: int
    comment: str
    state: str
    node: str
    end_s: float | None
    why: str
    stopped: bool = False


LEASE = re.compile(r"hpcext-[A-Za-z0-9._-]{1,64}-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
"""The name of a harvester's leases, which is its id; the comment on such a job is a number."""


class Other(NamedTuple):
    """A lease of a harvester, as everybody sees it in the queue.

    Attributes
    ----------
    harvester : str
        The name of its jobs.
    user : str
    node : str
        The node that it has, or has asked for; empty if it waits for any, or that is not known.
    begun : bool
        Whether it has, or had, its node.
    since_s, until_s : float or None
        When it began and ended, epoch; None: not yet, or not known.
    asked_s : float or None
        When it was asked for, epoch.
    """

    harvester: str
    user: str
    node: str
    begun: bool
    since_s: float | None = None
    until_s: float | None = None
    asked_s: float | None = None


class LeaseSubmission(NamedTuple):
    """A lease to be asked for.

    Attributes
    ----------
    name, number
        The name of the job, and our comment on it.
    partition : str
    options : tuple of str
        Further options of the command that submits it.
    node : Idle
    gpus : int
        0 if what it uses of its node are slots.
    minutes : int
    directory : pathlib.Path
        The directory of the lease, on a file system that the nodes share.
    anywhere : bool
        Whether any node of this kind will do, if the batch system can be told so.
    """

    name: str
    number: int
    partition: str
    options: tuple[str, ...]
    node: Idle
    gpus: int
    minutes: int
    directory: Path
    anywhere: bool = False


class Leasing(Protocol):
    """A batch system. Each method raises BatchError where there is no answer.

    Attributes
    ----------
    whole_nodes : bool
        A node is leased only while no other job has any of it.
    """

    whole_nodes: bool

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Return the nodes of a partition by name; none if there is no such partition."""

    def ends(self, but: str = "") -> dict[str, float]:
        """Return when nodes are needed for others than our jobs of a name, epoch, by node.

        It covers the nodes that :meth:`idle` has named last.
        """

    def due(self) -> bool:
        """Return whether a job that is no lease waits for nodes, or may, as it cannot be seen."""

    def held(self, name: str) -> tuple[Held, ...]:
        """Return our jobs of a name that the batch system still knows."""

    def others(self, partition: str, but: str) -> tuple[Other, ...]:
        """Return the leases of harvesters in a partition, except those of a name.

        They are those that the queue shows, ended ones included for as long as it does.
        """

    def script(self, agent: str, directory: Path) -> str:
        """Return the script of a lease's job, which runs this shell command on its node."""

    def submit(self, order: LeaseSubmission, script: Path) -> int:
        """Ask for a lease; return the id of its job."""

    def cancel(self, job_id: int) -> None:
        """End a job, whatever it does; it is no error if it has ended meanwhile."""

    def withdraw(self, name: str, timeout_s: float) -> None:
        """Cancel those of our jobs of a name that have not begun."""

    def address(self, node: str) -> str:
        """Return the address by which other nodes reach a node."""

    def lacks(self) -> tuple[str, ...]:
        """Return a sentence for each thing that is missing here: what it is, and what follows."""
