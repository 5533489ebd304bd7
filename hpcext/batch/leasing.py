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
"""States of leases, in Slurm's words: idle nodes that are taken for a while."""


class Idle(NamedTuple):
    """What a partition, or a queue, says of a node.

    Attributes
    ----------
    name : str
    idle : bool
        Nobody uses any of it, or little beside all its GPUs, and it may be had: up, awake, neither
        reserved nor drained, in a partition that starts jobs.
    planned : bool
        The batch system keeps it for a job.
    gpus : int
    kind : str
        Of its GPUs; empty where they have none, or several.
    cpus, memory_mb : int
        Where it is shared, those that a lease may have.
    limit_s : float
        So long a job of the partition may last.
    lost : bool
        It is down, or cannot be reached.
    shared : bool
        Somebody uses a part of it without GPUs, say a ticket.
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
        When it ends at the latest, epoch.
    why : str
        Why it is pending.
    stopped : bool
        The batch system has given its node to others, and may have stopped what runs there.
    """

    job_id: int
    comment: str
    state: str
    node: str
    end_s: float | None
    why: str
    stopped: bool = False


LEASE = re.compile(r"hpcext-[A-Za-z0-9._-]{1,64}-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
"""The name of the leases of a harvester, which has its id; what is said of them is a number."""


class Other(NamedTuple):
    """A lease of a harvester, as everybody sees it in the queue.

    Attributes
    ----------
    harvester : str
        The name of its jobs.
    user : str
    node : str
        That it has, or has asked for; empty where it waits for any, or that is not known.
    begun : bool
        It has its node, or had it.
    since_s, until_s : float or None
        When it began, and when it ended; epoch. None: not yet, or not known.
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


class Order(NamedTuple):
    """A lease to be asked for.

    Attributes
    ----------
    name, number
        Of the job, and what we say of it.
    partition : str
    options : tuple of str
        Others of the command that submits it.
    node : Idle
    gpus : int
        0: what it uses of its node are slots.
    minutes : int
    directory : pathlib.Path
        Of the lease, on a file system that the nodes share.
    anywhere : bool
        Any node like that will do, where a batch system can be told so.
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
        """Node → what it is; empty where there is no such partition."""

    def ends(self, but: str = "") -> dict[str, float]:
        """Node → when it is needed for others than our jobs of this name, epoch.

        Of nodes that :meth:`idle` has named last.
        """

    def due(self) -> bool:
        """Whether a job that is no lease waits for nodes; one that cannot be seen may."""

    def held(self, name: str) -> tuple[Held, ...]:
        """Our jobs of a name that the batch system still knows."""

    def others(self, partition: str, but: str) -> tuple[Other, ...]:
        """Leases of harvesters in a partition, as far as the queue shows them; those that have
        ended, too, as long as it does. Not those of a name."""

    def script(self, agent: str, directory: Path) -> str:
        """What the job of a lease runs: this command of a shell, on its node."""

    def submit(self, order: Order, script: Path) -> int:
        """Ask for a lease; its job's id."""

    def cancel(self, job_id: int) -> None:
        """End one, whatever it does. One that has ended meanwhile is no error."""

    def withdraw(self, name: str, timeout_s: float) -> None:
        """Take back those of our jobs of a name that have not begun."""

    def address(self, node: str) -> str:
        """How other nodes reach one."""

    def lacks(self) -> tuple[str, ...]:
        """What is not there, and what follows; a sentence each."""
