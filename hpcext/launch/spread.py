"""The program that starts the supervisors of one attempt on its nodes, and waits for them.

Run as ``python -I -S .../hpcext/launch/spread.py DIRECTORY``, where the batch system has launchers
for one host each (LSF: ``blaunch``, ``jsrun``). It ends when all launchers have ended, or what they
have started. If one node has failed it ends soon after, though others go on; the manager then ends
what is left. It tells the supervisors when the batch system stops the leader of the job, and when
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
from hpcext.launch import devices, leader, stderr
from hpcext.process import Process

SPREAD = "hpcext.spread/1"
SPREAD_FILE = "spread.json"
"""The file of the commands that start the supervisors: ``launchers``, one for each node."""

OTHERS_S = 10.0
"""Seconds to wait after a node has failed: ranks on others may fail by themselves and say why."""

HUNG_S = 10.0
"""Seconds after its supervisor's end at which a launcher is ended.

It has nothing left to wait for, and would hold the GPUs of its attempt for ever.
"""

HARMLESS = (protocol.NEWS_SIGNAL, protocol.NOTICE_SIGNAL, protocol.SUSPEND_SIGNAL, signal.SIGINT)
"""Signals that a batch system may send to all it has started; their news also comes otherwise."""


def spread(directory: Path) -> int:
    """Start the supervisors and wait; return 0 if every node has ended well."""
    for signum in HARMLESS:
        signal.signal(signum, signal.SIG_IGN)
    # bkill's signal is ignored as well, because supervisors also get it. Launchers start with its
    # default action.
    signal.signal(signal.SIGTERM, lambda *_: None)
    document = documents.read_json(directory / SPREAD_FILE, SPREAD)
    with open(directory / SPREAD_FILE, "rb") as file:
        # A manager that died before it had noted us starts another one of us: that waits, and finds
        # what became of the attempt.
        fcntl.flock(file, fcntl.LOCK_EX)
        return _start(directory, document["launchers"], document.get("leader", "none"))


def _start(directory: Path, launchers: Sequence[Sequence[str]], leads: str) -> int:
    # Other hosts have other GPUs than this one.
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
    """Tell supervisors that the leader was stopped, or goes on; return what they now know."""
    process = Process.parse(leads)
    now = process is not None and process.stopped()
    if now != stopped:
        try:
            leader.RemoteLeader.tell(directory, stopped=now)
        except OSError:
            return stopped
    return now


def _ended_well(directory: Path, index: int) -> bool:
    """Return whether a node's supervisor has recorded the end, and a good one."""
    for each in (directory, protocol.node_directory(directory, index)):
        documents.look_anew(each)
    ended = _end_of(directory, index) or {}
    return ended.get("exit_code") == 0 or ended.get("suspended") is True


def _end_of(directory: Path, index: int) -> dict[str, Any] | None:
    """Return how a node's attempt ended, as its supervisor recorded it; None if it has not yet."""
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
        stderr.say(f"nothing was run: {type(error).__name__}: {error}")
        return 71


if __name__ == "__main__":
    status = main()
    stderr.flush()
    os._exit(status)
