"""The start of an attempt's command, with exactly the signals that the protocol promises."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hpcext import private
from hpcext.protocol import NEWS_SIGNAL, NOTICE_SIGNAL, SUSPEND_SIGNAL

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_NO_DIRECTORY = 125
_SHOWN_CHARS = 200

PASSING = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT,
})  # fmt: skip
"""Errors that are the machine's at this moment: a start that is tried again may go well."""

run_here: Callable[[Sequence[str], Mapping[str, str]], None] | None = None
"""What runs a command in its forked process itself, or returns if it cannot; see ``run_here``."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


class CommandError(Exception):
    """The error that the command cannot be run, by its own fault.

    Attributes
    ----------
    code : int
        As in a shell: 127 for a missing command, 126 for anything else.
    """

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


class DirectoryError(CommandError):
    """The error that its working directory cannot be entered, perhaps only at this moment."""

    def __init__(self, what: str) -> None:
        super().__init__(NOT_EXECUTABLE, what)


def become_reaper() -> None:
    """Make orphans below this process its children; prctl(2)."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no sub-reaper")


def hear_of_parent(signum: signal.Signals) -> None:
    """Have this process sent a signal when its parent ends; prctl(2)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


def open_log(path: Path, heading: str) -> int:
    """Open the log of a job to append to it, and write a line that separates attempts.

    Parameters
    ----------
    path : pathlib.Path
    heading : str
        The first line; it is left out if there is no space for it.

    Raises
    ------
    OSError
        The log cannot be opened.
    """
    fd = private.open_log(path)
    write_line(fd, path, heading)
    return fd


def sayer(fd: int, path: Path) -> Callable[[str], None]:
    """Return what writes lines of hpcext into the log.

    Parameters
    ----------
    fd : int
        The log, open for appending.
    path : pathlib.Path
        The same log.
    """
    return lambda what: write_line(fd, path, f"hpcext: {what}")


def note(path: Path, what: str) -> None:
    """Write a line of hpcext into a log that is not open, if that is possible.

    Parameters
    ----------
    path : pathlib.Path
    what : str
    """
    with contextlib.suppress(OSError):
        log = private.open_log(path)
        try:
            sayer(log, path)(what)
        finally:
            os.close(log)


def write_line(fd: int, path: Path, line: str) -> None:
    """Write a line of our own into the log, after ending one that a progress bar left unfinished.

    Parameters
    ----------
    fd : int
        The log, open for appending.
    path : pathlib.Path
        The same log.
    line : str
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            new_line = "" if file.read(1) in {b"", b"\n"} else "\n"
        os.write(fd, f"{new_line}{line}\n".encode(errors="backslashreplace"))
    except OSError:
        # On a full disk the training goes on without our line.
        pass


def heading(attempt: int, gpus: int) -> str:
    """Return ``--- attempt 3, 2 GPUs, 2026-11-21T10:29:00+0000``."""
    number = f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
    return f"--- attempt {attempt}, {number}, {time.strftime('%Y-%m-%dT%H:%M:%S%z')}"


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    cwd: str = ".",
    log: int | None = None,
    blocked: Collection[signal.Signals] = (SUSPEND_SIGNAL,),
    notices: bool = False,
    spared: bool = False,
    asked_by: signal.Signals | None = None,
    no_new_privs: bool = False,
) -> int:
    """Start a command in a session of its own; return its pid.

    It begins with SIGTSTP blocked and ignored and SIGUSR1 ignored, which all that it starts
    inherits. Other signals have their default actions, except SIGUSR2 and SIGINT if they are
    notices.

    Parameters
    ----------
    argv : sequence of str
    environ : Mapping[str, str]
        Its whole environment; its PATH is searched.
    cwd : str
    log : int or None
        Descriptor that becomes its standard output and standard error; None: they stay ours.
    blocked : collection of signals
        Signals that stay pending until it looks.
    notices : bool
        Whether the batch system may send SIGUSR2 (sbatch's ``--signal``) and SIGINT (which LSF's
        bkill and brequeue send first) to every process: these signals are ignored as well.
    spared : bool
        Whether it ignores SIGTERM, too, so that it lives until it has been suspended: batch systems
        send that signal to every process of a job whose nodes are wanted.
    asked_by : signal.Signals or None
        The signal that asks the command to save by its own means. The command starts with that
        signal's default action: Lightning, for example, takes an ignored signal for a handled one.
    no_new_privs : bool
        Whether nothing that it starts can gain privileges, as by ``sudo``.

    Raises
    ------
    CommandError
        It cannot be run; :class:`DirectoryError` if `cwd` cannot be entered.
    OSError
        No process can be made.
    """
    parent = os.getpid()
    reading, writing = os.pipe()

    def child() -> NoReturn:
        try:
            _prepare(parent, log, blocked, ignored(notices, spared=spared, asked_by=asked_by))
            if no_new_privs:
                _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            _execute(argv, environ, cwd)
        except BaseException as error:
            os.write(writing, str(error).encode(errors="backslashreplace")[:4000])
            code = error.code if isinstance(error, CommandError) else NOT_EXECUTABLE
            os._exit(_NO_DIRECTORY if isinstance(error, DirectoryError) else code)

    pid = fork(child)
    os.close(writing)
    with open(reading, "rb") as file:
        # The read ends when exec closes the other end, so the command runs once this returns.
        message = file.read()
    if message:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == _NO_DIRECTORY:
            raise DirectoryError(message.decode())
        raise CommandError(code, message.decode())
    return pid


