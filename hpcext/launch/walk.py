"""A walk through directories for files of a pattern, which its caller can cut off at any place.

Standard library only, as all that a supervisor imports.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_ANY_DEPTH = "**"


class _Place(NamedTuple):
    """A directory, and the number of the part of the pattern that is to be matched in it.

    ``base`` is the directory that the last ``**`` stands for; empty before that.
    """

    directory: str
    part: int
    base: str


class Walk:
    """The files of a pattern: what :func:`glob.iglob` finds, in an order that finds it soon.

    ``**`` goes through directories by their depth, since what is written by a training lies higher
    than what is in its data. Places where something was found are searched first the next time, to
    their end.

    Parameters
    ----------
    pattern : str
        As for :func:`glob.glob` with ``recursive``.
    cwd : pathlib.Path
        Where it begins.
    """

    def __init__(self, pattern: str, cwd: Path) -> None:
        self._top = "/" if pattern.startswith("/") else str(cwd)
        self._parts = [part for part in pattern.split("/") if part]
        if self._parts[-1:] == [_ANY_DEPTH]:
            self._parts.append("*")
        deep = [at for at, part in enumerate(self._parts) if part == _ANY_DEPTH]
        # The number of the first part after the last `**`.
        self._tail = deep[-1] + 1 if deep else 0
        # In which directories something was found, in the order of that.
        self._known: dict[str, None] = {}

    def matches(self) -> Iterator[str]:
        """Yield the paths that match, some of them twice, and ``""`` where it may be cut off."""
        known = dict(self._known)
        again = deque(_Place(each, self._tail, each) for each in known)
        # Few, and without these nobody would know which file is the newest.
        yield from filter(None, self._walk(again, {}))
        yield from self._walk(deque([_Place(self._top, 0, "")]), known)

    def _walk(self, places: deque[_Place], known: Collection[str]) -> Iterator[str]:
        # Directories that links lead to: each is entered once, or links could lead in circles.
        linked: set[tuple[int, int]] = set()
        while places:
            place = places.popleft()
            if place.part >= len(self._parts):
                if place.base:
                    self._known[place.base] = None
                yield place.directory
                continue
            part = self._parts[place.part]
            if part == _ANY_DEPTH:
                places.extend(_below(place, linked))
                after = place.part + 1
                base = place.directory if after == self._tail else ""
                if base not in known:
                    places.appendleft(_Place(place.directory, after, base))
            else:
                places.extendleft(_named(place, part))
            yield ""


def _named(place: _Place, part: str) -> Iterator[_Place]:
    """Yield what has a name in a directory, or names of a pattern."""
    if not any(each in part for each in "*?["):
        path = os.path.join(place.directory, part)
        if os.path.lexists(path):
            yield place._replace(directory=path, part=place.part + 1)
        return
    # Imported here, since most attempts have no pattern and every start waits for imports.
    import fnmatch  # noqa: PLC0415

    try:
        names = os.listdir(place.directory)
    except OSError:
        return
    for name in fnmatch.filter(names, part):
        if part.startswith(".") or not name.startswith("."):
            path = os.path.join(place.directory, name)
            yield place._replace(directory=path, part=place.part + 1)


def _below(place: _Place, linked: set[tuple[int, int]]) -> Iterator[_Place]:
    """Yield the directories in a directory, but hidden ones."""
    try:
        entries = os.scandir(place.directory)
    except OSError:
        return
    with entries:
        for entry in entries:
            if not entry.name.startswith(".") and _enters(entry, linked):
                yield place._replace(directory=entry.path)


def _enters(entry: os.DirEntry[str], linked: set[tuple[int, int]]) -> bool:
    """Return whether an entry is a directory that is to be entered."""
    try:
        if not entry.is_dir():
            return False
        if entry.is_symlink():
            facts = entry.stat()
            identity = (facts.st_dev, facts.st_ino)
            if identity in linked:
                return False
            linked.add(identity)
    except OSError:
        return False
    return True
