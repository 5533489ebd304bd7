"""The time between two attempts of a job whose processes stay in memory, stopped.

Their supervisor stays with them. It is not watched by the manager then, and waits until the manager
names the next attempt, whose supervisor it becomes; until nothing tells any more that they are
kept, because their job was cancelled or its pilot removed; or until it is told to end.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.launch import tree
from hpcext.launch.transparent.criu import kill_below
from hpcext.launch.transparent.manifest import FILE, IMAGES, RESIDENT, SCHEMA
from hpcext.process import Process

NEXT = "next"
"""The file beside what is noted of them that has the name of the next attempt's directory."""

LOOK_S = 1.0
"""Seconds between two looks at whether they are still to be kept."""

_GONE = "gone"
_PAUSE_S = 0.05
_ATTEMPT = re.compile(r"attempt-[0-9]{4,9}")
_WAKING = {signal.SIGCHLD, signal.SIGTERM, protocol.NEWS_SIGNAL}


# What is noted.


def here() -> dict[str, Any]:
    """Return who keeps processes: this one; to be noted under ``resident``."""
    me = Process.me()
    return {"pid": me.pid, "start": me.start, "boot_id": tree.boot_id()}


def keeper(document: Mapping[str, Any]) -> Process | None:
    """Return who keeps processes, as is noted; None if nobody does, or only until a restart."""
    said = document.get(RESIDENT)
    if not isinstance(said, dict) or said.get("boot_id") != tree.boot_id():
        return None
    pid, start = said.get("pid"), said.get("start")
    return Process(pid, start) if type(pid) is int and type(start) is int else None


def root(document: Mapping[str, Any]) -> int:
    """Return the pid of the root of the tree that is kept.

    Raises
    ------
    OSError
        It is not known.
    """
    found = document.get("root")
    if type(found) is not int:
        raise OSError("it is not known which process the command was")
    return found


def lost(document: Mapping[str, Any]) -> str:
    """Return why processes that were kept are no more; empty if they are, and whoever keeps them.

    Parameters
    ----------
    document : Mapping
        What is noted of them.
    """
    if why := document.get(_GONE):
        return str(why)
    found = keeper(document)
    if found is None:
        return "its processes stayed in the memory of this machine, which was restarted"
    if not found.alive():
        return f"its processes stayed in memory, and {found.pid}, which kept them, was ended"
    return ""


def sweep(home: Path, document: Mapping[str, Any]) -> None:
    """Kill processes that were kept, and that whoever kept them has left behind.

    Parameters
    ----------
    home : pathlib.Path
        The directory of the job.
    document : Mapping
        What is noted of them.
    """
    began = Path(str(document.get("began_as", "")))
    # Whatever is noted, no other job's processes are killed.
    if began.parent != home or not _ATTEMPT.fullmatch(began.name):
        return
    victims: set[Process] = set()
    while tree.kill_marked([f"HPCEXT_REPORT_DIR={began}"], victims):
        time.sleep(_PAUSE_S)


def _read(home: Path) -> dict[str, Any] | None:
    """Return what is noted of the processes of a job; None if nothing is.

    Raises
    ------
    OSError, ValueError
        It cannot be read at this moment.
    """
    try:
        return documents.read_json(home / IMAGES / FILE, SCHEMA)
    except (FileNotFoundError, NotADirectoryError):
        return None


# The manager's side.


def hand_over(directory: Path) -> Process | None:
    """Have whoever keeps the processes of a job supervise its next attempt.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's, with its launch file.

    Returns
    -------
    Process or None
        None if nobody keeps any.

    Raises
    ------
    OSError
        It cannot be told, as on a full disk.
    """
    home = directory.parent
    try:
        document = _read(home)
    except ValueError:
        return None
    found = keeper(document) if document is not None else None
    if found is None or not found.alive():
        return None
    try:
        documents.write_file(home / IMAGES / NEXT, directory.name.encode())
    except FileNotFoundError:
        # It has gone on meanwhile, in this very attempt if a manager before us told it.
        return None
    found.send(protocol.NEWS_SIGNAL)
    return found


# The keeper's side. All signals are blocked, as in a supervisor.


def following(home: Path) -> Path | None:
    """Wait for the next attempt of a job whose processes this process keeps, and return it.

    Parameters
    ----------
    home : pathlib.Path
        The directory of the job.

    Returns
    -------
    pathlib.Path or None
        The directory of the attempt; None if it keeps none, or none any more.
    """
    ended: list[int] = []
    while True:
        try:
            document = _read(home)
            if document is None or keeper(document) != Process.me():
                # Cancelled, or removed; or they go on, have ended, and there is nothing to kill.
                kill_below()
                return None
            left = tree.reap(lambda pid, _: ended.append(pid))
            if not left or root(document) in ended:
                _end(home, document, "its processes stayed in memory, and were killed")
                return None
            if (directory := _next(home)) is not None:
                return directory
        except (OSError, ValueError):
            # The disk may answer later. Nothing is killed because of that.
            pass
        heard = signal.sigtimedwait(_WAKING, LOOK_S)
        if heard is not None and heard.si_signo == signal.SIGTERM:
            kill_below()
            with contextlib.suppress(OSError, ValueError):
                if (document := _read(home)) is not None:
                    _end(home, document, "its processes stayed in memory, and were told to end")
            return None


def _end(home: Path, document: Mapping[str, Any], why: str) -> None:
    """Kill what is left, and note why it does not go on."""
    kill_below()
    documents.write_json(home / IMAGES / FILE, {**document, _GONE: why})


def _next(home: Path) -> Path | None:
    """Return the directory of the attempt that is to begin now, if one is."""
    path = home / IMAGES / NEXT
    try:
        name = documents.read_own(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    path.unlink()
    if not _ATTEMPT.fullmatch(name):
        return None
    # One for the last attempt, or by the batch system; one for this attempt is an order as well.
    signal.sigtimedwait({protocol.SUSPEND_SIGNAL}, 0)
    return home / name
