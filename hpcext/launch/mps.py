"""A GPU that several attempts share through NVIDIA's Multi-Process Service (MPS).

Each attempt on such a GPU has a seat, which its supervisor takes before the command begins and
gives back when nothing of the attempt is left. The first to take a seat starts the control daemon,
the last to leave ends it. No manager has to live for that: the kernel unlocks the seat of a killed
supervisor.

A client that is killed while it has work on the GPU leaves the server, and so its neighbours, in an
undefined state (https://docs.nvidia.com/deploy/mps/, "Client Early Termination"). So a client is
first taken off the GPU (``terminate_client``, available from Volta on), then killed; and the daemon
is told to quit when it has no clients, rather than killed.

::

    DIRECTORY/seats   locked by all who have one       DIRECTORY/log/   CUDA_MPS_LOG_DIRECTORY
    DIRECTORY/door    locked to come or go             PIPE/            CUDA_MPS_PIPE_DIRECTORY
    DIRECTORY/pipe    says what PIPE is

PIPE is in ``/tmp``, since a socket's path has 107 bytes at most and that of a pilot may have more.
Its name is random, so that nobody can foresee it. (``XDG_RUNTIME_DIR`` would be private too, but
goes away with its user's last login.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from hpcext import documents, private, protocol
from hpcext.launch import stderr
from hpcext.numerals import whole
from hpcext.process import Process

CONTROL = "nvidia-cuda-mps-control"
"""NVIDIA's program; nvidia-cuda-mps-control(1) documents what is relied on here."""

ASK_S = 10.0
"""Seconds to wait for the daemon, which answers in milliseconds, before it is asked no more."""

QUIT_S = 5
"""Seconds that a server gets to end after its last client."""

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"

_PIPE, _PIPES_IN = "pipe", "/tmp"


class Seat:
    """A seat on a shared GPU, or the way to one.

    Parameters
    ----------
    where : Mapping of str to str
        ``directory``, absolute, of this GPU; made as it is needed. ``device``: its UUID.
    """

    def __init__(self, where: Mapping[str, str]) -> None:
        self._directory = Path(where["directory"])
        self._device = where["device"]
        self._held: int | None = None
        self._released: set[Process] = set()
        self._silent = False

    def take(self) -> None:
        """Take the seat; the daemon runs from now on.

        Call it before becoming a sub-reaper, which would become the daemon's parent and wait for
        its end.

        Raises
        ------
        OSError
            The daemon cannot be had.
        """
        for path in (self._directory, self._log):
            private.make(path)
        with self._door():
            if self._pipe is None:
                self._make_pipe()
            held = os.open(self._directory / "seats", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_SH)
            if self._ask("get_server_list") is None:
                try:
                    self._start()
                except subprocess.TimeoutExpired:
                    os.close(held)
                    what = f"{CONTROL} -d did not end within {ASK_S:g} s"
                    raise OSError(errno.ETIMEDOUT, what) from None
                except BaseException:
                    os.close(held)
                    raise
        self._held = held

    def release(self, processes: Collection[Process]) -> None:
        """Take processes off the GPU, so that they may be killed whatever they were doing.

        Those that use no GPU are not among the daemon's clients, and are left alone.
        """
        left = {each.pid: each for each in processes if each not in self._released}
        for server in self._pids("get_server_list") if left else ():
            for pid in self._pids(f"get_client_list {server}") & left.keys():
                self._released.add(left[pid])
                said = self._ask(f"terminate_client {server} {pid}")
                # The last line is CUDA's result, 0 for success.
                if said is not None and said.split()[-1:] != ["0"]:
                    _warn(
                        f"process {pid} could not be removed from GPU {self._device}: "
                        f"{said.strip()}"
                    )

    def leave(self) -> None:
        """Give the seat back; the last one to do so ends the daemon."""
        with contextlib.suppress(OSError), self._door():
            if self._held is not None:
                os.close(self._held)
                self._held = None
            if not self._is_empty():
                return
            self._ask(f"quit -t {QUIT_S}", QUIT_S + ASK_S)
            pipe = self._pipe
            if pipe and self._ask("get_server_list") is None and not self._silent:
                # The daemon leaves its sockets behind.
                shutil.rmtree(pipe, ignore_errors=True)
                (self._directory / _PIPE).unlink(missing_ok=True)

    def environ(self) -> dict[str, str]:
        """Return the variables that make a process a client of the daemon; take the seat first."""
        return {PIPES: str(self._pipe)}

    @property
    def _pipe(self) -> Path | None:
        """The directory of the daemon's sockets; None if there is none on this machine yet."""
        try:
            path = Path(os.fsdecode(documents.read_untrusted(self._directory / _PIPE)))
            os.close(private.open_directory(path, without=0o077))
        except (OSError, ValueError):
            return None
        return path

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _make_pipe(self) -> None:
        made = tempfile.mkdtemp(prefix="hpcext-mps-", dir=_PIPES_IN)
        try:
            documents.write_file(self._directory / _PIPE, os.fsencode(made))
        except OSError:
            os.rmdir(made)
            raise

    @contextlib.contextmanager
    def _door(self) -> Iterator[None]:
        """Let only one supervisor at a time come or go."""
        door = os.open(self._directory / "door", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(door, fcntl.LOCK_EX)
            yield
        finally:
            os.close(door)

    def _is_empty(self) -> bool:
        seats = os.open(self._directory / "seats", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(seats, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(seats)
        return True

    def _start(self) -> None:
        # A file, since a daemon may keep open what it was given.
        with open(self._log / "start.txt", "w+", errors="replace") as said:
            found = subprocess.run(
                [CONTROL, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=self._environ(),
                cwd="/",
                timeout=ASK_S,
                check=False,
                preexec_fn=_hear_all,
            )
            if found.returncode and self._ask("get_server_list") is None:
                said.seek(0)
                why = said.read().strip() or f"it ended with {found.returncode}"
                raise OSError(errno.ENXIO, f"{CONTROL} -d: {why}")

    def _pids(self, question: str) -> set[int]:
        """Return the pids that an answer lists, one per line; an error message has none."""
        found = map(whole, (self._ask(question) or "").split("\n"))
        return {pid for pid in found if pid is not None}

    def _ask(self, question: str, timeout_s: float = ASK_S) -> str | None:
        """Return the daemon's answer to a command; None if there is no daemon, or it is silent."""
        if self._silent or self._pipe is None:
            return None
        try:
            found = subprocess.run(
                [CONTROL],
                input=f"{question}\n",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environ(),
                cwd="/",
                timeout=timeout_s,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            self._silent = True
            _warn(f"the MPS daemon did not answer {question!r} within {timeout_s:g} s")
            return None
        except OSError as error:
            _warn(f"{CONTROL} cannot be run: {error.strerror}")
            return None
        return None if found.returncode else found.stdout

    def _environ(self) -> dict[str, str]:
        # Nothing of the job's: it is one of several, and may be the first to end.
        known = {key: value for key in ("PATH", "HOME") if (value := protocol.environ().get(key))}
        return {
            **known,
            **self.environ(),
            LOGS: str(self._log),
            "CUDA_VISIBLE_DEVICES": self._device,
        }


def _hear_all() -> None:
    """Unblock all signals: the daemon must not inherit those that a supervisor blocks."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _warn(what: str) -> None:
    stderr.say(what)
