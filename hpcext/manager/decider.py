"""Asks the policy beside the manager's loop, so that a slow policy delays nothing else.

The policy lives in one process beside the manager, forked from it before anything runs. A thread
would not do: pure Python holds the interpreter's lock, and nothing can end a thread at a deadline.
Nor would a new program: it would cost a second at the start of each pilot, and could not have a
policy that is a function of the user's own. The process stays, since policies import solvers and
remember what they have fitted. At the deadline it is killed, so no answer comes after it; the next
question gets another process.

Policies whose answer is one pass over the queue (`quick` in :mod:`hpcext.policies`) are asked right
here: they answer in less time than it takes to hand a snapshot over, and a pilot under one of them
is one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import warnings
from collections.abc import Callable
from typing import NoReturn, Union

import msgspec
from msgspec.structs import replace

from hpcext.core.decisions import Question
from hpcext.core.engine import Policy, answer_of
from hpcext.core.values import Snapshot, Target
from hpcext.launch.command import hear_of_parent

_SIZE = 8
"""The number of bytes that give the length of a message."""

_IGNORED = (
    signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE,
)  # fmt: skip
"""Signals of a terminal or a batch system to all processes, which the manager answers."""

_killed: set[int] = set()
"""Processes that may not be gone yet.

A process that hangs in the kernel, in a file system that does not answer, ends when that answers,
and the manager does not wait for it.
"""

_encoder = msgspec.msgpack.Encoder()
_asked = msgspec.msgpack.Decoder(tuple[Snapshot, tuple[str, ...]])
_said = msgspec.msgpack.Decoder(Union[Target, str])  # noqa: UP007  (read at run time)


class Decider:
    """A policy that answers one question at a time.

    Parameters
    ----------
    policy : Policy
    quick : bool
        Whether to ask it in this process.
    timeout_s : float
        A question without an answer by then is ended.
    """

    def __init__(self, policy: Policy, *, quick: bool, timeout_s: float) -> None:
        self._policy = policy
        self._quick = quick
        self._timeout_s = timeout_s
        self._said: Target | str | None = None
        self._worker: _Worker | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the process, if one is needed: while the manager is small, and has no threads."""
        if not self._quick:
            # If none can be made now, the first question has another try.
            with contextlib.suppress(OSError):
                self._worker = _Worker(self._policy)

    def ask(self, question: Question, wake: Callable[[], None]) -> None:
        """Have a question answered; an older one is given up.

        Parameters
        ----------
        question : Question
        wake : callable
            Called when it is answered later; otherwise it is answered already.
        """
        self._give_up()
        if self._quick:
            self._said = _said.decode(_encoded(answer_of(self._policy, question.now)))
        else:
            self._task = asyncio.get_running_loop().create_task(self._ask(question.now, wake))

    def take(self) -> Target | str | None:
        """Return the answer to the last question, or why it has none; None: not known yet."""
        said, self._said = self._said, None
        return said

    def close(self) -> None:
        """Ask no more."""
        self._give_up()
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _give_up(self) -> None:
        self._said = None
        if self._task is not None:
            # The task closes its own descriptor: until then the loop watches it.
            self._task.cancel()
            self._task = None

    async def _ask(self, now: Snapshot, wake: Callable[[], None]) -> None:
        worker, self._worker = self._worker, None
        try:
            worker = worker or _Worker(self._policy)
            said = await asyncio.wait_for(worker.ask(now), self._timeout_s)
            self._worker = worker
        except asyncio.TimeoutError:
            said = f"did not answer within {self._timeout_s:g} s"
        except Exception as error:
            # Any error: otherwise the manager would wait for an answer for ever.
            what = f"{type(error).__name__}: {error}"
            said = f"could not be asked: {what}"
            if worker is not None and isinstance(error, (OSError, EOFError)):
                status = worker.end()
                how = f"by signal {-status}" if status < 0 else f"with {what}"
                said = f"ran in a process that ended {how}"
        finally:
            if worker is not None and self._worker is not worker:
                worker.end()
        self._said, self._task = said, None
        wake()


def _encoded(said: Target | str) -> bytes:
    """Encode an answer; if it cannot be encoded, encode why."""
    try:
        data = _encoder.encode(said)
        _said.decode(data)
    except Exception as error:
        return _encoder.encode(f"returned an invalid target: {type(error).__name__}: {error}")
    return data


class _Worker:
    """A process that has the policy.

    Parameters
    ----------
    policy : Policy

    Raises
    ------
    OSError
        No process can be made.
    """

    def __init__(self, policy: Policy) -> None:
        _reap()
        self._sock, theirs = socket.socketpair()
        parent = os.getpid()
        with warnings.catch_warnings():
            # From 3.12 on Python warns where there are threads, those of a linear algebra library
            # included: a lock that one of them holds would stay locked. If the policy ever met one,
            # the deadline would end it.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self._pid = os.fork()
            except OSError:
                self._sock.close()
                theirs.close()
                raise
        if not self._pid:
            _serve(policy, theirs, parent)
        theirs.close()
        self._sock.setblocking(False)

    async def ask(self, now: Snapshot) -> Target | str:
        """Have the policy decide on a snapshot."""
        loop = asyncio.get_running_loop()
        # Those jobs are among all jobs already, so only their ids are sent.
        busy = tuple(job.id for job in now.busy or ())
        data = _encoder.encode((replace(now, busy=None), busy))
        await loop.sock_sendall(self._sock, len(data).to_bytes(_SIZE, "big") + data)
        size = int.from_bytes(await self._read(_SIZE), "big")
        said: Target | str = _said.decode(await self._read(size))
        return said

    async def _read(self, size: int) -> bytes:
        data, loop = bytearray(), asyncio.get_running_loop()
        while len(data) < size:
            part = await loop.sock_recv(self._sock, min(size - len(data), 1 << 20))
            if not part:
                raise EOFError("no answer")
            data += part
        return bytes(data)

    def end(self) -> int:
        """Kill it.

        Returns
        -------
        int
            The signal that it had died from before, negative; else 0.
        """
        self._sock.close()
        pid, self._pid = self._pid, 0
        if not pid:
            return 0
        with contextlib.suppress(ChildProcessError):
            # The process may have closed its end without being gone yet.
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return min(0, os.waitstatus_to_exitcode(status))
            os.kill(pid, signal.SIGKILL)
            _killed.add(pid)
            _reap()
        return 0


def _reap() -> None:
    for pid in tuple(_killed):
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        _killed.discard(pid)


def _serve(policy: Policy, sock: socket.socket, parent: int) -> NoReturn:
    """Answer questions until none can come; leave without touching anything of the manager's."""
    try:
        signal.set_wakeup_fd(-1)
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_IGN)
        hear_of_parent(signal.SIGKILL)
        # Locks and files belong to the manager, and must be free when it ends.
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd != sock.fileno():
                with contextlib.suppress(OSError):
                    os.close(fd)
        with sock.makefile("rwb") as stream:
            while os.getppid() == parent and (head := stream.read(_SIZE)):
                said = _answer(policy, stream.read(int.from_bytes(head, "big")))
                data = _encoded(said)
                stream.write(len(data).to_bytes(_SIZE, "big") + data)
                stream.flush()
    finally:
        os._exit(0)


def _answer(policy: Policy, data: bytes) -> Target | str:
    now, busy = _asked.decode(data)
    jobs = {job.id: job for job in now.jobs}
    return answer_of(policy, replace(now, busy=tuple(jobs[name] for name in busy)))
