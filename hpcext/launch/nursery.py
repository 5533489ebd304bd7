"""A process that forks supervisors, so that not each of them has to begin an interpreter.

Run as ``python -I -S .../hpcext/launch/nursery.py FD PADDING``, where FD is a socket of the
manager. It says that it is ready. Then a message is the directory of an attempt, with the open log
of its supervisor; the answer is the pid. It ends with the manager, whose end of the socket is
closed then; supervisors live on, as ever.

PADDING makes room for what ``ps`` shows: each supervisor has the command line that it would have
without this.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

MOST_BYTES = 65536
"""Bytes of a message: more than a path can have."""

READY = b"ready"
"""The first message, to the manager."""

FAILED = 70
"""Exit status of a supervisor that an error of its own ended; EX_SOFTWARE of sysexits.h."""

_ARG_START, _ARG_END = 47, 48
"""Fields 48 and 49 of ``/proc/PID/stat``, from 0: where the command line is in memory; proc(5)."""


def show_as(words: Sequence[str]) -> None:
    """Replace what ``ps`` shows of this process, as far as there is room for it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            # The name may have blanks.
            fields = ["", "", *file.read().rpartition(")")[2].split()]
        start, room = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
        shown = b"\0".join(map(os.fsencode, words))[: room - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(shown.ljust(room, b"\0"))


def become(supervise: Callable[[str], int], directory: str, log: int) -> NoReturn:
    """Be the supervisor of an attempt, in a process that was forked for it.

    Parameters
    ----------
    supervise : callable
        :func:`hpcext.launch.supervisor.supervise`.
    directory : str
    log : int
        A descriptor of its log.
    """
    status = FAILED
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        here = os.path.dirname(os.path.abspath(__file__))
        show_as([sys.executable, "-I", "-S", os.path.join(here, "supervise.py"), directory])
        status = supervise(directory)
        sys.stderr.flush()
    finally:
        # Nothing of the nursery is this process's to clean up.
        os._exit(status)


def main() -> None:
    """Fork a supervisor for each message, until the manager is gone."""
    # Blocked, as in a supervisor that begins by itself: see supervise.py.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from hpcext.launch.supervisor import supervise  # noqa: PLC0415

    control = socket.socket(fileno=int(sys.argv[1]))
    serve(control, supervise, [sys.executable, "-I", "-S", os.path.abspath(__file__), sys.argv[1]])


def serve(control: socket.socket, supervise: Callable[[str], int], shown: Sequence[str]) -> None:
    """Say that this process is ready, and fork a supervisor for each message.

    Parameters
    ----------
    control : socket.socket
        To the manager.
    supervise : callable
        :func:`hpcext.launch.supervisor.supervise`.
    shown : sequence of str
        The words that ``ps`` shows of this process.
    """
    # Each would be a zombie until somebody looked.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(READY)
    show_as(shown)
    gc.freeze()
    while True:
        message, logs, *_ = socket.recv_fds(control, MOST_BYTES, 1)
        if not message:
            return
        (log,) = logs
        pid = os.fork()
        if pid == 0:
            control.close()
            become(supervise, os.fsdecode(message), log)
        os.close(log)
        control.send(str(pid).encode())


if __name__ == "__main__":
    # The manager may end at any moment.
    with contextlib.suppress(OSError):
        main()
    os._exit(0)
