"""Commands of hpcext, each a fork of a process that has imported them all.

To import what a command needs takes a third of a second of processor time, which is most of what a
short one takes, and the tests run more than a thousand. A fork is otherwise what ``python -m
hpcext`` is: a process of its own with the arguments, environment, directory and output that it was
given. What tests start to run beside them, managers above all, are real programs.

Run as ``python forked_commands.py FD`` it is the process that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 1 << 20

SPAWNS = frozenset({"simulate", "reproduce"})
"""What starts workers by the program that it is."""


class Commands:
    """The process that forks, as its client sees it.

    Parameters
    ----------
    python : str
    environ : Mapping[str, str]
        What the process starts with; each command has its own.
    user : str, optional
    """

    def __init__(self, python: str, environ: Mapping[str, str], user: str | None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self._socket, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        self._process = subprocess.Popen(
            [python, __file__, str(theirs.fileno())],
            env=environ,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd="/",
        )
        theirs.close()

    def run(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> tuple[int, str, str]:
        """Run ``hpcext`` with these arguments; its exit code, and what it printed.

        Raises
        ------
        TimeoutError
            It was killed, since it took too long.
        """
        umask = os.umask(0)
        os.umask(umask)
        asked = {"argv": argv, "environ": dict(environ), "cwd": str(cwd), "umask": umask}
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(self._socket, [json.dumps(asked).encode()], [each[1] for each in pipes])
        for _, writing in pipes:
            os.close(writing)
        *reading, facts = (each[0] for each in pipes)
        pid = b""
        while not pid.endswith(b" "):
            pid += os.read(facts, 1)
        try:
            out, err, code = _read_all([*reading, facts], time.monotonic() + timeout_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            raise
        return int(code), out, err

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _read_all(fds: Sequence[int], end_s: float) -> list[str]:
    """Read from all of these until nobody writes there."""
    chunks: dict[int, list[bytes]] = {fd: [] for fd in fds}
    reading = set(fds)
    while reading:
        ready, _, _ = select.select(reading, [], [], max(0.0, end_s - time.monotonic()))
        if not ready:
            for fd in reading:
                os.close(fd)
            raise TimeoutError(*(b"".join(each).decode() for each in chunks.values()))
        for fd in ready:
            if chunk := os.read(fd, 1 << 16):
                chunks[fd].append(chunk)
            else:
                reading.discard(fd)
                os.close(fd)
    return [b"".join(each).decode() for each in chunks.values()]


@functools.cache
def _commands(python: str, user: str | None, environ: tuple[tuple[str, str], ...]) -> Commands:
    one = Commands(python, dict(environ), user)
    atexit.register(one.close)
    return one


def commands(python: str, user: str | None, environ: Mapping[str, str]) -> Commands:
    """Those of an interpreter and a user; started once."""
    # What finds its libraries, and what a cluster of the tests knows its processes by.
    names = ("LD_LIBRARY_PATH", "PYTHONPATH", "SLURM_CONF")
    return _commands(python, user, tuple((k, v) for k, v in environ.items() if k in names))


# From here on: in the process that forks.


def serve(asking: socket.socket) -> None:
    from hpcext.cli.main import make_parser

    make_parser()
    gc.freeze()
    while True:
        text, fds, _, _ = socket.recv_fds(asking, MOST_BYTES, 3)
        if not text:
            return
        if os.fork() == 0:
            asking.close()
            _attend(json.loads(text), fds)
        for fd in fds:
            os.close(fd)
        # Those that have ended.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(asked: dict[str, Any], fds: list[int]) -> NoReturn:
    """Start a command, and tell its pid and its exit code."""
    *output, facts = fds
    pid = os.fork()
    if pid == 0:
        os.close(facts)
        _be(asked, output)
    for fd in output:
        os.close(fd)
    os.write(facts, f"{pid} ".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(facts, f"{code}".encode())
    os._exit(0)


def _be(asked: dict[str, Any], output: list[int]) -> NoReturn:
    """Be the command."""
    for fd, number in zip(output, (1, 2), strict=True):
        os.dup2(fd, number)
        os.close(fd)
    # Ours are of another kind of file.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(asked["environ"])
    time.tzset()
    os.umask(asked["umask"])
    code: Any = 1
    try:
        os.chdir(asked["cwd"])
        import hpcext.__main__ as program

        sys.argv = [str(program.__file__), *asked["argv"]]
        code = program.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    # As an interpreter ends.
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    sys.path.pop(0)
    serve(socket.socket(fileno=int(sys.argv[1])))
