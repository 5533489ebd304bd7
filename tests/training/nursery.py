"""Runs training scripts in processes forked from one that has imported PyTorch already.

Importing PyTorch and what shards models takes several seconds for each rank of each attempt; here
it is done once for all tests of a module. Otherwise an attempt is as :mod:`harness` has it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import HERE, Job, Run, as_supervised


class Nursery:
    """The process that all ranks are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, ranks: int, argv: list[str], environ: dict[str, str], output: Path) -> list[int]:
        """Run a script on so many ranks; their exit codes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"ranks": ranks, "argv": argv, "environ": environ, "output": str(output)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        self._process.communicate(timeout=30)


class Forked(Job):
    """A job whose ranks are forked; each attempt takes no `held` and no signals from outside."""

    def __init__(self, nursery: Nursery, path: Path, script: str, *args: str, ranks: int = 1):
        super().__init__(path, script, *args, ranks=ranks)
        self._nursery = nursery

    def run(self, *args: str, attempt: int | None = None) -> Run:
        self.attempts = self.attempts + 1 if attempt is None else attempt
        directory = self.path / f"attempt-{self.attempts:04d}"
        directory.mkdir()
        environ = {**self.environ, **self.told(directory).environ()}
        output = directory / "output"
        argv = [str(self.script), *self.args, *args]
        codes = self._nursery.run(self.ranks, argv, environ, output)
        return Run(directory, codes[0] or max(codes), output.read_text())


def free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        port: int = asking.getsockname()[1]
        return port


def fork(asked: dict[str, Any], rank: int, port: int) -> int:
    """Fork a rank; in it, this does not return."""
    child = os.fork()
    if child:
        return child
    out = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    as_supervised()
    os.environ.update(asked["environ"])
    if asked["ranks"] > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(asked["ranks"]))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = asked["argv"]
    sys.path.insert(0, str(HERE))
    runpy.run_path(sys.argv[0], run_name="__main__")
    raise SystemExit


def main() -> None:
    # The first is what an optimizer imports at its first step.
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        port = free_port()
        running = {fork(asked, rank, port) for rank in range(asked["ranks"])}
        codes = []
        while running:
            pid, status = os.wait()
            running.discard(pid)
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1]:
                # As a launcher does: the others would wait for it.
                for other in running:
                    os.kill(other, signal.SIGTERM)
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
