"""SIGKILL of a rank, of torchrun, of the supervisor of a real PyTorch job under a live manager."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from site_of_test import Site, wait_for

PAIR = str(Path(__file__).parent / "pair.py")


@pytest.mark.parametrize("victim", ["rank", "torchrun", "supervisor"])
def test_training_goes_on_from_its_last_checkpoint(site: Site, victim: str) -> None:
    account = site.path / "account"

    def lines() -> list[list[str]]:
        return [line.split() for line in account.read_text().splitlines()]

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "{gpus}", PAIR, str(account)]
    site.write_jobs({"name": "pair", "command": command, "gpus": 2})
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot))
    wait_for(lambda: account.exists() and len(lines()) >= 50, "25 steps of both")
    rank, parent = (int(word) for word in lines()[-1][2:4])
    pid = {"rank": rank, "torchrun": parent, "supervisor": psutil.Process(parent).ppid()}[victim]
    os.kill(pid, signal.SIGKILL)
    out, err = manager.communicate(timeout=120)
    assert manager.returncode == 0, (out, err, site.run("logs", str(site.pilot), "pair").out)

    (job,) = site.document("status", str(site.pilot))["jobs"]
    assert (job["state"], job["attempts"]) == ("completed", 2)
    for number in ("0", "1"):
        mine = [line for line in lines() if line[0] == number]
        first = [int(line[1]) for line in mine if line[2] == mine[0][2]]
        second = [int(line[1]) for line in mine if line[2] == mine[-1][2]]
        # A step that is in the account may not be in the checkpoint of the same step yet.
        saved = (first[-1] - 1) // 10 * 10
        assert saved < second[0] <= first[-1] + 1
        assert (second[-1], len(first) + len(second)) == (60, len(mine))
        # What was run again came out the same.
        weights: dict[str, set[str]] = {}
        for line in lines():
            weights.setdefault(line[1], set()).add(line[4])
        assert all(len(values) == 1 for values in weights.values())
    assert not site.left_behind()
