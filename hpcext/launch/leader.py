"""The leader of a batch job, which the batch system stops and kills in place of an attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Protocol

from hpcext import documents
from hpcext.launch import tree
from hpcext.process import Process
from hpcext.protocol import SUSPEND_SIGNAL

END, SUSPEND, HALT, CONTINUE = signal.SIGTERM, SUSPEND_SIGNAL, signal.SIGSTOP, signal.SIGCONT


LEADER = "hpcext.leader/1"
LEADER_FILE = "leader.json"
"""A file that says whether the leader is stopped, in the directory of an attempt on several hosts.

The leader's host writes it (``launch/spread.py``).
"""


STEP_DAEMON = "slurmstepd"


def of_step() -> Process | None:
    """Find the daemon of the Slurm step that we are in, which ends with it.

    It is None where /proc hides processes of others (proc(5), hidepid).

    Where Slurm tracks processes by their parents (proctrack/linuxproc) nothing ends what a shell
    that was killed has left, and nothing tells of it.
    """
    for process in tree.ancestors(os.getpid(), 1):
        try:
            name = Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        if name.strip() == STEP_DAEMON:
            return process
    return None


class LeaderProcess(Protocol):
    """The process of a leader, on this host or another."""

    def alive(self) -> bool:
        """Return whether the process still exists."""

    def stopped(self) -> bool:
        """Return whether a signal has stopped it."""


class RemoteLeader:
    """A leader on another host, known only through a file.

    Parameters
    ----------
    directory : pathlib.Path
        The directory of the attempt.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / LEADER_FILE

    def alive(self) -> bool:
        """Return True: if it ends, its job ends, and with it everything on every host."""
        return True

    def stopped(self) -> bool:
        """Return what was written down last."""
        try:
            return documents.read_json(self._file, LEADER).get("stopped") is True
        except documents.UNFIT:
            return False

    @staticmethod
    def tell(directory: Path, *, stopped: bool) -> None:
        """Write down whether it is stopped, for the supervisors of all hosts."""
        document = {"schema": LEADER, "stopped": stopped}
        documents.write_json(directory / LEADER_FILE, document, durable=False)


class Leader:
    """The leader of a job, and what must be done to an attempt when it is stopped or killed.

    If it was stopped, a session saves itself and leaves: GPUs of processes that are only stopped
    are of no use to others.

    Parameters
    ----------
    process : LeaderProcess
    suspend_timeout_s : float
        Seconds that a session may take.
    """

    def __init__(self, process: LeaderProcess, suspend_timeout_s: float) -> None:
        self._process = process
        self._suspend_timeout_s = suspend_timeout_s
        self._halt_s: float | None = None
        self._halted = False
        self._gone = False

    @classmethod
    def of(cls, said: str, suspend_timeout_s: float) -> Leader | None:
        """Return the leader that ``launch.json`` names; None if it names none."""
        process = Process.parse(said)
        return cls(process, suspend_timeout_s) if process else None

    def look(self, now_s: float, *, saves: bool) -> signal.Signals | None:
        """Return what must be done now: END, SUSPEND or CONTINUE, once, HALT, or nothing.

        HALT is repeated as long as the leader is stopped: processes that have begun since then must
        not go on.

        Parameters
        ----------
        now_s : float
        saves : bool
            Whether the attempt has a session.
        """
        if self._gone:
            return None
        if not self._process.alive():
            self._gone = True
            return END
        if not self._process.stopped():
            halted, self._halted, self._halt_s = self._halted, False, None
            return CONTINUE if halted else None
        if self._halt_s is None:
            self._halt_s = now_s + (self._suspend_timeout_s if saves else 0.0)
            return SUSPEND if saves else None
        if now_s >= self._halt_s:
            self._halted = True
            return HALT
        return None
