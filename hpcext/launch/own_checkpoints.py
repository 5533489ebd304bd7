"""The checkpoints of a command that saves by its own means: which files are the job's own.

A pattern also matches what earlier jobs have left in the same directory. What was there before the
job first began is none of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcext import documents
from hpcext.launch import wholeness
from hpcext.launch.walk import Walk
from hpcext.numerals import whole

SEARCH_S = 5.0
"""Seconds that a search for checkpoints may take while the command runs; nothing is heard then."""

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

    Attributes
    ----------
    cut_off : bool
        Whether the last search took too long to see everything.
    """

    def __init__(self, pattern: str, cwd: Path, home: Path) -> None:
        self._pattern = pattern
        self._walk = Walk(pattern, cwd)
        self.cut_off = False
        self._note = home / OLDER
        # What was last written no later than this is older than the job.
        self._older_ns = 0

    def begin(self, say: Callable[[str], object], *, notes: bool) -> list[Found]:
        """Find out what is older than the job, when it first begins or from the note of that.

        However long it takes: any checkpoint but the newest would be the wrong one to go on from.

        Parameters
        ----------
        say : callable
            Writes a line into the log.
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
        if not self._pattern:
            return []
        began_s = time.monotonic()
        found = self._search(None)
        if (took_s := time.monotonic() - began_s) > SEARCH_S:
            say(
                f"the search for checkpoints {self._pattern!r} took {took_s:.0f} s; later ones are "
                f"cut off after {SEARCH_S:g} s, and may not see a checkpoint in another directory "
                "than those found now: name the directory in the job's `file`"
            )
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
        """Return all files that are named as the checkpoints are, as far as time allows."""
        return self._search(time.monotonic() + SEARCH_S) if self._pattern else []

    def _search(self, until_s: float | None) -> list[Found]:
        """Search until an instant of the monotonic clock; None: to the end."""
        found: dict[str, Found] = {}
        self.cut_off = False
        for name in self._walk.matches():
            if not name:
                self.cut_off = until_s is not None and time.monotonic() > until_s
                if self.cut_off:
                    break
            elif name not in found:
                with contextlib.suppress(OSError):
                    facts = os.stat(name)
                    identity = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                    found[name] = Found(Path(name), facts.st_mtime, identity)
        return list(found.values())


def newest_whole(found: Iterable[Found]) -> Found | None:
    """Return the newest file that is whole; None if there is none."""
    # By name, too: the order in which they were found may be another one each time.
    ordered = sorted(found, key=lambda each: (each.at, each.path), reverse=True)
    return next((each for each in ordered if wholeness.is_whole(each.path)), None)


def same(one: Found, other: Found | None) -> bool:
    """Return whether a checkpoint is another one, unchanged."""
    return other is not None and (one.path, one.identity) == (other.path, other.identity)
