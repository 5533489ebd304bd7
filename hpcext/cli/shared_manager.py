"""The manager of the harvester that tickets share: one of them runs it, in a fork.

The others watch it, and one of them starts another when it ends.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from hpcext import protocol
from hpcext.cli.output import Output
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.manager import pilot as pilots
from hpcext.manager import spool
from hpcext.manager.waiting import comes_true
from hpcext.process import Process

log = logging.getLogger(__name__)

ASK_S = 30.0
"""Seconds between queries of the batch system about a manager on another node."""

AGAIN_S, AGAIN_MAX_S = 2.0, 60.0
"""The first and the longest wait, in seconds, before a failed manager is started again."""

HAND_OVER_S = 20.0
"""Seconds to wait for a manager that was told to leave."""

LOG = "manager.log"


class SharedManager:
    """The manager that the tickets of a harvester share, as one of them sees it.

    Parameters
    ----------
    directory : pathlib.Path
        The harvester's.
    out : Output
    """

    def __init__(self, directory: Path, out: Output) -> None:
        self._directory = directory
        self._out = out
        self._child: int | None = None
        self._child_waits = -1
        self._again_s = AGAIN_S
        self._try_at_s = 0.0
        self._other: spool.Manager | None = None
        self._other_at_s = 0.0
        self._failures = 0

    def runs_here(self) -> bool:
        """Return whether this ticket runs the manager; reap a manager that has ended."""
        if self._child is None:
            return False
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if pid == 0:
            if time.monotonic() >= self._try_at_s:
                self._again_s = AGAIN_S
            return True
        self._child = None
        os.close(self._child_waits)
        self._failures += os.waitstatus_to_exitcode(status) != 0
        if self._failures == 2:
            # A single failure may be a race that this ticket has lost.
            self._out.note(f"waits for a manager; see {self._directory / LOG}")
        return False

    def find_or_start(self) -> None:
        """Look for a manager, at intervals; start one here if there is none."""
        now_s = time.monotonic()
        if now_s < self._try_at_s:
            return
        if isinstance(self._other, Process) or now_s >= self._other_at_s:
            self._other_at_s = now_s + ASK_S
            alive = self._other is not None and self._other.alive()
            self._other = self._other if alive else spool.manager_of(self._directory)
        if self._other is None:
            self._other_at_s = 0.0
            self._try_at_s = now_s + self._again_s
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
            self._child = self._start()

    def _start(self) -> int:
        """Start a manager in a process of its own, and return its pid.

        The signals that end the job do not end it, because it is needed after them: to cancel the
        trainer of a ticket that was cancelled.
        """
        me = Process.me()
        told, self._child_waits = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._child_waits)
            manage(self._directory, me, told)
        os.close(told)
        return pid

    def leave(self) -> None:
        """End the manager if it runs here; trainings go on."""
        if self._child is None:
            return
        os.close(self._child_waits)
        if not comes_true(lambda: os.waitpid(self._child or 0, os.WNOHANG)[0] != 0, HAND_OVER_S):
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)


def manage(directory: Path, ticket: Process, told: int) -> NoReturn:
    """Manage the tickets' harvester for as long as the process of this ticket exists.

    Parameters
    ----------
    directory : pathlib.Path
        The harvester's.
    ticket : Process
        The process that has forked this one.
    told : int
        The read end of a pipe; the ticket closes the other end to tell the manager to leave.
    """
    code = 1
    try:
        # Batch systems send these to all processes of a job, but the ticket decides when to leave.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        # LSF may stop the leader's process group, which would leave other tickets unmanaged.
        os.setsid()
        fd = os.open(directory / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(fd, sys.stdout.fileno())
        os.dup2(fd, sys.stderr.fileno())
        # Leases inherit our environment.
        protocol.forget_flags()
        protocol.forget_suspendable()
        logging.basicConfig(format="hpcext: %(message)s", level=logging.WARNING, force=True)

        def observe(_engine: Engine, _now_s: float) -> None:
            if select.select([told], [], [], 0)[0] or ticket.stopped():
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                os.kill(os.getpid(), signal.SIGINT)

        pilots.run(directory, observe, passing=True)
        code = 0
    except HpcextError as error:
        log.warning("%s", error)
        code = error.exit_status
    except BaseException:
        # Nobody else would report it from a fork.
        log.exception("the manager failed")
    finally:
        logging.shutdown()
        os._exit(code)
