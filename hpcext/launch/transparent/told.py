"""What the manager, and whoever kills what is left, is told of suspensions: ``native.json``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from hpcext import documents, protocol
from hpcext.launch import command


class Told:
    """What is told of one attempt.

    Parameters
    ----------
    directory : pathlib.Path
        Of the attempt.
    identity : Mapping
        ``attempt`` and ``op``.
    log : pathlib.Path
        Where the command prints.

    Attributes
    ----------
    declined : int
        Suspensions that have failed, so that the command goes on.
    began_as : str
        The directory of the attempt as the processes know it, since they go on in later ones.
    """

    def __init__(self, directory: Path, identity: Mapping[str, int], log: Path) -> None:
        self._directory = directory
        self._identity = dict(identity)
        self._log = log
        self.declined = 0
        self.began_as = str(directory)
        self._cannot_save = ""
        self._notes: list[str] = []

    def decline(self, why: str) -> None:
        """Tell that a suspension has failed."""
        self.declined += 1
        self._cannot_save = why
        self.tell()

    def note(self, what: str, say: Callable[[str], object] | None = None) -> None:
        """Tell what the user should know, and write it into the log of the command.

        Parameters
        ----------
        what : str
        say : callable, optional
            What writes into the log.
        """
        if say is None:
            command.note(self._log, what)
        else:
            say(what)
        self._notes.append(what)
        self.tell()

    def tell(self) -> None:
        """Write all of it down; on a full disk it is written with the next."""
        document = {
            "schema": protocol.NATIVE,
            **self._identity,
            "declined": self.declined,
            "cannot_save": self._cannot_save or None,
            "notes": self._notes,
            "began_as": self.began_as,
        }
        with contextlib.suppress(OSError):
            documents.write_json(self._directory / protocol.NATIVE_FILE, document)
