"""The leader of a batch job, which the batch system stops and kills in place of an attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Protocol

from hpcext import documents
from hpcext.launch import tree
from hpcext.protocol import SUSPEND_SIGNAL, Process

END, SUSPEND, HALT, CONTINUE = signal.SIGTERM, SUSPEND_SIGNAL, signal.SIGSTOP, signal.SIGCONT


LEADER = "hpcext.leader/1"
LEADER_FILE = "leader.json"
"""In the directory of an attempt on several hosts: whether the leader is stopped, as the host says
where it is (``launch/spread.py``)."""


STEP_DAEMON = "slurmstepd"


def of_step() -> Process | None:
    """The daemon of the Slurm step that we are in, which ends with it; None if it is not to be
    seen, as where /proc hides processes of others (proc(5), hidepid).

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


class Watched(Protocol):
    """A leader, here or elsewhere."""

    def alive(self) -> bool:
        """Whether it is there."""

    def stopped(self) -> bool:
        """Whether a signal has stopped it."""


class Told:
    """A leader that is on another host: known is what is written down of it.

    Parameters
    ----------
    directory : pathlib.Path
        Of the attempt.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / LEADER_FILE

    def alive(self) -> bool:
        """As far as is known: with its job ends all that this has on any host."""
        return True

    def stopped(self) -> bool:
        """What was written down last."""
        try:
            return documents.read_json(self._file, LEADER).get("stopped") is True
        except documents.UNFIT:
            return False

    @staticmethod
    def tell(directory: Path, *, stopped: bool) -> None:
        """Write it down for the supervisors of all hosts."""
        document = {"schema": LEADER, "stopped": stopped}
        documents.write_json(directory / LEADER_FILE, document, durable=False)


class Leader:
    """What is to be done to an attempt since the leader of its job was stopped, or killed.

    Where it was stopped, a session saves itself and leaves: GPUs that are only stopped on are of
    no use to others.

    Parameters
    ----------
    process : Watched
    suspend_timeout_s : float
        So long a session may take.
    """

    def __init__(self, process: Watched, suspend_timeout_s: float) -> None:
        self._process = process
        self._suspend_timeout_s = suspend_timeout_s
        self._halt_s: float | None = None
        self._halted = False
        self._gone = False

    @classmethod
    def of(cls, said: str, suspend_timeout_s: float) -> Leader | None:
        """The one that ``launch.json`` names; None if it names none."""
        process = Process.parse(said)
        return cls(process, suspend_timeout_s) if process else None

    def look(self, now_s: float, *, saves: bool) -> signal.Signals | None:
        """What is to be done now, once: END, SUSPEND, HALT, CONTINUE, or nothing.

        Parameters
        ----------
        now_s : float
        saves : bool
            The attempt has a session.
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
        if now_s >= self._halt_s and not self._halted:
            self._halted = True
            return HALT
        return None
