"""Runs a training script as a supervisor would, and looks at it from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from hpcext.protocol import Attempt, Process

HERE = Path(__file__).parent
WAIT_S = 120.0


def as_supervised() -> None:
    """What a supervisor does before it starts the command."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1,))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))


class Run:
    """An attempt that ended."""

    def __init__(self, directory: Path, code: int, output: str) -> None:
        self.directory = directory
        self.code = code
        self.output = output

    def document(self, name: str) -> dict[str, Any] | None:
        path = self.directory / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def suspended(self) -> dict[str, Any] | None:
        return self.document("suspended")

    @property
    def report(self) -> dict[str, Any]:
        report = self.document("report")
        assert report is not None, self.output
        return report


class Job:
    """A job of the tests: one checkpoint directory, as many attempts as are wanted."""

    def __init__(self, path: Path, script: str, *args: str, ranks: int = 1) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.script = HERE / script
        self.args = args
        self.ranks = ranks
        self.attempts = 0
        self.notify: Process | None = None
        self.prefix: tuple[str, ...] = ()
        self.environ = {"OMP_NUM_THREADS": "1", "SCRIPT_LOG": str(path / "log")}

    @property
    def checkpoints(self) -> list[Path]:
        """Committed checkpoints, oldest first."""
        return sorted((self.path / "checkpoint").glob("step-*"), key=lambda p: p.stat().st_mtime_ns)

    @property
    def log(self) -> list[list[str]]:
        """What the script itself wrote down: words of each line."""
        return [line.split() for line in (self.path / "log").read_text().splitlines()]

    def start(self, *args: str, attempt: int | None = None) -> subprocess.Popen[str]:
        self.attempts = self.attempts + 1 if attempt is None else attempt
        directory = self.path / f"attempt-{self.attempts:04d}"
        directory.mkdir()
        told = Attempt(
            job_id="job",
            attempt=self.attempts,
            op=self.attempts + 10,
            checkpoint_dir=self.path / "checkpoint",
            report_dir=directory,
            num_gpus=self.ranks,
            notify=self.notify,
        )
        command = [sys.executable]
        if self.ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(self.ranks)]
        return subprocess.Popen(
            [*self.prefix, *command, str(self.script), *self.args, *args],
            env={**os.environ, **self.environ, **told.environ()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=as_supervised,  # noqa: PLW1509
        )

    def finish(self, process: subprocess.Popen[str]) -> Run:
        output, _ = process.communicate(timeout=WAIT_S)
        return Run(self.path / f"attempt-{self.attempts:04d}", process.returncode, output)

    def run(self, *args: str, attempt: int | None = None) -> Run:
        return self.finish(self.start(*args, attempt=attempt))

    @contextmanager
    def steps(self) -> Iterator[Callable[[int], None]]:
        """Gives a function that waits until the script has come into a step."""
        fifo = self.path / "fifo"
        os.mkfifo(fifo)
        self.environ["SCRIPT_FIFO"] = str(fifo)
        # For reading and writing: opening does not wait, and there is no end of file.
        with open(os.open(fifo, os.O_RDWR)) as lines:

            def wait(step: int) -> None:
                for line in lines:
                    if int(line) >= step:
                        return

            yield wait
        fifo.unlink()
        del self.environ["SCRIPT_FIFO"]


def suspend_tree(process: subprocess.Popen[str]) -> None:
    """Send the suspend signal to a process and all below it."""
    root = psutil.Process(process.pid)
    for member in (*root.children(recursive=True), root):
        with_signal = member.pid
        try:
            os.kill(with_signal, signal.SIGTSTP)
        except ProcessLookupError:
            continue
