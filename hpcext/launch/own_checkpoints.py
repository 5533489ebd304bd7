"""The checkpoints of a command that saves by its own means: which files are the job's own.

A pattern also matches what earlier jobs have left in the same directory. What was there before the
job first began is none of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcext import documents
from hpcext.launch import wholeness
from hpcext.numerals import whole

SEARCH_S = 5.0
"""Seconds that one search for checkpoints may take; what was not found until then is not there."""

OLDER = "older-checkpoints"
"""The file in the job's directory that says which checkpoints are older than the job."""

_DIGITS = 19
"""Of an instant in nanoseconds."""


class Found(NamedTuple):
    """A checkpoint.

    Attributes
    ----------
    path : pathlib.Path
    at : float
        When it was last written, in seconds since the epoch.
    identity : tuple of int
        What tells it from an earlier one at the same place.
    """

    path: Path
    at: float
    identity: tuple[int, int, int]

    @property
    def at_ns(self) -> int:
        """When it was last written, in nanoseconds."""
        return self.identity[1]


class OwnCheckpoints:
    """The checkpoints of one job.

    Parameters
    ----------
    pattern : str
        Of their names; empty if it is unknown.
    cwd : pathlib.Path
        Where the pattern begins.
    home : pathlib.Path
        The directory of the job.
    """

    def __init__(self, pattern: str, cwd: Path, home: Path) -> None:
        self._pattern = pattern
        self._cwd = cwd
        self._note = home / OLDER
        # What was last written no later than this is older than the job.
        self._older_ns = 0

    def begin(self, *, notes: bool) -> list[Found]:
        """Find out what is older than the job, when it first begins or from the note of that.

        Parameters
        ----------
        notes : bool
            Whether to note it for later attempts, as one node does for all.

        Returns
        -------
        list of Found
            All files of the pattern, older ones too.

        Raises
        ------
        OSError
            The note cannot be read or written: older ones could be taken for the job's own.
        """
        found = self.all()
        if not self._pattern:
            return found
        try:
            text = documents.read_own(self._note).decode(errors="replace")
            self._older_ns = whole(text, _DIGITS) or 0
        except FileNotFoundError:
            # By the clock of their file system, which later ones are measured by as well.
            self._older_ns = max((each.at_ns for each in found), default=0)
            if notes:
                documents.write_file(self._note, str(self._older_ns).encode())
        return found

    def newest(self, found: Sequence[Found] | None = None) -> Found | None:
        """Return the newest whole checkpoint that is the job's own; by default look for it."""
        found = self.all() if found is None else found
        return newest_whole(each for each in found if each.at_ns > self._older_ns)

    def all(self) -> list[Found]:
        """Return all files that are named as the checkpoints are."""
        if not self._pattern:
            return []
        # Imported here, since most attempts have no pattern and every start waits for imports.
        import glob  # noqa: PLC0415

        found = []
        until_s = time.monotonic() + SEARCH_S
        for name in glob.iglob(self._pattern, root_dir=self._cwd, recursive=True):
            path = self._cwd / name
            with contextlib.suppress(OSError):
                facts = os.stat(path)
                identity = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                found.append(Found(path, facts.st_mtime, identity))
            if time.monotonic() > until_s:
                break
        return found


def newest_whole(found: Iterable[Found]) -> Found | None:
    """Return the newest file that is whole; None if there is none."""
    ordered = sorted(found, key=lambda each: each.at, reverse=True)
    return next((each for each in ordered if wholeness.is_whole(each.path)), None)


def same(one: Found, other: Found | None) -> bool:
    """Return whether a checkpoint is another one, unchanged."""
    return other is not None and (one.path, one.identity) == (other.path, other.identity)
