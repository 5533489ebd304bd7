"""Trainings that hang in steps of a pilot and on leases of a harvester, on a real Slurm."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_harvest import ended, harvest, jobs_of, nothing_left
from test_pilot import over, submit

TRAIN = Path(__file__).parents[1] / "run" / "train_hanging.py"


def hanging(slurm: Cluster, place: Site, **more: Any) -> None:
    """One training that takes a lock twice in its first attempt."""
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    shutil.copy(TRAIN, run)
    command = [str(slurm.python), TRAIN.name, "lock"]
    job = {"name": "lock", "command": command, "workdir": str(run), "hang_after_s": 5, **more}
    place.write_jobs(job)


def told_with_stacks(place: Site) -> None:
    wait_for((place.path / "run" / "pid").exists, "its first step")
    wait_for(lambda: jobs_of(place)["lock"].get("hung"), "the hang to be noticed")
    pilot = str(place.pilot)
    assert "seems to hang: no step for " in place.run("why", pilot, "lock").out
    wait_for(lambda: "in take_twice" in place.run("logs", pilot, "lock").out, "the stacks")


def check_restarted(job: dict[str, Any]) -> None:
    """Its second attempt went on from the checkpoint at step 100 of 200."""
    assert (job["state"], job["hangs"], job["attempts"]) == ("completed", 1, 2)
    assert job["segments"][-1]["steps"] == 100
    assert job["loss"]["why"].startswith("it hung: no step for ")


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["report", "restart"])
def test_one_in_a_step_of_a_pilot(slurm: Cluster, place: Site, hang: str) -> None:
    hanging(slurm, place, gpus=1, hang=hang)
    job = submit(place, nodes=1)
    if hang == "report":
        told_with_stacks(place)
        assert jobs_of(place)["lock"]["state"] == "running"
        # What waits for a lock for ever cannot save itself.
        assert place.run("cancel", str(place.pilot), "lock").code == 0
        slurm.wait_for(lambda: slurm.job(job)["JobState"] != "RUNNING", "the end of the pilot")
    else:
        check_restarted(over(slurm, place, job)["lock"])


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["report", "restart"])
def test_one_on_a_lease(slurm: Cluster, place: Site, hang: str) -> None:
    hanging(slurm, place, nodes={"min": 1, "max": 1}, gpus=6, hang=hang)
    process = harvest(place)
    if hang == "report":
        told_with_stacks(place)
        assert jobs_of(place)["lock"]["state"] == "running"
        assert place.run("cancel", str(place.pilot), "lock").code == 0
        process.communicate(timeout=500)
    else:
        ended(process)
        check_restarted(jobs_of(place)["lock"])
    nothing_left(slurm, place)
