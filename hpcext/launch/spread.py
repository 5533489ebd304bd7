"""Starts the supervisors of one attempt on its nodes, by a launcher for each, and waits for them.

Run as ``python -I -S .../hpcext/launch/spread.py DIRECTORY``, where the batch system has launchers
for one host each (LSF: ``blaunch``, ``jsrun``). It ends when all launchers have, or what they have
started; if one node has gone wrong, soon after, though others go on: what is left is then for the
manager to end. It tells the supervisors when the batch system stops the leader of the job, and when
that goes on.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from hpcext import documents, protocol
from hpcext.launch import devices, leader

SPREAD = "hpcext.spread/1"
SPREAD_FILE = "spread.json"
"""What starts the supervisor of each node: ``launchers``, a command for each."""

OTHERS_S = 10.0
"""When one node has gone wrong, ranks on the others may fail by themselves and say why."""

HUNG_S = 10.0
"""A launcher whose supervisor has said so long ago that all is over is ended: it has lost what it
waits for, and would hold the GPUs of its attempt for ever."""

HARMLESS = (protocol.NEWS_SIGNAL, protocol.NOTICE_SIGNAL, protocol.SUSPEND_SIGNAL, signal.SIGINT)
"""A batch system may send these to all that it has started. What they tell is told elsewhere."""


def spread(directory: Path) -> int:
    """Start them, wait; 0 if every node has ended well."""
    for signum in HARMLESS:
        signal.signal(signum, signal.SIG_IGN)
    # So is this one, of bkill: supervisors hear it, too. Launchers begin with it as by default.
    signal.signal(signal.SIGTERM, lambda *_: None)
    document = documents.read_json(directory / SPREAD_FILE, SPREAD)
    with open(directory / SPREAD_FILE, "rb") as file:
        # A manager that died before it had noted us starts another one of us: that waits, and finds
        # what became of the attempt.
        fcntl.flock(file, fcntl.LOCK_EX)
        return _start(directory, document["launchers"], document.get("leader", "none"))


def _start(directory: Path, launchers: Sequence[Sequence[str]], leads: str) -> int:
    # What this host has for GPUs is not what others have.
    environ = devices.without(protocol.environ())
    children = {
        index: subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, cwd="/")
        for index, argv in enumerate(launchers)
    }
    wrong_s: float | None = None
    stopped = False
    ended_s: dict[int, float] = {}
    while children:
        signal.sigtimedwait({signal.SIGCHLD}, 1.0)
        stopped = _tell(directory, leads, stopped)
        for index, child in children.items():
            if _end_of(directory, index) is not None:
                since_s = ended_s.setdefault(index, time.monotonic())
                if time.monotonic() >= since_s + HUNG_S:
                    child.kill()
        for index, child in list(children.items()):
            if child.poll() is not None:
                del children[index]
                if wrong_s is None and not _ended_well(directory, index):
                    wrong_s = time.monotonic() + OTHERS_S
        if wrong_s is not None and time.monotonic() >= wrong_s:
            break
    return int(wrong_s is not None)


def _tell(directory: Path, leads: str, stopped: bool) -> bool:
    """Tell supervisors that the leader was stopped, or goes on; whether they know it as stopped."""
    process = protocol.Process.parse(leads)
    now = process is not None and process.stopped()
    if now != stopped:
        try:
            leader.Told.tell(directory, stopped=now)
        except OSError:
            return stopped
    return now


def _ended_well(directory: Path, index: int) -> bool:
    """Whether a node's supervisor has said that all is over, and well."""
    ended = _end_of(directory, index) or {}
    return ended.get("exit_code") == 0 or ended.get("suspended") is True


def _end_of(directory: Path, index: int) -> dict[str, Any] | None:
    """What a node's supervisor has said when all was over; None: nothing yet."""
    own = protocol.node_directory(directory, index)
    try:
        return documents.read_json(own / protocol.EXIT_FILE, protocol.EXIT)
    except (OSError, ValueError):
        return None


def main() -> int:
    """Read the arguments."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: spread.py DIRECTORY\n")
        return 64
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        return spread(Path(sys.argv[1]))
    except documents.UNFIT as error:
        sys.stderr.write(f"hpcext: nothing was run: {type(error).__name__}: {error}\n")
        return 71


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
