"""A place where a test runs supervisors, and looks at them through ``/proc`` and plain files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from written import whole_lines

from hpcext.launch import supervise

PLAIN = str(Path(__file__).parent / "plain.py")
WAIT_S = 240.0
Found = TypeVar("Found")


class Stage:
    """One attempt's directory, and everything that runs because of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = path / "1" / "attempt-0001"
        self.directory.mkdir(parents=True)
        self.log = path / "1" / "log.txt"
        self.diary = path / "diary"
        self.mark = f"HPCEXT_TEST_MARK={path}"

    def write_launch(self, *argv: str, **changes: Any) -> None:
        """Write ``launch.json`` by hand, not by the code under test."""
        document = {
            "schema": "hpcext.launch/1",
            "job": "1",
            "attempt": 1,
            "op": 7,
            "argv": argv,
            "cwd": str(self.path),
            "environ": {
                "HPCEXT_PROTOCOL": "1",
                "HPCEXT_JOB_ID": "1",
                "HPCEXT_ATTEMPT": "1",
                "HPCEXT_OP": "7",
                "HPCEXT_CHECKPOINT_DIR": str(self.path / "1" / "checkpoint"),
                "HPCEXT_REPORT_DIR": str(self.directory),
                "HPCEXT_NUM_GPUS": "2",
                "DIARY": str(self.diary),
                # A torchrun that is killed leaves its temporary directory behind.
                "TMPDIR": str(self.path),
            },
            "log": str(self.log),
            "gpus": ["n:0", "n:1"],
            "kill_grace_s": 0.3,
            "suspend_timeout_s": 40.5,
            "manager": None,
            **changes,
        }
        (self.directory / "launch.json").write_text(json.dumps(document))

    def supervise(self, **options: Any) -> subprocess.Popen[bytes]:
        """Start a supervisor."""
        name, _, value = self.mark.partition("=")
        return subprocess.Popen(
            self.supervisor_argv(),
            env={**os.environ, name: value},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **options,
        )

    def supervisor_argv(self) -> list[str]:
        """The command of a supervisor."""
        return [sys.executable, "-I", "-S", supervise.__file__, str(self.directory)]

    def run(self, *argv: str, **changes: Any) -> subprocess.Popen[bytes]:
        """Supervise a command."""
        self.write_launch(*argv, **changes)
        return self.supervise()

    def plain(self, *args: str) -> tuple[str, ...]:
        """The command of a job that speaks the protocol by itself (``plain.py``)."""
        return (sys.executable, PLAIN, *args)

    def read(self, name: str) -> dict[str, Any]:
        """A file of the attempt."""
        document = json.loads((self.directory / name).read_bytes())
        assert isinstance(document, dict)
        return document

    def said(self, word: str) -> list[list[str]]:
        """What jobs wrote into the diary: the lines that begin with a word."""
        if not self.diary.exists():
            return []
        lines = [line.split() for line in whole_lines(self.diary)]
        return [line[1:] for line in lines if line[:1] == [word]]

    def wait_said(self, word: str, times: int = 1) -> list[list[str]]:
        """Wait for lines in the diary; who is ready has registered as well."""

        def found() -> list[list[str]]:
            lines = self.said(word)
            registered = word != "ready" or (self.directory / "report.json").exists()
            return lines if len(lines) >= times and registered else []

        return self.wait_for(found, f"{times} x {word!r} in the diary")

    def wait_for(self, condition: Callable[[], Found], what: str) -> Found:
        """Wait until a condition holds; what it gave."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.01)
        raise AssertionError(f"waited {WAIT_S:g} s in vain for {what}\n{self.states()}")

    def states(self) -> str:
        """What each of its processes does, for a failure that may not recur."""
        return "\n".join(doing(process) for process in self.processes())

    def processes(self) -> list[psutil.Process]:
        """Every process of this test that has not ended, by its environment or by its parent."""
        found = {
            process.pid: process
            for process in psutil.process_iter()
            if self.mark.encode() in _environ(process.pid)
        }
        for process in list(found.values()):
            for child in _children(process):
                found[child.pid] = child
        return [process for process in found.values() if _runs(process)]

    def stopped(self) -> bool:
        """Whether a process of this test is stopped at this moment."""
        return any(_status(process) == psutil.STATUS_STOPPED for process in self.processes())

    def named(self, name: str) -> list[psutil.Process]:
        """Its processes that have a name."""
        return [process for process in self.processes() if _said(process.name) == name]

    def command_lines(self) -> list[list[str]]:
        """The words of each of its processes."""
        return [_said(process.cmdline) or [] for process in self.processes()]

    def kill_all(self) -> None:
        """Clean up after a failure."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a supervisor's end; its exit code, which is not negative unless it was killed."""
    try:
        process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired as error:
        there = psutil.Process(process.pid)
        lines = [doing(each) for each in (there, *there.children(recursive=True))]
        raise AssertionError("\n".join([str(error), *lines])) from error
    return process.returncode


def doing(process: psutil.Process) -> str:
    """What a process does: its state, where it waits, its signals, its words."""
    own = Path(f"/proc/{process.pid}")
    try:
        marks = ("State", "PPid", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
        lines = (own / "status").read_text().splitlines()
        said = [" ".join(line.split()) for line in lines if line.split(":")[0] in marks]
        where = (own / "wchan").read_text()
        return f"{process.pid}: {', '.join(said)}; in {where}; {process.cmdline()}"
    except (OSError, psutil.Error) as error:
        return f"{process.pid}: {error}"


def runs(pid: int) -> bool:
    """Whether a pid is that of a process that has not ended."""
    try:
        return _runs(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _runs(process: psutil.Process) -> bool:
    return _status(process) not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}


def _status(process: psutil.Process) -> str:
    return _said(process.status) or str(psutil.STATUS_DEAD)


def _said(question: Callable[[], Found]) -> Found | None:
    """What a process says of itself; None if it has gone since it was found."""
    try:
        return question()
    except psutil.NoSuchProcess:
        return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    return _said(lambda: process.children(recursive=True)) or []


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
