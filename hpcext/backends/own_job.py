"""The batch job that a ticket is, of whichever batch system: what is asked of and done to it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hpcext.backends.ticket_end import Ending
from hpcext.protocol import JobId

__all__ = ["Ending", "OwnJob"]


class OwnJob(Protocol):
    """The job that this process is the batch script of. Questions raise BatchError unanswered.

    Attributes
    ----------
    system : str
        Name of its backend.
    id : int or str
    numbers : tuple of int or str
        That directories of the job may be called after, as sites make them.
    name : str
    run_of : str
        Tells it from another job that has had the same id; empty where ids do not come back.
    ends : frozenset of signal.Signals
        What it is told to end by.
    leaves : frozenset of signal.Signals
        At which it is to go back into the queue.
    """

    system: str
    id: JobId
    numbers: tuple[JobId, ...]
    name: str
    run_of: str
    ends: frozenset[signal.Signals]
    leaves: frozenset[signal.Signals]

    def begin(self, state_dir: Path) -> None:
        """Have others that deal with the job find this process."""

    def forget(self) -> None:
        """Undo that: the job is done."""

    def environ(self) -> dict[str, str]:
        """Our environment without what the batch system says of this job."""

    def is_its_script(self, path: Path) -> bool:
        """Whether a file is the script that the batch system keeps of the job."""

    def keeps_output(self) -> bool:
        """Whether what earlier runs of the job have printed is in its output still."""

    def ending(self) -> Ending:
        """Why it was told to end."""

    def end_s(self) -> float | None:
        """When it ends at the latest, epoch seconds."""

    def go_back(self) -> int | None:
        """Put it back into the queue, unless somebody has cancelled it.

        The exit status by which it goes; None if it is told to end, or stays.
        """

    def given_up(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """Which of these other tickets, whose processes are gone, will never come back.

        They are called as their keys have them, ``ARRAY_TASK`` on either system.
        """
