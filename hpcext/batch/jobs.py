"""What is asked of a batch system about jobs, and the answers: the same words for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hpcext.allocation import JobId
from hpcext.numerals import whole

UNKNOWN = "unknown"
"""A state that is in no manual that we know: never taken for an end."""

OVER = frozenset(
    {
        "boot_fail", "cancelled", "completed", "deadline", "failed", "launch_failed", "node_fail",
        "out_of_memory", "preempted", "reconfig_fail", "revoked", "timeout",
    }
)  # fmt: skip
"""States of jobs that hold nothing any more."""

LEFT = OVER | {
    "completing", "pending", "requeued", "requeue_fed", "requeue_hold", "special_exit",
}  # fmt: skip
"""States in which whatever still runs of a job is ended: it is over, or begins anew elsewhere. All
others are no end of what runs, one that is stopped or that is not known included."""

_NAME = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,10}|\[[1-9][0-9]{0,9}\])?\Z")


class End(NamedTuple):
    """A job's state, and when it ends at the latest: epoch seconds, None where nothing says so.

    ``limit_end_s`` is when it would end by its time limit alone, where that is known.
    """

    state: str
    end_s: float | None
    limit_end_s: float | None = None


class Seen(NamedTuple):
    """What a batch system says of a job that it knows.

    Attributes
    ----------
    state : str
        In Slurm's words.
    said : str
        As LSF writes it.
    why : str
        The reason that squeue(1) gives, or why nothing is known.
    """

    state: str
    said: str = ""
    why: str = ""


def as_job(said: object) -> JobId | None:
    """Parse the name of a job as a batch system or a file of ours has it.

    None: it names no job, or several.

    Examples
    --------
    >>> as_job("4711"), as_job("4711_3"), as_job("4711_[4-9%2]"), as_job("4711[3]")
    (4711, '4711_3', None, '4711[3]')
    """
    text = str(said)
    if not _NAME.match(text):
        return None
    number = whole(text)
    return text if number is None else number


class Jobs(Protocol):
    """Questions about jobs. Each raises BatchError where there is no answer."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs; one that nobody knows any more is left out."""
        return {job_id: each.state for job_id, each in self.seen(job_ids).items()}

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """Return what is said of jobs, but of those that are known to be known to nobody.

        A job that has left the queue is looked up in accounting; where that does not answer, the
        state of the job is not known.
        """

    def end(self, job_id: JobId) -> End:
        """Return a job's state, and when it ends at the latest."""

    def preempted(self, job_id: JobId) -> bool:
        """Return whether the nodes of a job that ends earlier now are wanted for another."""
