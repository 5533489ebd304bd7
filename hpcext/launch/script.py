"""The shell script that a training may be part of, while the training is being suspended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from hpcext.launch import tree
from hpcext.process import Process

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "ksh", "mksh", "zsh", "tcsh", "csh"})

STOPPED_S, LOOK_S = 2.0, 0.002
"""The longest wait, in seconds, until shells are stopped, and the time between two looks."""


class Script:
    """The shells between a supervisor and a session, its ``srun``, or what was asked to save.

    What a script does after its training must not run because the training has left in the middle.
    So its shells are stopped while the training is suspending. Once it has saved itself they are
    killed; if its work was done and it has ended instead, they go on.

    Parameters
    ----------
    supervisor : Process

    Attributes
    ----------
    stopped : set of Process
        Those that are stopped.
    """

    def __init__(self, supervisor: Process) -> None:
        self._supervisor = supervisor
        self.stopped: set[Process] = set()

    def stop(self, processes: Iterable[Process]) -> None:
        """Stop the shells above some processes; they have stopped when this returns.

        One that waits for its child, and gets the signal on a busy machine, would still collect the
        child first if that ended at once. Then nobody else could see how it ended.
        """
        above = {
            process
            for below in processes
            for process in tree.ancestors(below.pid, self._supervisor.pid)
            if tree.program(process) in _SHELLS
        }
        new = above - self.stopped
        self.stopped |= new
        for process in new:
            tree.send(process, signal.SIGSTOP)
        until_s = time.monotonic() + STOPPED_S
        while not all(tree.still(each.pid) for each in new) and time.monotonic() < until_s:
            time.sleep(LOOK_S)

    def release(self, *, suspended: bool) -> None:
        """Continue the shells, or kill them if the training was suspended."""
        for process in self.stopped:
            tree.send(process, signal.SIGKILL if suspended else signal.SIGCONT)
        self.stopped.clear()
