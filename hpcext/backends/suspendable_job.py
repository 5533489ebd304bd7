"""The batch job of a suspendable script, on any batch system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from hpcext.jobspec import JobSpec


class SuspendableJob(Protocol):
    """A job whose script is the only training of a pilot, and goes on in the next allocation.

    Attributes
    ----------
    batch : str
        The name of its backend.
    key : str
        The name of the job in names of files.
    gpus : int
        The number of GPUs on its first node.
    output : str or None
        The file of its output after its end; None if the output goes there all the time.
    restored : bool
        Whether it goes on from a checkpoint of another job, in which the training is suspended as
        by a user.
    """

    batch: str
    key: str
    gpus: int
    output: str | None
    restored: bool

    def earlier(self, named: Callable[[str], Path | None]) -> Path | None:
        """Return the directory of the pilot that an earlier run of the job has created, if any.

        Parameters
        ----------
        named : callable
            Name of a pilot → its directory, if this user has one of that name.

        Raises
        ------
        InputError
            There must be one, and is not; or there is nothing to run.
        """

    def command(self, directory: Path) -> Sequence[str]:
        """Return the command of its training.

        Parameters
        ----------
        directory : pathlib.Path
            That of its pilot.
        """

    def write(
        self, directory: Path, first: JobSpec | None, *, manager_file: Path, hpcext: Sequence[str]
    ) -> Path:
        """Write the files for this run of the job; return the script that runs in its place.

        Parameters
        ----------
        directory : pathlib.Path
            That of its pilot.
        first : JobSpec or None
            The only job of the pilot, if this is its first run.
        manager_file : pathlib.Path
            The file in which its manager notes that it runs.
        hpcext : sequence of str
            The command ``hpcext`` and its first arguments.

        Raises
        ------
        OSError
            Something cannot be written.
        """
