"""Functions that several policies share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, State
from hpcext.policies.placement.machine import machine_of
from hpcext.text import counted

ONE_NODE = (1, 1)
"""Fewest and most nodes of a job that states none, for policies that share single nodes."""


def named(gpus: int) -> str:
    """Return ``1 GPU``, ``3 GPUs``."""
    return counted(gpus, "GPU")


BEHIND = "waits behind others in the queue"
"""The reason why a job waits where jobs may not overtake. It names no job, because the first in the
queue changes with every start, and each job of a long queue would get a new reason each time."""

AS_ASKED = "as asked"
"""The reason for a size that the user has set (``hpcext resize``)."""


def its_size(job: Job, otherwise: str = "its best size") -> str:
    """Return a phrase for a job's size: as its user requested it, or another reason.

    Parameters
    ----------
    job : Job
    otherwise : str
        The phrase if its user has requested no size.
    """
    return AS_ASKED if job.stated else otherwise


def no_room(job: Job) -> str:
    """Return the reason for the wait of a job that would not fit even if all nodes were free."""
    if (job.nodes or ONE_NODE)[0] > 1:
        return "too few nodes are large enough for it"
    return "no node is large enough for it"


def kinds_of(now: Snapshot) -> list[str]:
    """Return the kinds of GPUs of all nodes, in the order of the nodes."""
    return list(machine_of(now.nodes).parts)


def largest(job: Job, limit: int) -> int:
    """Return the largest size of a job within a limit; 0 if it has none.

    Parameters
    ----------
    job : Job
    limit : int
        GPUs on each node.
    """
    return max((size for size in job.sizes if size <= limit), default=0)


def busy(now: Snapshot) -> tuple[Job, ...]:
    """Return the jobs that may hold something, in the order of the queue."""
    return now.jobs if now.busy is None else now.busy


def keep(now: Snapshot, among: Iterable[Job] | None = None) -> dict[str, Grant]:
    """Return the grants that jobs have and may keep.

    Parameters
    ----------
    now : Snapshot
    among : iterable of Job, optional
        Look at these only, such as those of :func:`busy`, and not at the whole queue.
    """
    return {
        job.id: Grant(job.goal, job.role or Role.PRIMARY, job.why)
        for job in (now.jobs if among is None else among)
        if job.goal and job.ready
    }


def avoided(job: Job) -> list[Collection[str]]:
    """Return what nodes to leave out in a first search for a job, and in a second one.

    Those where its last attempt failed come last.
    """
    return [job.failed_on, ()] if job.failed_on else [()]


def take(free: dict[str, int], alloc: Alloc, sign: int = 1) -> None:
    """Subtract an allocation from the free GPUs of each node; `sign` -1 adds it back.

    Parameters
    ----------
    free : dict of str to int
        Free GPUs by node; changed in place.
    alloc : Alloc
        GPUs by node.
    sign : {1, -1}
    """
    for node, gpus in alloc.items():
        free[node] -= sign * gpus


def free_beside(now: Snapshot, grants: Mapping[str, Grant]) -> dict[str, int]:
    """Return the GPUs of each node that are not in these grants.

    Parameters
    ----------
    now : Snapshot
    grants : Mapping[str, Grant]
        By the id of the job.
    """
    free = {name: node.gpus for name, node in now.nodes.items()}
    for grant in grants.values():
        take(free, grant.alloc)
    return free


def movable(job: Job) -> bool:
    """Return whether a job can change its size without losing work.

    That holds if it does not run yet, if it is being stopped anyway, or if its session can answer a
    suspension. A job that did not answer its last suspension is left alone, and so is one that is
    being resized.
    """
    return not fixed(job)


def fixed(job: Job) -> str:
    """Return the reason why a job's size is fixed now; empty if it is :func:`movable`."""
    if job.state in {State.PENDING, State.STOPPING}:
        return ""
    if job.state is State.RESCALING:
        return "it is being resized"
    if not job.suspendable:
        return "it ignored a suspension"
    return "" if job.state is State.RUNNING and job.run.registered else "no session has registered"
