"""The manager of the harvester that tickets share: one of them runs it, in a fork.

The others watch it, and one of them starts another when it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import IO, NoReturn

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

DONE = b"done"
"""What a manager says at its end, if nothing went wrong."""

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
        self._mine: Process | None = None
        self._mine_waits = -1
        self._mine_says: IO[bytes] | None = None
        self._again_s = AGAIN_S
        self._try_at_s = 0.0
        self._other: spool.Manager | None = None
        self._other_at_s = 0.0
        self._failures = 0

    def runs_here(self) -> bool:
        """Return whether this ticket runs the manager."""
        if self._mine is None:
            return False
        if self._mine.alive():
            if time.monotonic() >= self._try_at_s:
                self._again_s = AGAIN_S
            return True
        self._mine = None
        os.close(self._mine_waits)
        self._failures += not self._ended_well()
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
            self._start()

    def _start(self) -> None:
        """Start a manager in a process of its own.

        The signals that end the job do not end it, because it is needed after them: to cancel the
        trainer of a ticket that was cancelled. Nor is it a descendant of the job: those LSF stops
        with the job, and then no other ticket could become the manager.
        """
        me = Process.me()
        told, waits = os.pipe()
        hears, says = os.pipe()
        try:
            between = os.fork()
            if between == 0:
                try:
                    if os.fork() == 0:
                        os.close(waits)
                        os.close(hears)
                        manage(self._directory, me, told, says)
                finally:
                    os._exit(0)
            os.waitpid(between, 0)
        except OSError:
            os.close(waits)
            os.close(hears)
            raise
        finally:
            os.close(told)
            os.close(says)
        self._mine_waits, self._mine_says = waits, os.fdopen(hears, "rb", buffering=0)
        self._mine = Process.parse(self._mine_says.readline().decode().strip())
        if self._mine is None:
            os.close(waits)
            self._mine_says.close()
            raise OSError("a manager cannot be started")

    def _ended_well(self) -> bool:
        """Return whether the manager that has ended said so."""
        if self._mine_says is None:
            return False
        # What it began may live on, with its end of the pipe.
        os.set_blocking(self._mine_says.fileno(), False)
        with self._mine_says as says:
            return says.read() == DONE

    def leave(self) -> None:
        """End the manager if it runs here; trainings go on."""
        mine = self._mine
        if mine is None:
            return
        os.close(self._mine_waits)
        if not comes_true(lambda: not mine.alive(), HAND_OVER_S):
            mine.send(signal.SIGKILL)


def manage(directory: Path, ticket: Process, told: int, says: int) -> NoReturn:
    """Manage the tickets' harvester for as long as the process of this ticket exists.

    Parameters
    ----------
    directory : pathlib.Path
        The harvester's.
    ticket : Process
        The process that has begun this one.
    told : int
        The read end of a pipe; the ticket closes the other end to tell the manager to leave.
    says : int
        The write end of a pipe that tells the ticket which process this is, and that it ends well.
    """
    code = 1
    try:
        _say(says, f"{Process.me()}\n".encode())
        # Batch systems send these to all processes of a job, but the ticket decides when to leave.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        # LSF stops the leader's process group, which would leave other tickets unmanaged.
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
        _say(says, DONE)
    except HpcextError as error:
        log.warning("%s", error)
        code = error.exit_status
    except BaseException:
        # Nobody else would report it from a fork.
        log.exception("the manager failed")
    finally:
        logging.shutdown()
        os._exit(code)


def _say(fd: int, what: bytes) -> None:
    # The ticket may have been killed; then nobody waits for it.
    with contextlib.suppress(OSError):
        os.write(fd, what)
