"""A slurmrestd(8) of our own, which answers in JSON on its standard output.

It runs as we do and listens nowhere, so nobody else can ask it. A question takes less than half of
the time of a command (benchmarks/slurm_readers.py). It ends when this process does.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import IO, NamedTuple, cast

from hpcext.allocation import without_slurm
from hpcext.core.errors import BatchError
from hpcext.text import clean

VERSIONS = ("v0.0.45", "v0.0.42", "v0.0.40", "v0.0.38")
"""Versions of its interface that are read here: one of them is in each Slurm from 22.05 on."""

_SBIN = "/usr/sbin:/usr/local/sbin:/usr/local/bin"
"""Where it is besides ``PATH``: users rarely have directories of daemons there."""

_SAID_CHARS = 400
_BEFORE = re.compile(r"(?:\[[^]]*\] |slurmrestd: )+")
"""What is in front of a message: an instant, or its name."""

_ERRORS_ONLY = "2"
"""A level of SLURMRESTD_DEBUG: it would write a line for each question."""


class Answer(NamedTuple):
    """An answer: the status of HTTP, and the body."""

    status: int
    body: bytes


class Restd:
    """A slurmrestd that is started at the first question, and again after its end.

    Parameters
    ----------
    program : str
        Its path, see :func:`find`.
    timeout_s : float
        Seconds to wait for an answer.
    """

    def __init__(self, program: str, timeout_s: float) -> None:
        self._program, self._timeout_s = program, timeout_s
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def get(self, path: str) -> Answer:
        """Return the answer to a question, such as ``/slurm/v0.0.42/job/7``.

        Raises
        ------
        BatchError
            It cannot be started here, or did not answer.
        """
        with self._lock:
            waited = self._running is not None
            while True:
                try:
                    return self._ask(path)
                except _Silent as error:
                    if not waited or error.late:
                        raise BatchError(str(error), argv=[self._program, path]) from None
                # One that waited may have got a signal that was meant for all processes of a job.
                waited = False

    def close(self) -> None:
        """End it, if it runs."""
        with self._lock:
            self._end()

    def _ask(self, path: str) -> Answer:
        if self._running is None:
            self._running = _Running(self._program)
        try:
            answer, stays = self._running.get(path, self._timeout_s)
        except BaseException:
            self._end()
            raise
        if not stays:
            self._end()
        return answer

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()


class _Silent(Exception):
    """No answer; the message says why."""

    def __init__(self, why: str, *, late: bool) -> None:
        super().__init__(why)
        self.late = late


class _Running:
    """A process, and a connection of HTTP through its standard input and output.

    Pipes, because its authentication refuses pairs of sockets (22.05).
    """

    def __init__(self, program: str) -> None:
        # All that would make it another one, such as one that listens, is left out.
        environ = {k: v for k, v in without_slurm().items() if not k.startswith("SLURMRESTD_")}
        # What it says is in memory: a full disk changes nothing.
        self._said: IO[bytes] = os.fdopen(os.memfd_create("slurmrestd"), "w+b")
        try:
            self._process = subprocess.Popen(
                [program, "-a", "rest_auth/local"],
                env={**environ, "SLURMRESTD_DEBUG": _ERRORS_ONLY},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
            )
        except OSError as error:
            self._said.close()
            raise BatchError(f"{program} could not be started: {error.strerror}") from None
        self._http = _Connection(self._process)

    def get(self, path: str, timeout_s: float) -> tuple[Answer, bool]:
        """Return an answer, and whether further questions may follow."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        # A pipe has no timeout; the end of its writer ends a wait.
        timer = threading.Timer(timeout_s, kill)
        timer.start()
        try:
            self._http.request("GET", path, headers={"Accept": "application/json"})
            response = self._http.getresponse()
            return Answer(response.status, response.read()), not response.will_close
        except (OSError, http.client.HTTPException):
            if late.is_set():
                why = f"slurmrestd did not answer within {timeout_s:g} s"
            else:
                why = f"slurmrestd ended without an answer: {self._last_words()}"
            raise _Silent(why, late=late.is_set()) from None
        finally:
            timer.cancel()

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read()[-_SAID_CHARS:].decode(errors="replace").splitlines()
        return clean(_BEFORE.sub("", lines[-1])) if lines else "it said nothing"

    def end(self) -> None:
        """Close its standard input, which is its end; kill one that stays."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                cast(IO[bytes], stream).close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


class _Connection(http.client.HTTPConnection):
    """A connection through the standard input and output of a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__("localhost")
        self._process = process

    def connect(self) -> None:
        """Use the pipes."""
        self.sock = _Pipes(self._process)


class _Pipes:
    """What :mod:`http.client` needs of a socket."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._into, self._out = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)

    def sendall(self, data: bytes) -> None:
        """Write a question."""
        self._into.write(data)
        self._into.flush()

    def makefile(self, mode: str) -> IO[bytes]:
        """Return a file to read one answer from; reading it to its end closes it."""
        return os.fdopen(os.dup(self._out.fileno()), mode)

    def close(self) -> None:
        """Leave the pipes open: the process ends with them."""


def find() -> str | None:
    """Return the path of the slurmrestd that is installed here; None if there is none."""
    scontrol = shutil.which("scontrol")
    beside = str(Path(os.path.realpath(scontrol)).parents[1] / "sbin") if scontrol else ""
    places = [os.environ.get("PATH", os.defpath), beside, _SBIN]
    return shutil.which("slurmrestd", path=os.pathsep.join(filter(None, places)))
