"""The execution of commands of a batch system; nothing else starts one."""

from __future__ import annotations

import logging
import math
import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hpcext import allocation, documents
from hpcext.batch.lsf.engine import unknown_options
from hpcext.core.errors import BatchError
from hpcext.text import clean, listed

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""Seconds in which a restarting controller answers; MessageTimeout of slurm.conf is 10 to 30."""

SLOW_S = 5.0
"""Seconds after which a warning says that a command has not answered."""

DOWN_S = 15.0
"""Seconds to wait for a command that reports that its daemon is down on this host."""

MOST_BYTES = 256 << 20
"""What is read of a command at most; squeue prints fewer bytes for a million jobs."""

PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0
"""The first and the longest pause, in seconds, before a question is put again."""

_SAID_CHARS = 400

_Found = TypeVar("_Found")

_DOWN = re.compile(r"\bLIM is down\b|\bls_getmastername\b|\bmaster LIM\b.*\bnot\b", re.I)
"""What commands of LSF print before they try again, for ever (lsid(1), "Diagnostics")."""

_ELSEWHERE = "no slurm.conf was found here: run it where Slurm is set up, or set SLURM_CONF"


def run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    script: Path | None = None,
) -> str:
    """Run a command of a batch system; return its output.

    Parameters
    ----------
    argv : sequence of str
        The command and its arguments; no shell interprets them.
    environ : Mapping[str, str], optional
        The environment; by default ours, as :func:`hpcext.allocation.for_commands` changes it.
    timeout_s : float
        Seconds to wait for its end.
    script : pathlib.Path, optional
        A file of ours for its standard input. It is not given by name, because another file might
        have taken its place.

    Returns
    -------
    str
        The standard output.

    Raises
    ------
    BatchError
        The command is missing, has failed, took too long, or printed too much. A failure has the
        command, its exit code and both outputs.
    """
    ended = _run(argv, environ, timeout_s, script)
    if ended.returncode:
        lacks = unknown_options(argv, ended.stderr + ended.stdout)
        why = f"it does not know {listed(lacks)} here" if lacks else _error_text(ended.stderr)
        raise BatchError(
            f"{argv[0]} failed: {why or f'exit code {ended.returncode}'}",
            argv=argv,
            exit_code=ended.returncode,
            stdout=ended.stdout,
            stderr=ended.stderr,
            do=_ELSEWHERE if "configuration source" in ended.stderr else "",
        )
    return ended.stdout


def everything_said(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Return both outputs of a command, whatever its exit code, which means nothing for help texts.

    Parameters
    ----------
    argv : sequence of str
    timeout_s : float
        Seconds to wait for its end.


    Raises
    ------
    BatchError
        The command is missing, or took too long.
    """
    ended = _run(argv, None, timeout_s)
    return ended.stdout + ended.stderr


def patiently(ask: Callable[[], _Found], patience_s: float) -> _Found:
    """Return the answer to a question that is put again while nobody answers, after pauses.

    Parameters
    ----------
    ask : callable
    patience_s : float
        Seconds after which it is not put again.

    Raises
    ------
    BatchError
        There was no answer at the last time.
    """
    until_s, pause_s = time.monotonic() + patience_s, PAUSE_S
    while True:
        try:
            return ask()
        except BatchError as error:
            if time.monotonic() + pause_s > until_s:
                raise
            log.warning("%s; asked again in %g s", error, pause_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _run(
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    timeout_s: float,
    script: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    try:
        stdin = documents.open_own(script) if script else os.open(os.devnull, os.O_RDONLY)
    except (OSError, ValueError) as error:
        raise BatchError(f"{script or os.devnull} cannot be read: {error}") from None
    try:
        process = subprocess.Popen(
            argv,
            env=allocation.for_commands() if environ is None else dict(environ),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise BatchError(
            f"{argv[0]} was not found",
            do="run it on a machine that has the commands of the batch system",
        ) from None
    except OSError as error:
        raise BatchError(f"{argv[0]} could not be started: {error.strerror}") from None
    finally:
        os.close(stdin)
    with process:
        try:
            stdout, stderr = _answer(process, argv, timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


class _Outputs:
    """Both outputs of a process, read as they come."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._name = process, name
        streams = (process.stdout.fileno(), process.stderr.fileno())
        self._read = {fd: bytearray() for fd in streams}
        self._selector = selectors.PollSelector()
        for fd in streams:
            self._selector.register(fd, selectors.EVENT_READ)

    def all_read(self, wait_s: float) -> bool:
        """Read for so many seconds at most; return whether the process has ended."""
        until_s = time.monotonic() + wait_s
        while self._selector.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            for key, _ in self._selector.select(left_s):
                self._take(key)
        try:
            self._process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _take(self, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, 1 << 16)
        if not data:
            self._selector.unregister(key.fd)
            return
        self._read[key.fd] += data
        if sum(map(len, self._read.values())) > MOST_BYTES:
            raise BatchError(
                f"{self._name} printed too much, more than {MOST_BYTES >> 20} MiB",
                do="run it by hand, to see what it prints",
            )

    def texts(self) -> tuple[str, str]:
        """Return what was read so far, without a change of line ends: names of jobs have any."""
        stdout, stderr = (said.decode(errors="replace") for said in self._read.values())
        return stdout, stderr


def _answer(
    process: subprocess.Popen[bytes], argv: Sequence[str], timeout_s: float
) -> tuple[str, str]:
    """Return both outputs of a command once it has ended; log a warning if it is slow."""
    began_s, outputs = time.monotonic(), _Outputs(process, argv[0])
    until_s, wait_s = timeout_s, min(SLOW_S, timeout_s)
    while not outputs.all_read(wait_s):
        passed_s = time.monotonic() - began_s
        said = _error_text(outputs.texts()[1])
        if _DOWN.search(said):
            until_s = min(until_s, DOWN_S)
        if passed_s >= until_s:
            but = f", but said: {said}" if said else ""
            raise BatchError(
                f"{argv[0]} did not answer within {until_s:g} s{but}",
                argv=argv,
                do="try again later",
            )
        _warn_slow(argv[0], said, passed_s, until_s)
        wait_s = max(0.0, min(SLOW_S, until_s - passed_s))
    return outputs.texts()


def _warn_slow(name: str, said: str, passed_s: float, until_s: float) -> None:
    """Log that a command is slow, at most once a minute, because a manager repeats it."""
    now_s = time.monotonic()
    if now_s - _warned_s[0] > 60:
        _warned_s[0] = now_s
        says = f" ({said})" if said else ""
        log.warning(
            "%s has not answered for %.0f s%s; waiting for up to %.0f s in all",
            name, passed_s, says, until_s,
        )  # fmt: skip


_warned_s = [-math.inf]
"""When the last such warning was logged."""


def _error_text(text: str) -> str:
    """Return the error message of a command in one line, without its name before each part."""
    parts = [line.rpartition(": error: ")[2].strip() for line in text.splitlines()]
    return clean("; ".join(part for part in parts if part))[:_SAID_CHARS]
