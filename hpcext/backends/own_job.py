"""The batch job of a ticket, of whichever batch system: what is asked of it and done to it."""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hpcext.allocation import JobId


class Ending(enum.Enum):
    """A reason for which a job was told to end."""

    NONE = "it was not: it goes on"
    AGAIN = "it begins again, or its time is over"
    CANCELLED = "somebody has cancelled it"
    OPEN = "nobody can say yet whether it begins again"


class OwnJob(Protocol):
    """The job whose batch script this process is; a question without an answer raises BatchError.

    Attributes
    ----------
    system : str
        Name of its backend.
    id : int or str
    numbers : tuple of int or str
        Numbers after which sites may name directories of the job.
    name : str
    run_of : str
        Tells it from another job that has had the same id; empty if ids are not used again.
    ends : frozenset of signal.Signals
        Signals that tell it to end.
    leaves : frozenset of signal.Signals
        Signals at which it is to be requeued.
    """

    system: str
    id: JobId
    numbers: tuple[JobId, ...]
    name: str
    run_of: str
    ends: frozenset[signal.Signals]
    leaves: frozenset[signal.Signals]

    def begin(self, state_dir: Path) -> None:
        """Make this process known to others that deal with the job."""

    def forget(self) -> None:
        """Undo that: the job is done."""

    def environ(self) -> dict[str, str]:
        """Return our environment without what the batch system says of this job."""

    def is_its_script(self, path: Path) -> bool:
        """Return whether a file is the script that the batch system keeps of the job."""

    def keeps_output(self) -> bool:
        """Return whether its output still has what earlier runs of the job have printed."""

    def ending(self) -> Ending:
        """Return why it was told to end."""

    def end_s(self) -> float | None:
        """Return the latest instant of its end, epoch seconds."""

    def go_back(self) -> int | None:
        """Requeue it, unless somebody has cancelled it.

        Returns
        -------
        int or None
            The exit status to end with; None if it is told to end, or stays.
        """

    def given_up(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """Return those of these other tickets, whose processes are gone, that will never come back.

        They are named as in their keys, ``ARRAY_TASK`` on either system.
        """
