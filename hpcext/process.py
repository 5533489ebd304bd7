"""A process of this machine, distinguished from a later one with the same pid.

It needs only the standard library, like :mod:`hpcext.protocol`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from hpcext.numerals import whole


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
        """Return the process that has this pid now, or None; a zombie counts as ended."""
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
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return text[text.rindex(")") + 2] == "T" and self.alive()

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


def _start_of(name: str) -> int | None:
    """Return when a process of ``/proc`` started, in clock ticks; None if it has ended."""
    try:
        text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program (field 2) may contain blanks and parentheses; the last one closes it.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])
