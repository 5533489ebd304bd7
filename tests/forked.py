"""Attempts of a training whose libraries are imported once: each rank is a fork of one server.

An attempt is otherwise what it is under a supervisor: processes of its own, with the signal blocked
and ignored and the attempt in the environment, that end by ``os._exit``. Importing the libraries
would take most of the time of these tests.

Run as ``python forked.py MODULE`` it is that server: it reads what to start as a line of JSON, and
answers with the exit codes of the ranks.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from ports import free_port
from written import whole_lines

from hpcext.protocol import EXIT_SUSPENDED

HERE = Path(__file__).parent
WAIT_S = 120


class Ended:
    """An attempt that ended."""

    def __init__(self, directory: Path, codes: list[int]) -> None:
        self.directory = directory
        self.codes = codes

    @property
    def output(self) -> str:
        return "".join(path.read_text() for path in sorted(self.directory.glob("output-*")))

    @property
    def suspended(self) -> dict[str, Any] | None:
        path = self.directory / "suspended.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def report(self) -> dict[str, Any]:
        document = json.loads((self.directory / "report.json").read_text())
        assert isinstance(document, dict)
        return document


class Training:
    """One checkpoint directory, as many attempts as are wanted.

    Parameters
    ----------
    path : pathlib.Path
    script : pathlib.Path
        Has a function ``train(*words)``.

    Attributes
    ----------
    cwd : pathlib.Path or None
        Where attempts are run; None: each in its own directory.
    """

    def __init__(self, path: Path, script: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.script = script
        self.attempts = 0
        self.cwd: Path | None = None

    @property
    def checkpoints(self) -> list[Path]:
        """Committed checkpoints, oldest first."""
        return sorted((self.path / "checkpoint").glob("step-*"), key=lambda p: p.stat().st_mtime_ns)

    def log(self, *kinds: str) -> list[list[str]]:
        """What the training itself wrote down: words of each line, attempt and rank first."""
        lines = [line.split() for line in whole_lines(self.path / "log")]
        return [line for line in lines if not kinds or line[2] in kinds]

    def run(self, *words: str, ranks: int = 1, managed: bool = True, **environ: str) -> Ended:
        """Run an attempt to its end; `managed`: as under a supervisor."""
        from hpcext.protocol import Attempt

        self.attempts += 1
        directory = self.path / f"attempt-{self.attempts:04d}"
        directory.mkdir()
        told = Attempt(
            job_id="job",
            attempt=self.attempts,
            op=self.attempts + 10,
            checkpoint_dir=self.path / "checkpoint",
            report_dir=directory,
            num_gpus=ranks,
        )
        common = {**(told.environ() if managed else {}), "SCRIPT_LOG": str(self.path / "log")}
        port = free_port()
        environs = []
        for rank in range(ranks):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            environs.append({**common, **(place if ranks > 1 else {}), **environ})
        order = {
            "words": words,
            "environs": environs,
            "directory": str(directory),
            "managed": managed,
            "cwd": str(self.cwd or directory),
        }
        server = _server(self.script)
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the server has ended"
        return Ended(directory, json.loads(answer))


def finished(run: Ended) -> None:
    """The training must be over."""
    assert set(run.codes) == {0}, run.output
    assert run.suspended is None, run.output


def suspended(run: Ended) -> int:
    """It must be suspended; the step."""
    # One rank alone has no launcher that would end the others for it.
    assert set(run.codes) == {0 if len(run.codes) > 1 else EXIT_SUSPENDED}, run.output
    assert run.suspended, run.output
    assert Path(run.suspended["manifest"]).exists()
    return int(run.suspended["step"])


def samples(job: Training) -> dict[str, list[str]]:
    """What each step trained, over all ranks."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in job.log("train"):
        found[line[3]] += line[4:]
    return {step: sorted(numbers) for step, numbers in found.items()}


def difference(one: Training, other: Training) -> float:
    """The largest between the weights of two trainings."""
    files = [next(job.path.glob("attempt-*/weights.pt")) for job in (one, other)]
    a, b = (torch.load(path, weights_only=True) for path in files)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@functools.cache
def _server(script: Path) -> subprocess.Popen[str]:
    """The server of a training script; started once."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    atexit.register(_stop, process)
    return process


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def _serve(script: Path) -> None:
    sys.path[:0] = [str(script.parent), str(HERE / "training")]
    module = importlib.import_module(script.stem)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        order = json.loads(line)
        pids = []
        for rank, environ in enumerate(order["environs"]):
            pid = os.fork()
            if pid == 0:
                _rank(module, order, environ, Path(order["directory"]) / f"output-{rank}")
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


def _rank(module: Any, order: dict[str, Any], environ: dict[str, str], output: Path) -> None:
    """One rank: in a fork of the server."""
    code = 1
    try:
        # A rank that hangs must not hang the tests.
        signal.alarm(WAIT_S)
        if order["managed"]:
            from harness import as_supervised

            as_supervised()
        with open(os.devnull) as nothing, output.open("w") as file:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(environ)
        os.chdir(order["cwd"])
        module.train(*order["words"])
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # As the session does; what an ordinary exit takes is not what is tested here.
    os._exit(code)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
