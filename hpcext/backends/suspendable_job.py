"""The batch job of a suspendable script, of whichever batch system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from hpcext.jobspec import JobSpec


class SuspendableJob(Protocol):
    """A job whose script runs as the one training of a pilot, and goes on in its next allocation.

    Attributes
    ----------
    batch : str
        Name of its backend.
    key : str
        The name of the job among files.
    gpus : int
        The number of GPUs on its first node.
    output : str or None
        The file that has its output once it has ended; None if the batch system does not tell that
        apart from where its output goes now.
    restored : bool
        Whether it goes on from a checkpoint of another job, which suspended the training as a user
        would.
    """

    batch: str
    key: str
    gpus: int
    output: str | None
    restored: bool

    def earlier(self, named: Callable[[str], Path | None]) -> Path | None:
        """Find the directory of the pilot that an earlier run of the job has made.

        Parameters
        ----------
        named : callable
            Name of a pilot → its directory, if this user has one of that name.

        Raises
        ------
        InputError
            It has to have one, and there is none; or there is nothing to run.
        """

    def command(self, directory: Path) -> Sequence[str]:
        """Return what its training runs."""

    def write(
        self, directory: Path, first: JobSpec | None, *, manager_file: Path, hpcext: Sequence[str]
    ) -> Path:
        """Write what this run of the job needs; return the script that runs in its place.

        Parameters
        ----------
        directory : pathlib.Path
            Of its pilot.
        first : JobSpec or None
            The one job of that, where it was made just now.
        manager_file : pathlib.Path
            Where its manager says that it runs.
        hpcext : sequence of str
            How hpcext is run there.

        Raises
        ------
        OSError
            Something cannot be written.
        """
