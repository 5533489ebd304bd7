"""A training that a test resizes itself, in the place of a manager."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from nursery import Fork, Nursery
from site_of_test import wait_for
from written import whole_lines

from hpcext import documents, protocol
from hpcext.launch import ranks
from hpcext.process import Process
from hpcext.rendezvous import REPAIRS

TRAIN = Path(__file__).parent / "train.py"


class Training:
    """One attempt of ``train.py``, or of another command, under the launcher.

    Parameters
    ----------
    path : pathlib.Path
    *argv : str
        Arguments of ``train.py``.
    size : int
        Ranks to begin with.
    attempt : int
    nursery : Nursery, optional
        Whose forks its processes are; else they are programs of their own.
    replace : int
        How many ranks that die are replaced.
    """

    def __init__(
        self,
        path: Path,
        *argv: str,
        size: int,
        attempt: int = 1,
        nursery: Nursery | None = None,
        replace: int = 0,
    ) -> None:
        self.path = path
        self.reports = path / f"attempt-{attempt}"
        self.reports.mkdir()
        self.attempt = protocol.Attempt(
            job_id="1",
            attempt=attempt,
            op=attempt,
            checkpoint_dir=path / "checkpoints",
            report_dir=self.reports,
            num_gpus=size,
            notify=Process.me(),
        )
        self.asked = 0
        self.size = size
        self.gpus = [f"node:{index}" for index in range(size)]
        command = [str(TRAIN), str(path), *argv]
        # Workers of loaders put sockets there, whose paths have at most 107 bytes; a directory of
        # pytest is nearly as long.
        self._temporary = tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True)
        environ = {
            **self.attempt.environ(),
            "TMPDIR": self._temporary.name,
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[str] | Fork
        if nursery is not None:
            output = self.reports / "output"
            self.process = nursery.start(
                command, environ, output, ranks=0, launcher=True, replace=replace
            )
            return
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", ranks.__file__, f"0+{replace}", sys.executable, *command],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self) -> int:
        """Wait for the end; the exit code."""
        self.output, _ = self.process.communicate(timeout=500)
        assert self.process.returncode is not None
        return self.process.returncode

    def ask(self, size: int, *, without: int | None = None) -> None:
        """Ask for another number of ranks, without one of those that there are."""
        self.asked += 1
        stay = [gpu for rank, gpu in enumerate(self.gpus) if rank != without]
        free = [name for index in range(9) if (name := f"node:{index}") not in self.gpus]
        document = {
            "schema": protocol.RESCALE,
            "attempt": self.attempt.attempt,
            "op": self.attempt.op,
            "resize": self.asked,
            "gpus": [*stay, *free][:size],
            "had": self.gpus,
            "devices": "",
        }
        documents.write_json(self.reports / protocol.RESCALE_FILE, document)
        self.process.send_signal(protocol.NEWS_SIGNAL)

    def proposed(self) -> bool:
        """Whether new ranks are ready, and rank 0 has been told or has acted on it already."""
        found = list(self.meeting_places())
        group = json.loads(found[0].read_text()) if found else {}
        account = self.account()
        firsts = [line["pid"] for line in account if line["rank"] == 0]
        if group.get("number") != self.asked * REPAIRS or not firsts:
            return False
        if is_pending(firsts[-1], protocol.NEWS_SIGNAL) or account[-1]["size"] == group["size"]:
            return True
        # The change was made between the last step and the gate: nobody has taken a step since.
        done = self.read(protocol.RESCALED_FILE)
        return (done.get("resize"), done.get("ok")) == (self.asked, True)

    def meeting_places(self) -> Iterator[Path]:
        """The group that was proposed last, if any was."""
        return Path(self._temporary.name).glob("*/group.json")

    def read(self, name: str) -> dict[str, Any]:
        """A file of the attempt, empty if it is not there."""
        with contextlib.suppress(FileNotFoundError):
            document: dict[str, Any] = json.loads((self.reports / name).read_text())
            return document
        return {}

    def answer(self) -> dict[str, Any]:
        """What the launcher answers to the last question."""

        def answered() -> dict[str, Any]:
            assert self.process.poll() is None or self.read(protocol.RESCALED_FILE), self.wait()
            document = self.read(protocol.RESCALED_FILE)
            return document if document.get("resize") == self.asked else {}

        document: dict[str, Any] = wait_for(answered, f"the answer to change {self.asked}")
        if document["ok"]:
            self.gpus = document["gpus"]
            self.size = len(self.gpus)
        return document

    def open_gate(self, step: int) -> None:
        """Let the ranks go on that wait at a step."""
        (self.path / f"gate-{step}").touch()

    def account(self) -> list[dict[str, Any]]:
        """What the ranks say that they did, by step."""
        lines = [
            json.loads(line) for file in self.path.glob("account-*") for line in whole_lines(file)
        ]
        return sorted(lines, key=lambda line: (line["step"], line["rank"]))

    def result(self) -> dict[str, Any]:
        """Error and weights at the end."""
        result: dict[str, Any] = torch.load(self.path / "result.pt")
        return result


def is_pending(pid: int, signum: int) -> bool:
    """Whether a signal is pending in a process; proc(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.M)
    return any(int(mask, 16) >> (signum - 1) & 1 for mask in pending)


def samples(account: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Epoch → indices of the samples that all ranks saw in it, sorted."""
    seen: dict[int, list[int]] = defaultdict(list)
    for line in account:
        seen[line["epoch"]] += line["indices"]
    return {epoch: sorted(indices) for epoch, indices in seen.items()}


def sizes(account: list[dict[str, Any]]) -> list[int]:
    """The numbers of ranks, in the order in which they changed."""
    found: list[int] = []
    for line in account:
        if not found or found[-1] != line["size"]:
            found.append(line["size"])
    return found
