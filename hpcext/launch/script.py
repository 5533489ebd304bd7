"""The shell script that a training may be a part of, while that is being suspended."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from hpcext.launch import tree
from hpcext.protocol import Process

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "ksh", "mksh", "zsh", "tcsh", "csh"})


class Script:
    """The shells between a supervisor and a session, or the ``srun`` of one.

    What a script has after its training must not run because that has left in the middle. So its
    shells are stopped when the session is told to leave; once that has saved itself they are
    killed, and if it has ended instead, its work done, they go on.

    Parameters
    ----------
    supervisor : Process

    Attributes
    ----------
    held : set of Process
        Those that are stopped.
    """

    def __init__(self, supervisor: Process) -> None:
        self._supervisor = supervisor
        self.held: set[Process] = set()

    def hold(self, processes: Iterable[Process]) -> None:
        """Stop the shells above some processes."""
        for below in processes:
            for process in tree.ancestors(below.pid, self._supervisor.pid):
                if tree.program(process) in _SHELLS and process not in self.held:
                    self.held.add(process)
                    tree.send(process, signal.SIGSTOP)

    def release(self, *, suspended: bool) -> None:
        """Let the shells go on, or end them."""
        for process in self.held:
            tree.send(process, signal.SIGKILL if suspended else signal.SIGCONT)
        self.held.clear()
