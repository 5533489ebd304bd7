"""A training on leases of a real Slurm takes and leaves nodes while it goes on."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster
from test_harvest import ended, harvest, jobs_of, leases, main_job, nothing_left, wait_until_begun

TRAIN = REPOSITORY / "tests" / "rescaling" / "train.py"
LENGTH, EPOCHS = 300, 60

PATIENT = ("--idle", "60")
"""A busy machine imports PyTorch for longer than other tests have a lease wait for its use."""


class Wide:
    """A training on one node or two that lasts until it is told to hurry."""

    def __init__(self, place: Site, slurm: Cluster) -> None:
        self.place = place
        self._slurm = slurm
        self.run = place.path / "run"
        slurm.as_user("mkdir", str(self.run))
        train = [str(TRAIN), str(self.run), "--global-batch=12", f"--epochs={EPOCHS}"]
        place.write_jobs(
            {
                "name": "wide",
                "command": [
                    place.python, "-m", "hpcext", "launch", place.python, *train, "--pause=0.1",
                ],
                "nodes": {"min": 1, "max": 2},
                "gpus": 1,
                "scaling": {1: 1.0, 2: 1.9},
                "retries": 0,
                "env": {"OMP_NUM_THREADS": "1"},
            }
        )  # fmt: skip

    def account(self) -> list[dict[str, Any]]:
        """What its ranks say that they did."""
        lines = [
            json.loads(line)
            for file in self.run.glob("account-*")
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return sorted(lines, key=lambda line: (line["step"], line["at"]))

    def size(self) -> int:
        """How many ranks made the last step."""
        account = self.account()
        return max(account, key=lambda line: line["at"])["size"] if account else 0

    def gpus(self) -> list[str]:
        return list(jobs_of(self.place)["wide"]["segments"][-1]["gpus"])

    def nodes(self) -> list[str]:
        return [gpu.partition(":")[0] for gpu in self.gpus()]

    def wait_for_size(self, size: int) -> None:
        # Each rank imports PyTorch first.
        self._slurm.wait_for(lambda: self.size() == size, f"steps of {size} ranks", 180)

    def hurry(self) -> None:
        (self.run / "hurry").touch()

    def check(self, keep: Callable[[dict[str, Any]], bool] = lambda line: True) -> None:
        """Every sample once in each epoch."""
        seen: dict[int, Counter[int]] = {}
        for line in filter(keep, self.account()):
            seen.setdefault(line["epoch"], Counter()).update(line["indices"])
        assert seen == {epoch: Counter(range(LENGTH)) for epoch in range(EPOCHS)}


@pytest.mark.slow
def test_a_node_is_left_and_another_taken_without_stopping(slurm: Cluster, place: Site) -> None:
    wide = Wide(place, slurm)
    block = main_job(slurm, 2, "sleep", "600")
    process = harvest(place, "--gpus-per-node", "1", *PATIENT)
    wide.wait_for_size(2)
    first, second = wide.nodes()
    job = main_job(slurm, 1, "sleep", "8", on=second)
    wait_until_begun(slurm, job)
    wide.wait_for_size(1)
    assert set(leases(slurm)) == {first}
    wide.wait_for_size(2)
    wide.hurry()
    out = ended(process)
    done = jobs_of(place)["wide"]
    assert (done["state"], done["attempts"], done["suspends"]) == ("completed", 1, 0), out
    assert len({line["pid"] for line in wide.account() if line["rank"] == 0}) == 1
    wide.check()
    nothing_left(slurm, place)
    slurm.run("scancel", str(block))


@pytest.mark.slow
def test_when_the_first_node_goes_it_is_suspended(slurm: Cluster, place: Site) -> None:
    wide = Wide(place, slurm)
    block = main_job(slurm, 2, "sleep", "600")
    process = harvest(place, "--gpus-per-node", "1", *PATIENT)
    wide.wait_for_size(2)
    first, _ = wide.nodes()
    job = main_job(slurm, 1, "sleep", "60", on=first)
    wait_until_begun(slurm, job)
    wide.wait_for_size(1)
    wide.hurry()
    out = ended(process)
    done = jobs_of(place)["wide"]
    assert (done["state"], done["attempts"], done["suspends"]) == ("completed", 2, 1), out
    assert done["lost_steps"] == 0
    wide.check()
    nothing_left(slurm, place)
    slurm.run("scancel", str(block), str(job))


def all_on(place: Site, node: str) -> Iterator[psutil.Process]:
    """The agent of a lease, and all that runs below it."""
    for file in place.pilot.glob("leases/*/agent.json"):
        said = json.loads(file.read_text())
        if said["node"] == node:
            agent = psutil.Process(said["pid"])
            yield from [*agent.children(recursive=True), agent]


def kill_all_on(place: Site, node: str) -> None:
    for process in all_on(place, node):
        process.kill()


def down(slurm: Cluster, node: str) -> None:
    """Have a node die with all on it."""
    slurm.kill_node(node)
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")


def up(slurm: Cluster, node: str) -> None:
    """Have it come back."""
    slurm.start_node(node)
    slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
    slurm.wait_for(
        lambda: "idle" in slurm.run("sinfo", "-h", "-n", node, "-o", "%T").stdout, "the node"
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["node", "lease", "silent", "rank"])
def test_a_node_that_dies_costs_one_step(slurm: Cluster, place: Site, how: str) -> None:
    """The other goes on in the same process; a lease is taken again, and the training grows."""
    wide = Wide(place, slurm)
    process = harvest(place, "--gpus-per-node", "1", *PATIENT, "--max-nodes", "2")
    wide.wait_for_size(2)
    _, second = wide.nodes()
    lost = next(line["pid"] for line in wide.account() if line["rank"] == 1)
    if how == "silent":
        # Slurm does not know that the node is gone; nothing there runs any more.
        slurm.stop_node(second)
        for each in all_on(place, second):
            each.suspend()
        psutil.Process(lost).kill()
    elif how == "rank":
        psutil.Process(lost).kill()
    else:
        kill_all_on(place, second)
    if how == "node":
        down(slurm, second)
    try:
        wide.wait_for_size(1)
        wide.wait_for_size(2)
        wide.hurry()
        out = ended(process)
    finally:
        if how == "node":
            up(slurm, second)
        if how == "silent":
            slurm.continue_node(second)
    done = jobs_of(place)["wide"]
    assert (done["state"], done["attempts"], done["suspends"]) == ("completed", 1, 0), out
    assert done["lost_steps"] == 0
    assert len({line["pid"] for line in wide.account() if line["rank"] == 0}) == 1
    assert any("rank 1 of 2 was lost" in note for note in done["notes"]), done["notes"]
    made = {line["step"]: line["size"] for line in sorted(wide.account(), key=lambda it: it["at"])}
    wide.check(lambda line: line["size"] == made[line["step"]])
    last = max(line["at"] for line in wide.account() if line["pid"] == lost)
    alone = [line["at"] - last for line in wide.account() if line["size"] == 1]
    print(f"without a step for {min(each for each in alone if each > 0):.2f} s")
    nothing_left(slurm, place)


@pytest.mark.slow
def test_the_first_node_that_dies_costs_the_steps_since_the_last_checkpoint(
    slurm: Cluster, place: Site
) -> None:
    """It is no failure of the training, which has no retries."""
    wide = Wide(place, slurm)
    process = harvest(place, "--gpus-per-node", "1", *PATIENT, "--max-nodes", "2")
    wide.wait_for_size(2)
    first, second = wide.nodes()
    kill_all_on(place, first)
    down(slurm, first)
    try:
        begin = place.pilot / "jobs" / "1" / "attempt-0002" / "launch.json"
        slurm.wait_for(begin.exists, "another attempt")
        wide.hurry()
        out = ended(process)
    finally:
        up(slurm, first)
    done = jobs_of(place)["wide"]
    assert done["state"] == "completed", out
    again = min(line["step"] for line in wide.account() if line["at"] > _began(place, 2))
    # Checkpoints are written every 10 steps.
    assert done["lost_steps"] <= 10
    assert again % 10 == 0
    wide.check(lambda line: (line["at"] > _began(place, 2)) == (line["step"] >= again))
    slurm.wait_for(lambda: second not in leases(slurm), "the end of the lease that is left")
    nothing_left(slurm, place)


def _began(place: Site, attempt: int) -> float:
    """When an attempt was handed over."""
    path: Path = place.pilot / "jobs" / "1" / f"attempt-{attempt:04d}" / "launch.json"
    return path.stat().st_mtime


@pytest.mark.slow
def test_the_manager_is_killed_and_another_one_changes_the_nodes(
    slurm: Cluster, place: Site
) -> None:
    """Which nodes a training has is known from its files alone."""
    wide = Wide(place, slurm)
    block = main_job(slurm, 2, "sleep", "600")
    process = harvest(place, "--gpus-per-node", "1", *PATIENT)
    wide.wait_for_size(2)
    first, second = wide.nodes()
    process.kill()
    process.wait()
    again = place.start("run", "--resume", str(place.pilot))
    wait_for(lambda: jobs_of(place)["wide"]["state"] == "running", "the manager")
    time.sleep(2)
    job = main_job(slurm, 1, "sleep", "60", on=second)
    wide.wait_for_size(1)
    wait_until_begun(slurm, job)
    wide.hurry()
    out = ended(again)
    done = jobs_of(place)["wide"]
    assert (done["state"], done["attempts"], done["suspends"]) == ("completed", 1, 0), out
    assert {line.partition(":")[0] for line in wide.gpus()} == {first}
    wide.check()
    nothing_left(slurm, place)
    slurm.run("scancel", str(block), str(job))
