"""The files of an attempt that its supervisor reads and writes, one for each kind of message.

:mod:`hpcext.protocol` says who writes which. A file from a training or a manager may be missing,
older than this attempt, or invalid; it is ignored then.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, private, protocol
from hpcext.launch import stderr, tree
from hpcext.numerals import whole
from hpcext.process import Process

MANAGER = "hpcext.manager/1"

RECORD_PAUSE_S, RECORD_PAUSE_MAX_S = 0.02, 5.0
"""The first and the longest pause, in seconds, between attempts to write on a full disk."""


class SupervisorFiles:
    """The files of one attempt, on one of its nodes.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's, absolute.
    launch : Mapping
        ``launch.json``.
    index : int
        The index of this node.
    """

    def __init__(self, directory: Path, launch: Mapping[str, Any], index: int) -> None:
        self._directory = directory
        self._own = protocol.node_directory(directory, index)
        self._identity = {"attempt": int(launch["attempt"]), "op": int(launch["op"])}
        self._manager = Path(launch["manager"]) if launch.get("manager") else None

    # Written.

    def claim(self, me: Process, place: Mapping[str, Any]) -> bool:
        """Become the only supervisor of this attempt; return False if there is another one.

        Parameters
        ----------
        me : Process
        place : Mapping
            Further facts for ``supervisor.json``: the node, say.

        Raises
        ------
        OSError
            The claim cannot be written, so the attempt has no supervisor.
        """
        document = {
            "schema": protocol.SUPERVISOR,
            **self._identity,
            "pid": me.pid,
            "start": me.start,
            "boot_id": tree.boot_id(),
            "at": time.time(),
            **place,
        }
        if self._own != self._directory:
            private.make(self._own)
        target = self._own / protocol.SUPERVISOR_FILE
        temporary = target.with_name(f".{target.name}.{me.pid}-{me.start}")
        with open(temporary, "wb") as file:
            try:
                file.write(json.dumps(document).encode() + b"\n")
                file.flush()
                # On disk before it has its name, and its name before the command begins: after a
                # crash of the machine too, it is known that this attempt has run, on which boot.
                os.fsync(file.fileno())
                # A link to a finished file is exclusive, and shows it complete from the beginning.
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
        documents.sync_directory(self._own)
        return True

    def record(self, end: Mapping[str, Any]) -> None:
        """Write ``exit.json``, on a full disk as soon as there is space, or until told to end."""
        document = {"schema": protocol.EXIT, **self._identity, **end}
        pause_s = RECORD_PAUSE_S
        while True:
            try:
                documents.write_json(self._own / protocol.EXIT_FILE, document)
                return
            except OSError as error:
                failure = error
            # If the directory was removed, there is nothing to record; other errors may pass.
            if isinstance(failure, FileNotFoundError | NotADirectoryError):
                return
            if signal.sigtimedwait({signal.SIGTERM}, pause_s):
                stderr.say(f"the end was not recorded: {failure}")
                return
            pause_s = min(2 * pause_s, RECORD_PAUSE_MAX_S)

    # Read.

    def order(self) -> tuple[str, int]:
        """Return the manager's order and its number.

        It is written to a file where the manager's signals do not reach us.
        """
        order = self._of_this_attempt(protocol.ORDER_FILE, protocol.ORDER) or {}
        number = order.get("number", 1)
        return str(order.get("order", "")), number if type(number) is int else 1

    def declined(self) -> int:
        """Return how many suspensions the session has declined, because it could not save."""
        report = self._of_this_attempt(protocol.REPORT_FILE, protocol.REPORT) or {}
        declined = report.get("declined", 0)
        return declined if type(declined) is int else 0

    def unsaved(self) -> bool:
        """Return whether the session has done a step that is in none of its checkpoints."""
        report = self._of_this_attempt(protocol.REPORT_FILE, protocol.REPORT) or {}
        try:
            done = documents.read_untrusted(self._directory / protocol.LAST_STEP)
        except (OSError, ValueError):
            return False
        step, saved = whole(done.strip().decode(errors="replace")), report.get("saved_step")
        return type(saved) is int and step is not None and step > saved

    def suspended(self) -> bool:
        """Return whether a suspension of this attempt was acknowledged."""
        return self._of_this_attempt(protocol.SUSPENDED_FILE, protocol.SUSPENDED) is not None

    def resized(self) -> bool:
        """Return whether it was ever asked to change its size."""
        return (self._directory / protocol.RESCALE_FILE).exists()

    def session(self) -> Process | None:
        """Return the process whose session has registered."""
        path = self._directory / protocol.REPORT_FILE
        try:
            report = documents.read_json(path, protocol.REPORT)
            return Process(int(report["pid"]), int(report["start"]))
        except documents.UNFIT:
            return None

    def manager(self) -> Process | None:
        """Return the process to which news is signalled, if it is on this machine."""
        if self._manager is None:
            return None
        try:
            document = documents.read_json(self._manager, MANAGER)
            if document.get("boot_id", tree.boot_id()) != tree.boot_id():
                return None
            return Process(int(document["pid"]), int(document["start"]))
        except documents.UNFIT:
            return None

    def _of_this_attempt(self, name: str, schema: str) -> dict[str, Any] | None:
        try:
            document = documents.read_json(self._directory / name, schema)
        except (OSError, ValueError):
            return None
        same = all(document.get(key) == value for key, value in self._identity.items())
        return document if same else None
