"""The emptying of a directory, however deep, without leaving it."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from hpcext.manager.cleaning.places import FULL, GOING

DEEPEST = 100
"""The largest depth to descend to; deeper directories are moved up first."""


def empty(directory: Path, keep: Iterable[str] = ()) -> int:
    """Remove all in a directory that is ours; no link is followed, no other file system entered.

    Returns
    -------
    int
        What stays: files of others, and places where other file systems begin.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        cleaner = _Cleaner(fd)
        return cleaner.run(frozenset(keep))
    finally:
        os.close(fd)


class _Cleaner:
    """The emptying of one directory, however deep those in it are."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        self._numbers = itertools.count()
        self._brought_up = False

    def run(self, keep: frozenset[str]) -> int:
        """Remove entries until nothing more can go."""
        while True:
            self._brought_up = False
            left = self._empty(self._top, keep, 0)
            if not self._brought_up:
                return left

    def _empty(self, fd: int, keep: frozenset[str], depth: int) -> int:
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        return sum(
            self._remove(fd, name, facts, depth) for name, facts in found if name not in keep
        )

    def _remove(self, fd: int, name: str, facts: os.stat_result, depth: int) -> int:
        """Remove an entry; return how much of it stays."""
        if facts.st_uid != os.geteuid() or facts.st_dev != self._device:
            return 1
        if not stat.S_ISDIR(facts.st_mode):
            unlink(fd, name, facts)
            return 0
        if depth == DEEPEST:
            # Descriptors are few, and so are the calls that a program may have under way.
            up = f"{GOING}{os.getpid()}-{time.time_ns()}-{next(self._numbers)}"
            os.rename(name, up, src_dir_fd=fd, dst_dir_fd=self._top)
            self._brought_up = True
            return 0
        below = _open_below(fd, name)
        try:
            left = self._empty(below, frozenset(), depth + 1)
        finally:
            os.close(below)
        if not left:
            os.rmdir(name, dir_fd=fd)
        return left


def _open_below(fd: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    below = -1
    with contextlib.suppress(PermissionError):
        below = os.open(name, flags, dir_fd=fd)
    if below < 0:
        # A directory of ours to which we have no access. It cannot be a link, which would be
        # followed: it was a directory a moment ago, and nobody else can write here.
        os.chmod(name, 0o700, dir_fd=fd)
        below = os.open(name, flags, dir_fd=fd)
    if os.fstat(below).st_mode & 0o700 != 0o700:
        os.fchmod(below, 0o700)
    return below


def unlink(fd: int, name: str, facts: os.stat_result) -> None:
    """Remove a name; on some full file systems only a file that was made empty before can go.

    Parameters
    ----------
    fd : int
        The open directory that has the name.
    name : str
    facts : os.stat_result
        What the name is.
    """
    try:
        os.unlink(name, dir_fd=fd)
    except OSError as error:
        if error.errno not in FULL or not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
            raise
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_TRUNC | os.O_CLOEXEC
        os.close(os.open(name, flags, dir_fd=fd))
        os.unlink(name, dir_fd=fd)
