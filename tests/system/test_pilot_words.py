"""What is said and done of a pilot on a real Slurm that is held, waits, or cannot be asked for."""

from __future__ import annotations

import json

import pytest
from site_of_test import Site
from slurm_cluster import Cluster
from test_pilot import begun, over, submit


def refused(place: Site) -> str:
    """Why it is not submitted again; in one line, and the pilot names the same job."""
    before = (place.pilot / "slurm.json").read_bytes()
    said = place.run("pilot", "resubmit", str(place.pilot))
    assert said.code == 3, said
    *waits, why = said.err.splitlines()
    assert all("has not answered for" in line for line in waits), said
    assert (place.pilot / "slurm.json").read_bytes() == before
    return why


def test_a_pilot_that_is_held_says_what_lets_it_begin(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6, "optimal": 6}))
    job = submit(place, "--hold", nodes=1)
    slurm.wait_for(lambda: slurm.job(job)["Reason"] == "JobHeldUser", "the hold")
    assert "held (JobHeldUser)" in place.run("pilot", "list").out
    assert f"scontrol release {job}" in place.run("why", str(place.pilot)).out
    assert f"scontrol release {job}" in refused(place)


@pytest.mark.slow
def test_a_controller_that_does_not_answer_has_not_said_that_it_is_over(
    slurm: Cluster, place: Site
) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6, "optimal": 6}))
    job = submit(place, nodes=1)
    begun(place, "only")
    facts = json.loads((place.pilot / "manager.json").read_text())
    (place.pilot / "manager.json").write_text(json.dumps({**facts, "boot_id": "another"}))
    assert "its job runs" in refused(place)
    # Slurm's commands, and no configuration that they could find one by.
    place.environ["SLURM_CONF"] = str(place.path / "none.conf")
    said = place.run("status", str(place.pilot)).out
    assert f"it is unknown whether its job {job} runs" in said
    assert "resubmit" not in said
    assert "it is unknown whether" in refused(place)
    assert place.run("pilot", "rm", str(place.pilot), "--yes").code == 3


def test_a_shortened_limit_is_not_a_preemption(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6, "optimal": 6}))
    job = submit(place, nodes=1, time="60")
    begun(place, "only")
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    slurm.wait_for(lambda: slurm.job(job)["TimeLimit"] == "00:30:00", "the shorter limit")
    # Its script passes that on, and the manager asks how long it has.
    slurm.run("scancel", "--signal=USR2", "--batch", str(job))
    assert place.run("suspend", str(place.pilot), "only").code == 0
    assert place.run("resume", str(place.pilot), "only").code == 0
    place.open("only")
    assert over(slurm, place, job)["only"]["state"] == "completed"
    assert slurm.job(job)["Restarts"] == "0"
    assert "wanted back" not in (place.pilot / f"slurm-{job}.out").read_text()
