"""A pilot as a job of a real Slurm, submitted and asked by an ordinary user."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from site_of_test import Site, wait_for
from slurm_cluster import Cluster


def submit(
    place: Site, *options: str, nodes: int = 2, time: str = "10", words: tuple[str, ...] = ()
) -> int:
    """Submit the place's jobs as a pilot; the id of the Slurm job."""
    words = ("--nodes", str(nodes), "--gpus-per-node", "6", "--time", time, *words)
    ended = place.run(
        "pilot", "submit", str(place.jobs), *words, "--dir", str(place.pilot), "--", *options
    )
    assert ended.code == 0, ended
    found = re.search(r"job (\d+) of Slurm", ended.out)
    assert found, ended
    return int(found[1])


def over(slurm: Cluster, place: Site, job: int) -> dict[str, dict[str, Any]]:
    """Wait for the end of a pilot; its jobs by name."""
    going = {"PENDING", "RUNNING", "COMPLETING"}
    slurm.wait_for(lambda: slurm.job(job)["JobState"] not in going, "the end of the pilot")
    log = (place.pilot / f"slurm-{job}.out").read_text()
    assert slurm.job(job)["JobState"] == "COMPLETED", log
    document = place.document("status", str(place.pilot))
    return {each["name"]: each for each in document["jobs"]}


def begun(place: Site, *names: str) -> None:
    for name in names:
        wait_for(lambda name=name: place.steps(name), f"a step of {name}")


def again(place: Site, job: str, attempt: int) -> None:
    """Wait for an attempt; one that has only its gated step to do has no step before."""
    path = place.pilot / "jobs" / job / f"attempt-{attempt:04d}" / "report.json"
    wait_for(path.exists, f"attempt {attempt}")


def manager(place: Site) -> int:
    """Its pid."""
    return int(json.loads((place.pilot / "manager.json").read_text())["pid"])


def test_jobs_share_two_nodes(slurm: Cluster, place: Site) -> None:
    """Primaries at their best size, a secondary on what is left, promoted when GPUs come free."""
    # Under cgroups those of CUDA count from 0 in every step.
    place.environ["COUNTER_GPUS"] = "SLURM_STEP_GPUS"
    place.write_jobs(
        place.counter("left", gated=True, gpus={"min": 1, "max": 6, "optimal": 4}),
        place.counter("right", gated=True, gpus={"min": 1, "max": 6, "optimal": 6}),
        place.counter("second", gated=True, gpus={"min": 1, "max": 6, "optimal": 5}),
    )
    job = submit(place)
    begun(place, "left", "right", "second")
    held = {name: len(place.steps(name)[-1].gpus) for name in ("left", "right", "second")}
    assert held == {"left": 4, "right": 6, "second": 2}
    place.open("left")
    again(place, "3", 2)
    place.open("right")
    place.open("second")
    jobs = over(slurm, place, job)
    assert len(place.steps("second")[-1].gpus) == 5
    assert {each["state"] for each in jobs.values()} == {"completed"}
    assert jobs["second"]["suspends"] == 1
    check_account(place, "left", "second")

    # What Slurm itself says of the steps: one for each attempt, all of them over.
    def steps() -> list[tuple[str, str, str]]:
        lines = slurm.accounting(job, "jobname,state,alloctres")
        fields = (line.split("|") for line in lines if re.match(r"hpcext-\d-\d\|", line))
        return sorted(
            (name, re.findall(r"gres/gpu=(\d)", tres)[0], state) for name, state, tres in fields
        )

    expected = [
        ("hpcext-1-1", "4", "COMPLETED"),
        ("hpcext-2-1", "6", "COMPLETED"),
        ("hpcext-3-1", "2", "FAILED"),  # Suspended: exit code 85.
        ("hpcext-3-2", "5", "COMPLETED"),
    ]
    slurm.wait_for(lambda: steps() == expected, "what sacct says of the steps")


def check_account(place: Site, one: str, other: str) -> None:
    """Two jobs of one node never had a GPU at the same time, by what their steps saw."""
    spans = []
    for name in (one, other):
        for attempt in {step.attempt for step in place.steps(name)}:
            steps = [step for step in place.steps(name) if step.attempt == attempt]
            spans.append((name, steps[0].time_s, steps[-1].time_s, steps[0].gpus))
    for name, begin, end, gpus in spans:
        for other_name, other_begin, other_end, others in spans:
            if name != other_name and begin < other_end and other_begin < end:
                assert not gpus & others


