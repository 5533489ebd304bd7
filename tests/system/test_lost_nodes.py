"""Allocations that lose a node: what is left of them is used, and then given back."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot import again, begun, over, submit
from test_pilot_ends import requeued

SIX = {"min": 1, "max": 6, "optimal": 6}


def wide(place: Site) -> dict[str, Any]:
    """A counter on two nodes; on the second one it is only there."""
    counter = place.counter("wide", gated=True, gpus=6)
    there = f"until [ -e {place.path}/wide.gate ]; do sleep 1; done"
    both = f"if [ $SLURM_NODEID = 0 ]; then {' '.join(counter['command'])}; else {there}; fi"
    return {**counter, "command": both, "shell": True, "nodes": 2}


def by_name(place: Site) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in place.document("status", str(place.pilot))["jobs"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("set-down", marks=pytest.mark.slow), "daemon-killed"])
def test_what_is_left_is_used_and_then_given_back(slurm: Cluster, place: Site, how: str) -> None:
    """A node that came back is not the job's, and who needs two does not keep others waiting."""
    place.write_jobs(wide(place), place.counter("narrow", gated=True, gpus=SIX))
    job = submit(place, "--nodelist=n1,n2", words=("--requeue",))
    begun(place, "wide")
    wait_for(lambda: any(each["gpus"] for each in by_name(place)["wide"]["segments"]), "GPUs")
    assert "n1:0-5 n2:0-5" in place.run("status", str(place.pilot)).out
    killed = how == "daemon-killed"
    if killed:
        slurm.kill_daemon("n2")
    slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    try:
        wait_for(lambda: by_name(place)["wide"]["state"] != "running", "the loss")
        orphan = "attempt 1 may still run on n2, which the allocation has lost"
        if killed:
            for verb in ("why", "status"):
                assert orphan in place.run(verb, str(place.pilot), "wide").out
    finally:
        if killed:
            slurm.start_node("n2")
        else:
            slurm.run("scontrol", "update", "nodename=n2", "state=resume")
        slurm.wait_for(lambda: "n2|idle" in slurm.run("sinfo", "-hNo", "%N|%T").stdout, "n2")
    begun(place, "narrow")
    assert {step.gpus for step in place.steps("narrow")} == {place.steps("narrow")[0].gpus}
    jobs = by_name(place)
    assert jobs["wide"]["why"] == "needs 2 nodes, and 1 is left of its allocation"
    assert [gpu.partition(":")[0] for gpu in jobs["narrow"]["segments"][-1]["gpus"]] == ["n1"] * 6
    place.open("narrow")
    requeued(slurm, job)
    again(place, "1", 2)
    place.open("wide")
    jobs = over(slurm, place, job)
    assert {(each["state"], each["exit_code"]) for each in jobs.values()} == {("completed", 0)}
    assert (jobs["wide"]["attempts"], jobs["narrow"]["attempts"]) == (2, 1)
    assert slurm.job(job)["Restarts"] == "1"
    wait_for(lambda: not by_name(place)["wide"]["orphans"], "the end of what was left")


def test_without_requeue_it_ends_when_nothing_can_run_any_more(slurm: Cluster, place: Site) -> None:
    """It is not billed for a node that serves nothing, and goes on when it is submitted again."""
    place.write_jobs(wide(place))
    job = submit(place, "--nodelist=n1,n2")
    begun(place, "wide")
    slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    try:
        slurm.wait_for(lambda: slurm.job(job)["JobState"] == "FAILED", "the end of the pilot")
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")
        slurm.wait_for(lambda: "n2|idle" in slurm.run("sinfo", "-hNo", "%N|%T").stdout, "n2")
    assert slurm.job(job)["ExitCode"] == "4:0"
    log = (place.pilot / f"slurm-{job}.out").read_text()
    assert "none of the waiting jobs can run on what is left of the allocation" in log
    assert by_name(place)["wide"]["state"] == "pending"
    place.open("wide")
    ended = place.run("pilot", "resubmit", str(place.pilot))
    assert ended.code == 0, ended
    wait_for(lambda: by_name(place)["wide"]["state"] == "completed", "the end of wide")


@pytest.mark.slow
def test_a_step_that_does_not_begin_gives_its_gpus_back(slurm: Cluster, place: Site) -> None:
    """Somebody else's step has them; that is no failure of the job, which runs in the end."""
    place.write_jobs(place.counter("first", gated=True, gpus=1))
    job = submit(place, "--nodelist=n1", nodes=1)
    begun(place, "first")
    words = ("--exact", "--nodes=1", "--ntasks=1", "--cpus-per-task=5", "--gres=gpu:5", "--mem=0")
    other = subprocess.Popen(
        ["srun", f"--jobid={job}", *words, "sleep", "600"],
        env=slurm.user_environ(), user=slurm.user, group=slurm.user, extra_groups=[],
    )  # fmt: skip
    try:
        wait_for(lambda: "sleep" in slurm.run("squeue", "-s", "-h", "-o%j").stdout, "its step")
        more = place.path / "more.toml"
        place.jobs = more
        place.write_jobs(place.counter("second", gpus=5))
        assert place.run("submit", str(place.pilot), str(more)).code == 0
        wait_for(lambda: by_name(place)["second"]["state"] == "running", "its srun")
        why = "its step did not start within 120 s"
        slurm.wait_for(
            lambda: why in (place.pilot / f"slurm-{job}.out").read_text(), "the deadline", 240
        )
        wait_for(lambda: by_name(place)["second"]["attempts"] == 2, "another attempt")
    finally:
        other.terminate()
        other.wait()
    place.open("first")
    jobs = over(slurm, place, job)
    assert {each["state"] for each in jobs.values()} == {"completed"}
