"""What a harvester needs from a batch system: idle nodes, when they are needed, and leases of them.

Each system has its class, which :func:`hpcext.backends.leasing` finds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

WAITING = frozenset({"pending", "configuring", "requeued", "requeue_hold", "power_up_node"})
THERE = frozenset({"running", "completing", "suspended", "stopped", "signaling", "expediting"})
"""States of leases that wait, and of those that have their node, in the words of Slurm."""


class Idle(NamedTuple):
    """A node of a partition or a queue.

    Attributes
    ----------
    name : str
    idle : bool
        Whether it can be leased: it is up, awake, neither reserved nor drained, in a partition
        that starts jobs; and nobody uses any of it, or only a little without GPUs.
    planned : bool
        Whether the batch system keeps it for a job.
    gpus : int
    kind : str
        The kind of its GPUs; empty if they have none, or several.
    cpus, memory_mb : int
        Its cores and memory; if it is shared, those that a lease may have.
    limit_s : float
        The longest time limit of a job in the partition, in seconds.
    lost : bool
        Whether it is down, or cannot be reached.
    shared : bool
        Whether another job, such as a ticket, uses a part of it without GPUs.
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
    """A job of ours, as a lease is.

    Attributes
    ----------
    job_id : int
    comment : str
        Our comment on it: the number of the lease.
    state, node : str
        The state, in the words of Slurm, and the node; the latter is empty while it is pending.
    end_s : float or None
        The latest instant of its end, in epoch seconds.
    why : str
        Why it is pending.
    stopped : bool
        Whether the batch system has given its node to others, and may have stopped its processes.
    """

    job_id: int
    comment: str
    state: str
    node: str
    end_s: float | None
    why: str
    stopped: bool = False


LEASE = re.compile(r"hpcext-[A-Za-z0-9._-]{1,64}-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
"""The name of a harvester's leases, which contains its id."""


class Other(NamedTuple):
    """A lease of a harvester, as everybody sees it in the queue.

    Attributes
    ----------
    harvester : str
        The name of its jobs.
    user : str
    node : str
        The node that it has, or waits for; empty if it waits for any, or that is unknown.
    begun : bool
        Whether it has, or had, its node.
    since_s, until_s : float or None
        When it began and ended, in epoch seconds; None if not yet, or unknown.
    asked_s : float or None
        When it was submitted, in epoch seconds.
    """

    harvester: str
    user: str
    node: str
    begun: bool
    since_s: float | None = None
    until_s: float | None = None
    asked_s: float | None = None


class LeaseSubmission(NamedTuple):
    """A lease to be submitted.

    Attributes
    ----------
    name, number
        The name of the job, and our comment on it.
    partition : str
    options : tuple of str
        Further options of the command that submits it.
    node : Idle
    gpus : int
        The GPUs to use; 0 if it uses slots of its node.
    minutes : int
        The time limit.
    directory : pathlib.Path
        The directory of the lease, on a file system that the nodes share.
    anywhere : bool
        Whether any node like this one will do, if the batch system can be asked for that.
    after_s : int
        Seconds before which its job is not to begin, if the batch system does not keep nodes.
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
    after_s: int = 0


class Association(NamedTuple):
    """A user in an account of the batch system, with its fair share.

    Attributes
    ----------
    user : str
    accounts : tuple of str
        The account, and all above it, the highest one first; none if the system has no accounts.
    factor : float
        From 0, for those who have used most of what is theirs, to 1.
    """

    user: str
    accounts: tuple[str, ...]
    factor: float


@runtime_checkable
class FairShared(Protocol):
    """A batch system whose fair share can be read, beside what :class:`Leasing` has.

    Attributes
    ----------
    has_accounts : bool
        Whether it also has accounts, which users may charge.
    """

    has_accounts: bool

    def associations(self, partition: str) -> tuple[Association, ...]:
        """Return the fair share of all users; raise BatchError if there is no answer.

        Parameters
        ----------
        partition : str
            That of the broker: some systems have a fair share for each.
        """


class Leasing(Protocol):
    """A batch system that lends nodes; each method raises BatchError if there is no answer.

    Attributes
    ----------
    whole_nodes : bool
        Whether a node is leased only while no other job has any part of it.
    keeps_nodes : bool
        Whether nodes of leases that are preempted for a job are kept for that job. Else a lease
        that waits in the queue may begin there first, and the job has to preempt others.
    """

    whole_nodes: bool
    keeps_nodes: bool

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Return the nodes of a partition by name; none if there is no such partition."""

    def ends(self, but: str = "") -> dict[str, float]:
        """Return when nodes are needed for other jobs.

        Parameters
        ----------
        but : str
            The name of jobs of ours that do not count.

        Returns
        -------
        dict of str to float
            Name of a node of the last :meth:`idle` → epoch seconds.
        """

    def due(self) -> bool:
        """Return whether jobs other than leases wait for nodes, or may wait, if they are hidden."""

    def held(self, name: str) -> tuple[Held, ...]:
        """Return our jobs of a name that the batch system still knows."""

    def others(self, partition: str, but: str) -> tuple[Other, ...]:
        """Return the leases of harvesters that the queue of a partition shows.

        Parameters
        ----------
        partition : str
        but : str
            The name of leases to leave out.
        """

    def script(self, agent: str, directory: Path) -> str:
        """Return the script of a lease's job.

        Parameters
        ----------
        agent : str
            The shell command that it runs on its node.
        directory : pathlib.Path
            The directory of the lease.
        """

    def submit(self, order: LeaseSubmission, script: Path) -> int:
        """Submit a lease; return the id of its job.

        Parameters
        ----------
        order : LeaseSubmission
        script : pathlib.Path
            The script of its job.
        """

    def cancel(self, job_id: int) -> None:
        """End a job, in whatever state it is; it may have ended meanwhile."""

    def withdraw(self, name: str, timeout_s: float) -> None:
        """Cancel those of our jobs of a name that have not begun.

        Parameters
        ----------
        name : str
        timeout_s : float
            Seconds to wait for the batch system.
        """

    def address(self, node: str) -> str:
        """Return the address by which other nodes reach a node."""

    def lacks(self) -> tuple[str, ...]:
        """Return a sentence for each thing that is missing on this system, with its consequence."""
