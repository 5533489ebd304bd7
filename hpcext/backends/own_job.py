"""The batch job of a ticket, on any batch system."""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hpcext.allocation import JobId


class Ending(enum.Enum):
    """The reason why a job was told to end."""

    NONE = "it was not: it goes on"
    AGAIN = "it begins again, or its time is over"
    CANCELLED = "somebody has cancelled it"
    OPEN = "nobody can say yet whether it begins again"


class OwnJob(Protocol):
    """The job whose batch script this process is; queries without an answer raise BatchError.

    Attributes
    ----------
    system : str
        The name of its backend.
    id : int or str
    numbers : tuple of int or str
        Numbers that sites may have in the names of directories of the job.
    name : str
    run_of : str
        A text that distinguishes it from other jobs of the same id; empty if ids are unique.
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
        """Make this process known to scripts that the batch system runs for the job."""

    def forget(self) -> None:
        """Undo :meth:`begin` at the end of the job."""

    def environ(self) -> dict[str, str]:
        """Return our environment without the variables of this job."""

    def is_its_script(self, path: Path) -> bool:
        """Return whether a file is the batch system's copy of the script of the job."""

    def keeps_output(self) -> bool:
        """Return whether its output still contains that of earlier runs of the job."""

    def ending(self) -> Ending:
        """Return why it was told to end."""

    def end_s(self) -> float | None:
        """Return the latest instant of its end in epoch seconds; None if that is unknown."""

    def go_back(self) -> int | None:
        """Requeue it, unless somebody has cancelled it.

        Returns
        -------
        int or None
            The exit status to end with; None if a signal follows, or the job stays.

        Raises
        ------
        BatchError
            It is not requeued; it may be tried again.
        """

    def given_up(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """Return the tickets that have ended for good.

        Parameters
        ----------
        job_ids : sequence of int or str
            Other tickets, whose processes are gone; elements of arrays are ``ARRAY_TASK`` on each
            batch system.
        """
