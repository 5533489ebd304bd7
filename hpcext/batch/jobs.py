"""Queries of a batch system about jobs, and the answers, in the same words for each system."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hpcext.allocation import JobId
from hpcext.numerals import whole

UNKNOWN = "unknown"
"""A state that we do not know; it is never taken for an end."""

OVER = frozenset(
    {
        "boot_fail", "cancelled", "completed", "deadline", "failed", "launch_failed", "node_fail",
        "out_of_memory", "preempted", "reconfig_fail", "revoked", "timeout",
    }
)  # fmt: skip
"""The states of jobs that have ended, and hold nothing any more."""

LEFT = OVER | {
    "completing", "pending", "requeued", "requeue_fed", "requeue_hold", "special_exit",
}  # fmt: skip
"""States in which no process of a job is meant to run: it has ended, or waits to begin again.

Stopped jobs, and those whose state is unknown, are not among them.
"""

_NAME = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,10}|\[[1-9][0-9]{0,9}\])?\Z")


class End(NamedTuple):
    """The state of a job, and its end.

    Attributes
    ----------
    state : str
    end_s : float or None
        The latest instant of its end, in epoch seconds; None if it is unknown.
    limit_end_s : float or None
        When it would end by its time limit alone, if that is known.
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
        The state as LSF writes it.
    why : str
        The reason that squeue(1) gives, or why the state is unknown.
    """

    state: str
    said: str = ""
    why: str = ""


def as_job(said: object) -> JobId | None:
    """Parse the name of a job, from a batch system or from a file of ours.

    Returns
    -------
    int or str or None
        None if it names no job, or several.

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
    """Queries about jobs; each raises BatchError if there is no answer."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs, except those that :meth:`seen` leaves out."""
        return {job_id: each.state for job_id, each in self.seen(job_ids).items()}

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """Return what the batch system says of jobs.

        A job that has left the queue is looked up in accounting. It is left out if it is unknown
        there, too; if accounting does not answer, its state is unknown.
        """

    def end(self, job_id: JobId) -> End:
        """Return the state of a job, and the latest instant of its end."""

    def preempted(self, job_id: JobId) -> bool:
        """Return whether a job, whose end is earlier than before, is being preempted."""
