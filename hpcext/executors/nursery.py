"""The manager's side of a nursery: :mod:`hpcext.launch.nursery`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcext.launch import nursery as program
from hpcext.numerals import whole
from hpcext.text import clean

AFTER = 3
"""Supervisors that are begun without one: a manager of few jobs needs none."""

ANSWER_S = 5.0
"""Seconds to wait for an answer. Then each supervisor is begun by itself again."""

PADDING = "." * 4096

log = logging.getLogger(__name__)


def _supervisors_only(fd: int) -> Sequence[str]:
    return [sys.executable, "-I", "-S", program.__file__, str(fd), PADDING]


class Nursery:
    """A process that forks supervisors: none at first, and none again once it has failed.

    Parameters
    ----------
    words : callable
        The number of its descriptor of our socket → its command.
    environ : Mapping of str to str, optional
        Its environment; by default ours.
    cwd : str
    after : int
        The number of supervisors that are begun before it is.

    Attributes
    ----------
    failed : str
        Why it forks nothing any more; empty if it does, or has not begun.
    """

    def __init__(
        self,
        words: Callable[[int], Sequence[str]] = _supervisors_only,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/",
        after: int | None = None,
    ) -> None:
        self._words = words
        self._environ = environ
        self._cwd = cwd
        self._after = AFTER if after is None else after
        self.failed = ""
        self._begun = 0
        self._ready = False
        self._socket: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def begin(self, directory: Path, log_fd: int) -> int | None:
        """Begin the supervisor of an attempt; return its pid, or None if it has to be begun here.

        It may have begun all the same where None is returned: then only one of two supervisors
        takes the attempt.

        Parameters
        ----------
        directory : pathlib.Path
        log_fd : int
            The open log of the supervisor.
        """
        self._begun += 1
        if self._begun == self._after + 1:
            self._start()
        if self._socket is None:
            return None
        try:
            if not self._is_ready(self._socket):
                return None
            socket.send_fds(self._socket, [os.fsencode(directory)], [log_fd])
            pid = whole(self._socket.recv(64).decode())
        except (OSError, ValueError) as error:
            self._fail(error)
            return None
        if pid is None:
            self.close()
        return pid

    def look(self) -> None:
        """See whether it is ready, or has failed."""
        if self._socket is not None:
            try:
                self._is_ready(self._socket)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failed = str(error)
        log.info("supervisors begin one by one now: %s", error)
        self.close()

    def close(self) -> None:
        """End it; what it has forked lives on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._child is not None:
            # It may hang in what cannot be interrupted; then it is the kernel's.
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(ANSWER_S)
            self._child = None

    def _is_ready(self, control: socket.socket) -> bool:
        """Return whether it can be asked. Nobody waits for that: supervisors begin here till then.

        Raises
        ------
        OSError
            It did not begin.
        """
        if not self._ready:
            try:
                said = control.recv(1024)
            except BlockingIOError:
                return False
            if said != program.READY:
                raise OSError(clean(said.decode(errors="replace")) or "it did not begin")
            self._ready = True
            control.settimeout(ANSWER_S)
        return True

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._child = subprocess.Popen(
                self._words(theirs.fileno()),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._cwd,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            self._fail(error)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
