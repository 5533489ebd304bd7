"""A process of this machine, distinguished from a later one with the same pid.

It needs only the standard library, like :mod:`hpcext.protocol`.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from hpcext.numerals import whole

_PROC_BYTES = 4096
"""More than ``stat`` and ``boot_id`` have: the kernel gives them in one page."""


class Process(NamedTuple):
    """A process, distinguished from a later one with the same pid.

    Attributes
    ----------
    pid : int
    start : int
        Start time in clock ticks since boot: field 22 of ``/proc/PID/stat`` (proc(5)).
    """

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this pid now, or None; a zombie counts as ended.

        If it is only its first thread that has ended, it has not.
        """
        start = _start_of(str(pid))
        return None if start is None else cls(pid, start)

    @classmethod
    def me(cls) -> Process:
        """Return the present process."""
        # Not by its pid: in a separate pid namespace, /proc may be that of the outside.
        start = _start_of("self")
        if start is None:
            raise RuntimeError("/proc is not mounted")
        return cls(os.getpid(), start)

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Parse ``pid:PID:START``; None for ``none`` and for anything malformed."""
        kind, _, rest = text.partition(":")
        pid, start = map(whole, rest.partition(":")[::2])
        return None if kind != "pid" or pid is None or start is None else cls(pid, start)

    def __str__(self) -> str:
        return f"pid:{self.pid}:{self.start}"

    def alive(self) -> bool:
        """Return whether this process still runs."""
        return Process.of(self.pid) == self

    def stopped(self) -> bool:
        """Return whether a signal has stopped this process; it may be continued later."""
        try:
            text = read_proc(f"{self.pid}/stat")
        except OSError:
            return False
        return text[text.rindex(b")") + 2 :].startswith(b"T") and self.alive()

    def open(self) -> int | None:
        """Open a pidfd of this process, which the caller closes; None if it has ended."""
        try:
            fd = os.pidfd_open(self.pid)
        except (OSError, OverflowError):
            return None
        if self.alive():
            return fd
        os.close(fd)
        return None

    def send(self, signum: int) -> bool:
        """Send a signal to this process; return False if it has ended or is another user's."""
        fd = self.open()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, signum)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(fd)
        return True


def read_proc(name: str) -> bytes:
    """Return a short file of ``/proc``, which one call of the system reads.

    Parameters
    ----------
    name : str
        Its path below ``/proc``.

    Raises
    ------
    OSError
        There is no such process or file, or it is not ours to read.
    """
    fd = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PROC_BYTES)
    finally:
        os.close(fd)


def _start_of(name: str) -> int | None:
    """Return when a process of ``/proc`` started, in clock ticks; None if it has ended."""
    try:
        text = read_proc(f"{name}/stat")
    except OSError:
        return None
    # The name of the program (field 2) may contain blanks and parentheses; the last one closes it.
    fields = text[text.rindex(b")") + 2 :].split(None, 20)
    if fields[0] in {b"Z", b"X"} and not _has_others(name):
        return None
    return int(fields[19])


def _has_others(name: str) -> bool:
    """Return whether a process whose first thread has ended has other threads."""
    try:
        return len(os.listdir(f"/proc/{name}/task")) > 1
    except OSError:
        return False
