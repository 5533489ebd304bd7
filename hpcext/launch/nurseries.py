"""Nurseries as those see them who start supervisors: the manager, and the agent of a lease.

One is a process that forks supervisors (:mod:`hpcext.launch.nursery`), or that has imported the
modules of a job, too (:mod:`hpcext.launch.preload`). Standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcext import allocation
from hpcext.launch import devices, environment, nursery, preload, words
from hpcext.numerals import whole

AFTER = 3
"""Supervisors that are begun without one: a manager of few jobs needs none."""

ANSWER_S = 5.0
"""Seconds to wait for an answer. Then each supervisor is begun by itself again."""

MOST_LEARNED = 2
"""Those among them that nobody has asked for."""

MOST = 8
"""Nurseries with modules that are kept, as each may hold hundreds of MB; the one longest unused
ends."""

PADDING = "." * 4096

ROOM = "." * 65536
"""Room for the environment of a command; its words have that of a supervisor."""


class _Key(NamedTuple):
    """What attempts must have in common to be forked from one process."""

    mode: str
    python: tuple[str, ...]
    premise: str
    modules: tuple[str, ...]
    cwd: str
    own: tuple[tuple[str, str], ...]


def _supervisors_only(fd: int) -> Sequence[str]:
    return [sys.executable, "-I", "-S", nursery.__file__, str(fd), PADDING]


class Nursery:
    """A process that forks supervisors: none at first, and none again once it has failed.

    Parameters
    ----------
    argv : callable
        The number of its descriptor of our socket → its command.
    environ : Mapping of str to str, optional
        Its environment; by default ours.
    cwd : str
    after : int
        The number of supervisors that are begun before it is.
    apart : bool
        Whether it has a session of its own.

    Attributes
    ----------
    failed : str
        Why it forks nothing any more; empty if it does, or has not begun.
    """

    def __init__(
        self,
        argv: Callable[[int], Sequence[str]] = _supervisors_only,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/",
        after: int | None = None,
        apart: bool = True,
    ) -> None:
        self._argv = argv
        self._environ = environ
        self._cwd = cwd
        self._after = AFTER if after is None else after
        self._apart = apart
        self.failed = ""
        self._begun = 0
        self._ready = False
        self._socket: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def begin(self, directory: Path, log_fd: int, **more: Any) -> int | None:
        """Begin the supervisor of an attempt; return its pid, or None if it has to be begun here.

        It may have begun all the same where None is returned: then only one of two supervisors
        takes the attempt.

        Parameters
        ----------
        directory : pathlib.Path
        log_fd : int
            The open log of the supervisor.
        **more
            Fields of :class:`hpcext.launch.nursery.Order`.
        """
        self._begun += 1
        if self._begun == self._after + 1:
            self._start()
        if self._socket is None:
            return None
        try:
            if not self._is_ready(self._socket):
                return None
            order = nursery.Order(str(directory), **more)
            socket.send_fds(self._socket, [order.encoded()], [log_fd])
            pid = whole(self._socket.recv(64).decode())
        except (OSError, ValueError) as error:
            self._fail(str(error))
            return None
        if pid is None:
            self._fail("the process that has imported its modules could not be forked")
        return pid

    def prepare(self) -> None:
        """Start it now, if it has not been: it will be wanted."""
        if self._begun <= self._after:
            self._begun = self._after + 1
            self._start()

    def look(self) -> None:
        """See whether it is ready, or has failed."""
        if self._socket is not None:
            try:
                self._is_ready(self._socket)
            except OSError as error:
                self._fail(str(error))

    def _fail(self, why: str) -> None:
        self.failed = why
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
            if said != nursery.READY:
                raise OSError(said.decode(errors="replace") or "it did not begin")
            self._ready = True
            control.settimeout(ANSWER_S)
        return True

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._child = subprocess.Popen(
                self._argv(theirs.fileno()),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._cwd,
                pass_fds=[theirs.fileno()],
                start_new_session=self._apart,
            )
        except OSError as error:
            ours.close()
            self._fail(str(error))
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        ours.setblocking(False)
        self._socket = ours


class Preloaded:
    """Nurseries with modules, one for each interpreter, environment and working directory.

    The first attempt of a job starts one, and begins as usual.

    Parameters
    ----------
    base : Mapping of str to str, optional
        The environment of supervisors, without what differs between them; by default ours.
    apart : bool
        Whether each has a session of its own.
    """

    def __init__(self, base: Mapping[str, str] | None = None, *, apart: bool = True) -> None:
        self._base = base
        self._apart = apart
        self._nurseries: collections.OrderedDict[_Key, Nursery] = collections.OrderedDict()
        self._learned: list[_Key] = []

    def prepare(self, launch: Mapping[str, Any]) -> None:
        """Have one import what the next attempt of a job is to find, though nobody asked for it.

        Parameters
        ----------
        launch : Mapping
            A launch file, with the modules.
        """
        nursery = self.of(launch)
        nursery.prepare()
        # The last one, as it was wanted just now.
        key = next(reversed(self._nurseries))
        self._learned = [each for each in self._learned if each in self._nurseries and each != key]
        self._learned.append(key)
        if len(self._learned) > MOST_LEARNED:
            self._nurseries.pop(self._learned.pop(0)).close()

    def of(self, launch: Mapping[str, Any]) -> Nursery:
        """Return what begins the supervisor of an attempt.

        Parameters
        ----------
        launch : Mapping
            Its launch file.

        Raises
        ------
        KeyError, TypeError
            It is none of a job whose modules are imported once.
        """
        argv = words.script(launch["argv"])
        python = argv[: words.interpreter(argv)]
        mode = preload.RANKS if words.launched(launch["argv"]) else preload.ALONE
        own = _of_job(launch["environ"])
        modules, cwd = tuple(launch["preload"]), str(launch["cwd"])
        # What was stated holds without one.
        premise = json.dumps(launch.get("preload_if"), sort_keys=True)
        key = _Key(mode, tuple(python), premise, modules, cwd, tuple(sorted(own.items())))
        if key not in self._nurseries:
            self._nurseries[key] = self._nursery(key)
            if len(self._nurseries) > MOST:
                self._nurseries.popitem(last=False)[1].close()
        self._nurseries.move_to_end(key)
        return self._nurseries[key]

    def look(self) -> None:
        """See which have failed."""
        for each in self._nurseries.values():
            each.look()

    def close(self) -> None:
        """End all of them; what they have forked lives on."""
        while self._nurseries:
            self._nurseries.popitem()[1].close()

    def _nursery(self, key: _Key) -> Nursery:
        base = os.environ if self._base is None else self._base
        environ = {**environment.DEFAULTS, **base, **dict(key.own), preload.PADDING: ROOM}
        environ[preload.PREMISE] = key.premise
        if key.mode == preload.RANKS:
            environ = allocation.without_task(environ)
        return Nursery(
            lambda fd: [*key.python, preload.__file__, str(fd), PADDING, key.mode, *key.modules],
            environ=environ,
            cwd=key.cwd,
            after=0,
            apart=self._apart,
        )


def _of_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are the same in all attempts of a job."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("HPCEXT_") and name not in devices.OF_ATTEMPT
    }
