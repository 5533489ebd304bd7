"""The way to a broker through a directory that hosts share: the owner of a file is who asks.

In the directory, which belongs to the broker's account, are ``questions/``, into which everybody
may put files and which nobody can list; ``answers/``, into which only the broker can write and
which nobody can list either; and ``beat``, a number that the broker raises whenever it has answered
all that was there. Question and answer have the same name, ``UID.NUMBER``, whose number nobody can
guess; each contains it, too, so that a file under another name is none.

What is too old, the times of files say, which on NFS all are the file server's. An answer is looked
for only when ``beat`` says that it must be there, because NFS remembers for up to a minute that a
file was not there (nfs(5), "Directory entry caching"), but asks the server whenever a file is
opened.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Final

from hpcext import documents
from hpcext.harvest.leave import MOST_ANSWER_BYTES, BrokerError
from hpcext.harvest.ways import places
from hpcext.numerals import whole

QUESTIONS: Final = "questions"
ANSWERS: Final = "answers"
BEAT: Final = "beat"

NUMBER_CHARS = 32
"""Of the number in a name, which is hexadecimal."""

MOST_NAME_BYTES = 64
"""The longest name, with the end of its line."""

BEATS = 2
"""After so many beats all is answered that is there now: one look may be under way."""

_LOOK_S = 0.1


class Drop:
    """A shared directory.

    Parameters
    ----------
    directory : pathlib.Path
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __str__(self) -> str:
        """Return the directory, as settings have it."""
        return f"drop://{self._directory}"

    def call(self, message: bytes, answer_s: float) -> bytes:
        """Send one line, and return the answer."""
        where = str(self)
        owner = self._owner()
        name = new_name(os.geteuid())
        question = self._directory / QUESTIONS / name
        try:
            # Others than the broker can read it if they guess its name.
            documents.write_file(question, framed(name, message), durable=False, mode=0o644)
        except OSError as error:
            raise BrokerError(f"cannot be asked ({error.strerror})", where=where) from None
        try:
            self._wait(owner, answer_s)
            return self._answer(name, owner)
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            raise BrokerError(f"does not answer ({said})", where=where) from None
        finally:
            with contextlib.suppress(OSError):
                question.unlink()

    def _owner(self) -> int:
        """Return whose answers are believed: the account's that the directory belongs to."""
        owner = places.owner(self._directory, self._directory)
        for name in (QUESTIONS, ANSWERS):
            place = self._directory / name
            try:
                facts = place.lstat()
            except OSError as error:
                raise BrokerError(
                    f"{place} is not there ({error.strerror})", where=str(self)
                ) from None
            others = facts.st_mode & 0o022 if name == ANSWERS else not facts.st_mode & stat.S_ISVTX
            if facts.st_uid != owner or not stat.S_ISDIR(facts.st_mode) or others:
                raise BrokerError(
                    f"is not believed: {place} belongs to uid {facts.st_uid} and has mode "
                    f"{stat.S_IMODE(facts.st_mode):04o}",
                    where=str(self),
                )
        return owner

    def _wait(self, owner: int, answer_s: float) -> None:
        """Wait until all is answered that is there now.

        Raises
        ------
        OSError, ValueError
            Nobody answers, or somebody else.
        """
        until_s = time.monotonic() + answer_s
        began = self._beat(owner)
        while self._beat(owner) < began + BEATS:
            if time.monotonic() >= until_s:
                raise TimeoutError(0, f"nobody has looked at it for {answer_s:.0f} s")
            time.sleep(_LOOK_S)

    def _beat(self, owner: int) -> int:
        said = _read(self._directory / BEAT, owner, MOST_NAME_BYTES)
        number = whole(said.decode("ascii", errors="replace").strip())
        if number is None:
            raise ValueError(f"{BEAT} has no number")
        return number

    def _answer(self, name: str, owner: int) -> bytes:
        path = self._directory / ANSWERS / name
        try:
            data = _read(path, owner, MOST_NAME_BYTES + MOST_ANSWER_BYTES)
        except FileNotFoundError:
            raise ValueError("too many calls of this user, or it cannot write one") from None
        line = unframed(name, data)
        if line is None:
            raise ValueError("its answer has another name, or no end")
        return line


def _read(path: Path, owner: int, most: int) -> bytes:
    """Read a file of the broker.

    Raises
    ------
    OSError, ValueError
        It is not there, or not a file of that owner alone.
    """
    fd = documents.open_regular(path)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if facts.st_uid != owner or facts.st_mode & 0o022:
            raise ValueError(f"{path.name} belongs to uid {facts.st_uid}, and {owner} is believed")
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path.name} is too large")
    return data


# Names and what is in files.


def new_name(uid: int) -> str:
    """Return a name for a question of a user that nobody else can guess."""
    return f"{uid}.{secrets.token_hex(NUMBER_CHARS // 2)}"


def parse_name(name: str) -> int | None:
    """Return the uid that a name says; None: it is not the name of a question."""
    uid, _, number = name.partition(".")
    if len(number) != NUMBER_CHARS or not set(number) <= set("0123456789abcdef"):
        return None
    found = whole(uid, digits=10)
    return found if found is not None and str(found) == uid else None


def framed(name: str, line: bytes) -> bytes:
    """Return what is in a file: its name, so that nobody can give it another one, and a line."""
    return name.encode() + b"\n" + line


def unframed(name: str, data: bytes) -> bytes | None:
    """Return the line that is in a file of this name; None: there is none."""
    said, _, line = data.partition(b"\n")
    return line if said == name.encode() and line.endswith(b"\n") else None
