"""What several policies do alike."""

from __future__ import annotations

from hpcext.core.values import Grant, Job, Role, Snapshot, State
from hpcext.text import counted

ONE_NODE = (1, 1)
"""Where jobs run that say nothing of nodes, under the policies that share single nodes."""


def named(gpus: int) -> str:
    """``1 GPU``, ``3 GPUs``."""
    return counted(gpus, "GPU")


BEHIND = "waits behind others in the queue"
"""Why a job waits where none is passed by. It names none of these: the first of them is another
with every start, and each job of a long queue would have a new reason each time."""

AS_ASKED = "as asked"
"""Why a job has the size that its user gave it (``hpcext resize``)."""


def its_size(job: Job, otherwise: str = "its best size") -> str:
    """Which size it is that a job has: the one that its user asked for, or another."""
    return AS_ASKED if job.stated else otherwise


def no_room(job: Job) -> str:
    """Why a job waits that fits none of the nodes that there are, were they all free."""
    if (job.nodes or ONE_NODE)[0] > 1:
        return "too few nodes are large enough for it"
    return "no node is large enough for it"


def kinds_of(now: Snapshot) -> list[str]:
    """The kinds of GPUs that there are, in the order of the nodes."""
    return list(dict.fromkeys(node.kind for node in now.nodes.values()))


def largest(job: Job, limit: int) -> int:
    """The largest size of a job within a limit; 0 if it has none."""
    return max((size for size in job.sizes if size <= limit), default=0)


def keep(now: Snapshot) -> dict[str, Grant]:
    """What is granted already, for jobs that may keep it."""
    return {
        job.id: Grant(job.goal, job.role or Role.PRIMARY, job.why)
        for job in now.jobs
        if job.goal and job.ready
    }


def movable(job: Job) -> bool:
    """Whether giving a job another size loses no work.

    True where nothing runs yet, where it is being stopped anyway, and where a session is there
    to answer a suspension. A job whose last suspension went unanswered is left alone, and one
    that is changing its size until it has answered.
    """
    return not fixed(job)


def fixed(job: Job) -> str:
    """Why a job's size cannot be changed now; empty if it can, see :func:`movable`."""
    if job.state in {State.PENDING, State.STOPPING}:
        return ""
    if job.state is State.RESCALING:
        return "it is being resized"
    if not job.suspendable:
        return "it ignored a suspension"
    return "" if job.state is State.RUNNING and job.registered else "no session has registered"
