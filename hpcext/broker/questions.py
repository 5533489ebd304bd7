"""The files in a shared directory: which are looked at, and which of them are questions."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcext import documents
from hpcext.harvest.leave import MOST_BYTES
from hpcext.harvest.ways.drop import MOST_NAME_BYTES, parse_name, unframed

MOST_LOOKED = 1000
"""The most files that are looked at in one look."""

MOST_DIRECTORIES = 100
"""The most directories of which it is tried in one look whether they can be removed."""


class Question(NamedTuple):
    """A question that somebody has put there.

    Attributes
    ----------
    uid : int
        Who asks.
    line : bytes
    """

    uid: int
    line: bytes


class NoQuestionError(Exception):
    """The error that a file is no question; its text says why."""


def sample(there: Iterator[os.DirEntry[str]]) -> tuple[list[str], list[str], bool]:
    """Choose what is looked at: any of the files, and any of the directories.

    Parameters
    ----------
    there : iterator of os.DirEntry
        Which is closed at its end.

    Returns
    -------
    files, directories : list of str
    more : bool
        Whether there are more files than these.
    """
    files = _Sample(MOST_LOOKED)
    directories = _Sample(MOST_DIRECTORIES)
    for entry in there:
        (directories if entry.is_dir(follow_symlinks=False) else files).add(entry.name)
    return files.names, directories.names, files.seen > len(files.names)


class _Sample:
    """Some of very many names, each as likely as any other."""

    def __init__(self, most: int) -> None:
        self.names: list[str] = []
        self.seen = 0
        self._most = most

    def add(self, name: str) -> None:
        self.seen += 1
        if len(self.names) < self._most:
            self.names.append(name)
        elif (place := random.randrange(self.seen)) < self._most:
            self.names[place] = name


def read(path: Path) -> Question:
    """Read a question.

    Parameters
    ----------
    path : pathlib.Path

    Raises
    ------
    NoQuestionError
        It is none, or it could be another user's than its name says.
    """
    uid = parse_name(path.name)
    if uid is None:
        raise NoQuestionError("no name of a question")
    try:
        fd = documents.open_regular(path)
    except (OSError, ValueError) as error:
        raise NoQuestionError(str(error)) from None
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if facts.st_uid != uid:
            raise NoQuestionError(f"uid {uid} by its name, and its owner is {facts.st_uid}")
        if facts.st_nlink != 1 or facts.st_mode & 0o022:
            raise NoQuestionError("a file with several names, or that others could write")
        most = MOST_NAME_BYTES + MOST_BYTES
        data = file.read(most + 1) if facts.st_size <= most else b""
    line = unframed(path.name, data) if len(data) <= most else None
    if line is None:
        raise NoQuestionError("too large, not whole, or with another name within")
    return Question(uid, line)