def test_verbs_work_from_a_login_node(slurm: Cluster, place: Site) -> None:
    """Where the manager is no process of this machine: by the spool, and by Slurm's signal."""
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6, "optimal": 4}))
    job = submit(place, nodes=1)
    begun(place, "only")
    facts = json.loads((place.pilot / "manager.json").read_text())
    (place.pilot / "manager.json").write_text(json.dumps({**facts, "boot_id": "another"}))
    place.run_until_done("suspend", str(place.pilot), "only")
    wait_for(lambda: "suspended" in place.run("why", str(place.pilot), "only").out, "suspension")
    assert place.run("resume", str(place.pilot), "only").code == 0
    again(place, "1", 2)
    place.run_until_done("resize", str(place.pilot), "only", "2")
    again(place, "1", 3)
    assert "attempt 3, 2 GPUs" in place.run("logs", str(place.pilot), "only").out
    listed = place.run("pilot", "list")
    assert f"{job} " in listed.out
    assert "running" in listed.out
    assert place.run("cancel", str(place.pilot), "only").code == 0
    slurm.wait_for(lambda: slurm.job(job)["JobState"] != "RUNNING", "the end")
    (only,) = place.document("status", str(place.pilot))["jobs"]
    assert only["state"] == "cancelled"


def test_a_killed_manager_loses_nothing(slurm: Cluster, place: Site) -> None:
    """The batch script starts another one, which takes over the steps that go on."""
    place.write_jobs(
        place.counter("one", gated=True, gpus={"min": 1, "max": 3, "optimal": 3}),
        place.counter("two", gated=True, gpus={"min": 1, "max": 6, "optimal": 6}),
    )
    job = submit(place)
    begun(place, "one", "two")
    first = manager(place)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: manager(place) != first, "another manager")
    place.open("one")
    place.open("two")
    jobs = over(slurm, place, job)
    assert {(each["state"], each["attempts"]) for each in jobs.values()} == {("completed", 1)}
    assert "the manager was killed" in (place.pilot / f"slurm-{job}.out").read_text()


def test_a_cancelled_step_is_tried_again(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6, "optimal": 4}))
    job = submit(place, nodes=1)
    begun(place, "only")
    wait_for(lambda: place.steps("only")[-1].step >= 10, "ten steps")
    slurm.as_user("scancel", f"{job}.0")
    again(place, "1", 2)
    place.open("only")
    jobs = over(slurm, place, job)
    assert (jobs["only"]["state"], jobs["only"]["attempts"]) == ("completed", 2)


def test_options_of_the_site_are_those_of_each_pilot(slurm: Cluster, place: Site) -> None:
    """What is said on the command line wins, as sbatch takes the last of two."""
    place.write_jobs(place.counter("only", steps=5))
    place.environ["HPCEXT_PILOT_OPTIONS"] = "--comment='of the site' --nice=7 --time=99"
    job = submit(place, "--nice=8", nodes=1)
    facts = slurm.job(job)
    assert (facts["Comment"], facts["Nice"], facts["TimeLimit"]) == ("of", "8", "00:10:00")
    assert over(slurm, place, job)["only"]["state"] == "completed"


def test_slurm_refuses_and_nothing_is_left(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("only"))
    words = ("--gpus-per-node", "6", "--dir", str(place.pilot), "--", "--partition=nowhere")
    ended = place.run("pilot", "submit", str(place.jobs), *words)
    assert ended.code == 1
    assert ended.err == (
        "hpcext: sbatch failed: invalid partition specified: nowhere; "
        "Batch job submission failed: Invalid partition name specified\n"
    )
    assert not Path(place.pilot).exists()


def test_a_pilot_is_followed_from_the_queue_to_its_end(slurm: Cluster, place: Site) -> None:
    """As if it ran here; its end is told by the node it ran on, with why a job failed."""
    tell = place.path / "tell"
    tell.write_text(f"#!/bin/sh\ncat >> {place.path}/told\n")
    tell.chmod(0o755)
    bad = {"name": "bad", "command": "echo no data; exit 3", "shell": True, "retries": 0}
    place.write_jobs(bad, {"name": "good", "command": ["true"]})
    job = submit(place, "--hold", nodes=1, words=("--notify", f"command:{tell}"))
    looks = place.start("attach", str(place.pilot))
    assert looks.stdout is not None
    assert "pilot jobs-" in looks.stdout.readline()
    slurm.run("scontrol", "release", str(job))
    out, err = looks.communicate(timeout=500)
    assert looks.returncode == 1, (out, err)
    assert "bad: exit code 3; last line of its log: no data" in out
    assert "good: completed" in out
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "FAILED", "the end of the pilot")
    told = json.loads((place.path / "told").read_text())
    assert (told["event"], [each["name"] for each in told["failed"]]) == ("ended", ["bad"])