def fork(child: Callable[[], NoReturn]) -> int:
    """Start a process that only calls a function; return its pid."""
    pid = os.fork()
    if pid == 0:
        child()
    return pid


def ignored(
    notices: bool, *, spared: bool = False, asked_by: signal.Signals | None = None
) -> set[signal.Signals]:
    """Return the signals that others send to a command, which end what does not know of them.

    Parameters
    ----------
    notices, spared, asked_by
        As of :func:`start`.
    """
    told = {SUSPEND_SIGNAL, NEWS_SIGNAL}
    told |= {NOTICE_SIGNAL, signal.SIGINT} if notices else set()
    told |= {signal.SIGTERM} if spared else set()
    return {each for each in told if each != asked_by}


def _prepare(
    parent: int,
    log: int | None,
    blocked: Collection[signal.Signals],
    ignored: Collection[signal.Signals],
) -> None:
    """Set what the command inherits, between fork and exec."""
    # This is cheap, and ends most processes if we are killed with SIGKILL; a sweep ends the rest.
    hear_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(NOT_EXECUTABLE)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if log is not None:
        os.dup2(log, 1)
        os.dup2(log, 2)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)
    # Linux keeps a blocked signal pending even if it is ignored: ignored, so that a program that
    # unblocks it is not stopped; blocked, so that a session finds it.
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _execute(argv: Sequence[str], environ: Mapping[str, str], cwd: str) -> NoReturn:
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        what = "no such directory" if _is_missing(error) else "cannot enter"
        reason = "" if _is_missing(error) else f": {_reason(error)}"
        raise DirectoryError(f"{what} {_shown(cwd)}{reason}") from None
    if run_here is not None:
        run_here(argv, environ)
    try:
        os.execvpe(argv[0], list(argv), dict(environ))
    except (OSError, ValueError) as error:
        code = NOT_FOUND if _is_missing(error) else NOT_EXECUTABLE
        raise CommandError(code, _why(argv[0], error, environ)) from None


def _why(program: str, error: OSError | ValueError, environ: Mapping[str, str]) -> str:
    """Return in words why a program cannot be run."""
    import shutil  # noqa: PLC0415  (slow to import, and every start of a job waits for us)

    path = shutil.which(program, os.F_OK, environ.get("PATH")) or program
    number = error.errno if isinstance(error, OSError) else None
    if _is_missing(error) and not os.path.exists(path):
        array = "; in an array, each argument is a string of its own" if " " in program else ""
        return f"no such program {_shown(program)}{array}"
    if _is_missing(error):
        interpreter = _shown(_interpreter(path))
        return f"cannot run {_shown(program)}: its interpreter {interpreter} does not exist"
    if number == errno.EACCES and os.path.isdir(path):
        return f"cannot run {_shown(program)}: it is a directory"
    if number == errno.EACCES and not os.access(path, os.X_OK):
        return f"cannot run {_shown(program)}: it is not executable"
    if number == errno.ENOEXEC:
        return (
            f"cannot run {_shown(program)}: neither a program for this machine nor a script with "
            "a #! line"
        )
    return f"cannot run {_shown(program)}: {_reason(error)}"


def _interpreter(path: str) -> str:
    """Return the interpreter in the first line of a script; of a binary, its loader."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError:
        line = b""
    words = line[2:].split() if line.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else "loader (ld.so)"


def _is_missing(error: OSError | ValueError) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ENOENT, errno.ENOTDIR}


def _shown(word: str) -> str:
    return repr(word if len(word) <= _SHOWN_CHARS else f"{word[:_SHOWN_CHARS]}...")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
