"""The contents of a directory, and the names that tell what has become of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LOCK, PILOT = "manager.lock", "pilot.json"

REMOVED = "removed.json"
"""The name of ``pilot.json`` once the removal of its pilot has begun."""

GOING = ".removed-"
"""The prefix of directories that are being emptied, and are nothing else any more."""

DRAFT = ".draft-"
"""The prefix of directories that are being filled, and are nothing else yet."""

FULL = {errno.ENOSPC, errno.EDQUOT}


class DiskUse(NamedTuple):
    """The size of what lies in a place.

    Attributes
    ----------
    bytes : int
        On the disk; a file with several names counts once.
    files : int
    """

    bytes: int = 0
    files: int = 0

    def __add__(self, other: object) -> DiskUse:
        if not isinstance(other, DiskUse):
            return NotImplemented
        return DiskUse(self.bytes + other.bytes, self.files + other.files)


def size_of(paths: Iterable[Path]) -> DiskUse:
    """Measure the contents of some places.

    Links are not followed, and files that cannot be examined are left out.
    """
    seen: set[tuple[int, int]] = set()
    found = DiskUse()
    stack = list(paths)
    while stack:
        path = stack.pop()
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if facts.st_nlink > 1 and not stat.S_ISDIR(facts.st_mode):
                if (facts.st_dev, facts.st_ino) in seen:
                    continue
                seen.add((facts.st_dev, facts.st_ino))
            found += DiskUse(facts.st_blocks * 512, 1)
            if stat.S_ISDIR(facts.st_mode):
                with os.scandir(path) as entries:
                    stack += [Path(entry.path) for entry in entries]
    return found


def entries(directory: Path) -> list[Path]:
    """List a directory; empty where that cannot be read."""
    with contextlib.suppress(OSError), os.scandir(directory) as found:
        return [Path(entry.path) for entry in found]
    return []


def is_own_directory(path: Path) -> bool:
    """Return whether this is a directory of ours, and no link to one."""
    with contextlib.suppress(OSError):
        facts = path.lstat()
        return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
    return False
