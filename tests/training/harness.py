"""Runs a training script as a supervisor would, and looks at it from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from nursery import Fork
from written import whole_lines

from hpcext.process import Process
from hpcext.protocol import Attempt

HERE = Path(__file__).parent
WAIT_S = 240.0

Started = subprocess.Popen[str] | Fork
Act = Callable[[Started], object]


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
        return [line.split() for line in whole_lines(self.path / "log")]

    def start(self, *args: str, attempt: int | None = None, **environ: str) -> Started:
        told = self.begin(attempt)
        command = [sys.executable]
        if self.ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(self.ranks)]
        return subprocess.Popen(
            [*self.prefix, *command, str(self.script), *self.args, *args],
            env={**os.environ, **self.environ, **told.environ(), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=as_supervised,  # noqa: PLW1509
        )

    def begin(self, attempt: int | None = None) -> Attempt:
        """Make the directory of the next attempt; what it is told by its environment."""
        self.attempts = self.attempts + 1 if attempt is None else attempt
        directory = self.path / f"attempt-{self.attempts:04d}"
        directory.mkdir()
        return Attempt(
            job_id="job",
            attempt=self.attempts,
            op=self.attempts + 10,
            checkpoint_dir=self.path / "checkpoint",
            report_dir=directory,
            num_gpus=self.ranks,
            notify=self.notify,
        )

    def finish(self, process: Started) -> Run:
        output, _ = process.communicate(timeout=WAIT_S)
        return Run(self.path / f"attempt-{self.attempts:04d}", process.returncode, output)

    def run(self, *args: str, attempt: int | None = None) -> Run:
        return self.finish(self.start(*args, attempt=attempt))

    def run_held(self, step: int, act: Act, *args: str) -> Run:
        """Run; while rank 0 is held in the middle of a step, do something to the process."""
        here, go = self.path / "here", self.path / "go"
        for fifo in (here, go):
            fifo.unlink(missing_ok=True)
            os.mkfifo(fifo)
        # For reading and writing: opening does not wait for the other side.
        with open(here, "r+b", buffering=0) as reached, open(go, "r+b", buffering=0) as release:
            process = self.start(*args, SCRIPT_HOLD=f"{step} {here} {go}")
            gone = os.pidfd_open(process.pid)
            ready, _, _ = select.select([reached, gone], [], [], WAIT_S)
            os.close(gone)
            if reached not in ready:
                process.kill()
                raise AssertionError(f"never came to step {step}: {self.finish(process).output}")
            act(process)
            release.write(b"go")
            return self.finish(process)


def suspend_tree(process: Started) -> None:
    """Send the suspend signal to a process and all below it."""
    root = psutil.Process(process.pid)
    for member in (*root.children(recursive=True), root):
        try:
            os.kill(member.pid, signal.SIGTSTP)
        except ProcessLookupError:
            continue
