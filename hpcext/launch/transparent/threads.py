"""The threads of a stopped process, of which one is to run while the others do not; ptrace(2)."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable

from hpcext.launch import tree

WAIT_S = 10.0
"""Seconds in which a thread has stopped."""

_SEIZE, _DETACH, _EXITKILL = 0x4206, 17, 0x100000
_PAUSE_S = 0.005

_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_ptrace.restype = ctypes.c_long


def refused(pid: int) -> str:
    """Return why this process may not hold the threads of another; empty if it may."""
    try:
        # Asks for the same right (PTRACE_MODE_ATTACH), and disturbs nobody.
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except OSError as error:
        return f"ptrace of process {pid} is refused ({error.strerror}): kernel.yama.ptrace_scope"
    return ""


class Held:
    """All threads but one of a process that is stopped: they stay so, and that one runs.

    If the process that holds them dies, they die too: nothing has been done by them. It must be
    let go on by the same thread.

    Parameters
    ----------
    pid, but : int
        The process, and the thread that may run.

    Raises
    ------
    OSError
        They cannot be held.
    """

    def __init__(self, pid: int, but: int) -> None:
        if not tree.still(pid):
            raise OSError(f"process {pid} is not stopped")
        self._pid, self._but = pid, but
        self._held = [tid for tid in map(int, os.listdir(f"/proc/{pid}/task")) if tid != but]
        for tid in self._held:
            _trace(_SEIZE, tid, _EXITKILL)
        # What is held hears of it, and stays where it is.
        os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop the one that runs; let the others go, which remain stopped like it.

        Raises
        ------
        OSError
            They have not stopped.
        """
        os.kill(self._pid, signal.SIGSTOP)
        # Before the others: they stop with a process that is stopping.
        self._wait(lambda: tree.thread_state(self._pid, str(self._but)) in b"TtZX")
        for tid in self._held:
            _trace(_DETACH, tid, 0)
        self._wait(lambda: tree.still(self._pid))

    def _wait(self, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > until_s:
                raise OSError(f"process {self._pid} does not stop")
            time.sleep(_PAUSE_S)


def _trace(what: int, tid: int, data: int) -> None:
    if _ptrace(what, tid, None, data):
        code = ctypes.get_errno()
        raise OSError(code, f"thread {tid} cannot be held: {os.strerror(code)}")
