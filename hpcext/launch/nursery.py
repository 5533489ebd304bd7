"""A process that forks supervisors, so that not each of them has to begin an interpreter.

Run as ``python -I -S .../hpcext/launch/nursery.py FD PADDING``, where FD is a socket of the manager
or the agent that started it. It says that it is ready. Then a message is an order for an attempt,
with the open log of its supervisor; the answer is the pid. It ends with whoever started it, whose
end of the socket is closed then; supervisors live on, as ever.

The supervisor of an order that names a node is to be the child of an agent, which hears of its
end, and gives it notice, by its own end too.

PADDING makes room for what ``ps`` shows: each supervisor has the command line that it would have
without this.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

MOST_BYTES = 65536
"""Bytes of a message: more than a path can have."""

READY = b"ready"
"""The first message, to the manager."""

FAILED = 70
"""Exit status of a supervisor that an error of its own ended; EX_SOFTWARE of sysexits.h."""

Supervise = Callable[..., int]
"""What :func:`hpcext.launch.supervision.supervise` is."""

_ARG_START, _ARG_END = 47, 48
"""Fields 48 and 49 of ``/proc/PID/stat``, from 0: where the command line is in memory; proc(5)."""


class Order(NamedTuple):
    """An order to fork the supervisor of an attempt.

    Attributes
    ----------
    directory : str
        The attempt's.
    node : int or None
        The index of this node; the supervisor then becomes the child of whoever started the
        nursery.
    environ : Mapping of str to str
        Variables that it has beside those of the nursery.
    """

    directory: str
    node: int | None = None
    environ: Mapping[str, str] = {}

    def encoded(self) -> bytes:
        """Return it as a message."""
        return json.dumps(self).encode()

    def words(self) -> list[str]:
        """Return the command line that the supervisor would have without a nursery."""
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervise.py")
        node = [] if self.node is None else [str(self.node)]
        return [sys.executable, "-I", "-S", program, self.directory, *node]


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


def become(supervise: Supervise, order: Order, log: int) -> NoReturn:
    """Be the supervisor of an attempt, in a process that was forked for it.

    Parameters
    ----------
    supervise : callable
        :func:`hpcext.launch.supervision.supervise`.
    order : Order
    log : int
        A descriptor of its log.
    """
    status = FAILED
    try:
        if order.node is None:
            os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        show_as(order.words())
        os.environ.update(order.environ)
        status = supervise(order.directory, order.node)
        sys.stderr.flush()
    finally:
        # Nothing of the nursery is this process's to clean up.
        os._exit(status)


def _fork(supervise: Supervise, order: Order, log: int, control: socket.socket) -> int:
    """Fork a supervisor that is a child of this process; return its pid."""
    pid = os.fork()
    if pid == 0:
        control.close()
        become(supervise, order, log)
    return pid


def _fork_for(
    agent: int, supervise: Supervise, order: Order, log: int, control: socket.socket
) -> int:
    """Fork a supervisor that is a child of an agent, which is a sub-reaper; return its pid.

    Raises
    ------
    OSError
        There can be no further process.
    """
    from hpcext.launch import command  # noqa: PLC0415  (found only now)
    from hpcext.numerals import whole  # noqa: PLC0415
    from hpcext.protocol import NOTICE_SIGNAL  # noqa: PLC0415

    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            me = os.getpid()
            forked = os.fork()
            if forked:
                os.write(writing, str(forked).encode())
                os._exit(0)
            control.close()
            os.close(reading)
            os.close(writing)
            while os.getppid() == me:
                time.sleep(0.001)
            # By its end an agent gives notice: afterwards nobody could.
            command.hear_of_parent(NOTICE_SIGNAL)
            if os.getppid() != agent:
                os.kill(os.getpid(), NOTICE_SIGNAL)
            become(supervise, order, log)
        finally:
            os._exit(FAILED)
    os.close(writing)
    with open(reading, encoding="ascii") as file:
        pid = whole(file.read())
    if pid is None:
        raise OSError("no process can be made")
    return pid


def main() -> None:
    """Fork a supervisor for each message, until the manager is gone."""
    # Blocked, as in a supervisor that begins by itself: see supervise.py.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from hpcext.launch.supervision import supervise  # noqa: PLC0415

    control = socket.socket(fileno=int(sys.argv[1]))
    serve(control, supervise, [sys.executable, "-I", "-S", os.path.abspath(__file__), sys.argv[1]])


def serve(control: socket.socket, supervise: Supervise, shown: Sequence[str]) -> None:
    """Say that this process is ready, and fork a supervisor for each message.

    Parameters
    ----------
    control : socket.socket
        To whoever started it.
    supervise : callable
        :func:`hpcext.launch.supervision.supervise`.
    shown : sequence of str
        The words that ``ps`` shows of this process.
    """
    # Each would be a zombie until somebody looked.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    starter = os.getppid()
    control.send(READY)
    show_as(shown)
    gc.freeze()
    while True:
        message, logs, *_ = socket.recv_fds(control, MOST_BYTES, 1)
        if not message:
            return
        order = Order(*json.loads(message))
        (log,) = logs
        if order.node is None:
            pid = _fork(supervise, order, log, control)
        else:
            pid = _fork_for(starter, supervise, order, log, control)
        os.close(log)
        control.send(str(pid).encode())


if __name__ == "__main__":
    # The manager may end at any moment.
    with contextlib.suppress(OSError):
        main()
    os._exit(0)
