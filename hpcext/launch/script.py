"""The shell script that a training may be part of, while the training is being suspended."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from hpcext.launch import tree
from hpcext.process import Process

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "ksh", "mksh", "zsh", "tcsh", "csh"})


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
        """Stop the shells above some processes."""
        for below in processes:
            for process in tree.ancestors(below.pid, self._supervisor.pid):
                if tree.program(process) in _SHELLS and process not in self.stopped:
                    self.stopped.add(process)
                    tree.send(process, signal.SIGSTOP)

    def release(self, *, suspended: bool) -> None:
        """Continue the shells, or kill them if the training was suspended."""
        for process in self.stopped:
            tree.send(process, signal.SIGKILL if suspended else signal.SIGCONT)
        self.stopped.clear()
