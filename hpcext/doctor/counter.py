"""A trial of suspending a process as it is; ``python -m hpcext.doctor.counter DIR [WORD]...``.

A program that counts, with ``gpu`` one that counts in the memory of a GPU, is suspended and let go
on by the supervisor of attempts, and has to go on with the next number. With ``stays`` it may stay
in memory meanwhile. The last line of output is the seconds of both, or why it failed, in JSON.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hpcext import documents, private, protocol
from hpcext.doctor import gpu_count
from hpcext.launch import supervise
from hpcext.launch.transparent import residence
from hpcext.numerals import whole

WAIT_S = 30.0
"""Seconds for each part: the first numbers, the suspension, the next numbers."""

_COUNT = (
    "import time\nn = 0\nwhile True:\n    print(n, flush=True)\n    n += 1\n    time.sleep(0.01)"
)
_SEEN = 3
_LOOK_S = 0.02


class _FailedError(Exception):
    """Why it did not work."""


def _tried(job: Path, argv: list[str], *, stays: bool) -> tuple[float, float]:
    """Return the seconds that a suspension took, and the return.

    Raises
    ------
    _FailedError
        It did not work.
    """
    first = _Attempt(job, 1, argv, stays=stays)
    try:
        _until(lambda: len(first.numbers()) >= _SEEN or first.ended(), "the program did not begin")
        began = time.monotonic()
        first.process.send_signal(signal.SIGTSTP)
        _until(lambda: first.ended() or first.declined() != "", "it did not end")
        if why := first.declined():
            raise _FailedError(why)
        if not first.saved():
            raise _FailedError(first.said() or "no reason is known")
        suspend_s = time.monotonic() - began
        seen = len(first.numbers())
        began = time.monotonic()
        second = _Attempt(job, 2, argv, stays=stays, before=first)
    except BaseException:
        first.end()
        raise
    try:
        _until(lambda: len(second.numbers()) >= seen + _SEEN or second.ended(), "it did not go on")
    finally:
        second.end()
    numbers = second.numbers()
    if numbers[: seen + _SEEN] != list(range(seen + _SEEN)):
        raise _FailedError(second.said() or "it did not go on with the next number")
    return suspend_s, time.monotonic() - began


def _until(holds: Any, else_: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if signal.SIGTERM in signal.sigpending():
            sys.exit(1)
        if time.monotonic() > deadline:
            raise _FailedError(f"{else_} within {WAIT_S:g} s")
        time.sleep(_LOOK_S)


class _Attempt:
    """An attempt of the counting program, under a supervisor."""

    def __init__(
        self,
        job: Path,
        number: int,
        argv: list[str],
        *,
        stays: bool,
        before: _Attempt | None = None,
    ) -> None:
        self._log = job / "log.txt"
        self._directory = job / f"attempt-{number:04d}"
        private.make(self._directory)
        launch = {
            "schema": protocol.LAUNCH,
            "job": "1",
            "attempt": number,
            "op": number,
            "argv": [sys.executable, "-I", "-S", *argv],
            "cwd": str(job),
            "environ": {},
            "log": str(self._log),
            "gpus": [],
            "kill_grace_s": 1.0,
            "suspend_timeout_s": WAIT_S,
            "manager": None,
            "checkpoint": {"transparent": True},
            "stays": stays,
        }
        documents.write_json(self._directory / protocol.LAUNCH_FILE, launch)
        self.process = self._process(before)

    def _process(self, before: _Attempt | None) -> subprocess.Popen[bytes]:
        """Return its supervisor: that of the last attempt, if it has stayed, or another one."""
        if before is not None and residence.hand_over(self._directory) is not None:
            return before.process
        words = [sys.executable, "-I", "-S", str(supervise.__file__), str(self._directory)]
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def numbers(self) -> list[int]:
        """Return the numbers that the program has printed, in all attempts."""
        return [number for line in self._lines() if (number := whole(line)) is not None]

    def said(self) -> str:
        """Return the last line that hpcext has written into the log, or why the end was so."""
        lines = [line for line in self._lines() if line.startswith("hpcext: ")]
        return lines[-1].removeprefix("hpcext: ") if lines else ""

    def declined(self) -> str:
        """Return why it could not be suspended; empty if that is not known."""
        return str(self._read(protocol.NATIVE_FILE, protocol.NATIVE).get("cannot_save") or "")

    def saved(self) -> bool:
        """Return whether it was suspended and nothing is lost."""
        end = self._read(protocol.EXIT_FILE, protocol.EXIT)
        account = end.get("checkpoint")
        return bool(end.get("suspended") and isinstance(account, dict) and account.get("saved"))

    def ended(self) -> bool:
        """Return whether the attempt has ended; its supervisor may stay."""
        recorded = (self._directory / protocol.EXIT_FILE).exists()
        return recorded or self.process.poll() is not None

    def end(self) -> None:
        """End whatever still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(WAIT_S)

    def _lines(self) -> list[str]:
        try:
            # The last line may be written at this moment.
            return self._log.read_text(errors="replace").split("\n")[:-1]
        except OSError:
            return []

    def _read(self, name: str, schema: str) -> dict[str, Any]:
        try:
            return documents.read_json(self._directory / name, schema)
        except (OSError, ValueError):
            return {}


def main(directory: str, *words: str) -> None:
    """Run the trial, and print what came of it.

    Parameters
    ----------
    directory : str
        An empty directory for it.
    *words : str
        ``gpu`` if it is to be one that uses a GPU; ``stays`` if it may stay in memory.
    """
    # It is looked for where there is an attempt to be ended, and not while one is being begun.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        argv = [str(gpu_count.__file__)] if "gpu" in words else ["-c", _COUNT]
        suspend_s, resume_s = _tried(Path(directory), argv, stays="stays" in words)
        said: dict[str, Any] = {"suspend_s": suspend_s, "resume_s": resume_s}
    except _FailedError as error:
        said = {"failed": str(error)}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
