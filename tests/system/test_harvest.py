"""A harvester on a real Slurm: idle nodes as leases, given back as soon as anybody wants them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import NODES, REPOSITORY, Cluster
from test_nodes import TORCHRUN, TRAIN
from test_pilot import begun, manager

from hpcext.manager.views.harvest_report import PARTS
from hpcext.numerals import whole

LEASES = ("-h", "-o", "%i|%T|%N", "-t", "RUNNING", "-p", "harvest")


def harvest(place: Site, *words: str) -> subprocess.Popen[str]:
    """Start a harvester of the place's jobs."""
    return place.start(
        "harvest", "start", str(place.jobs), "--partition", "harvest", "--interval", "1.5",
        "--idle", "20", "--dir", str(place.pilot), *words,
    )  # fmt: skip


def leases(slurm: Cluster) -> dict[str, int]:
    """Node → the lease that runs there."""
    lines = slurm.run("squeue", *LEASES).stdout.split()
    parts = (line.split("|") for line in lines)
    return {node: int(job) for job, _, node in parts}


def main_job(slurm: Cluster, nodes: int, *command: str, on: str = "") -> int:
    """Submit a job of the site's own, perhaps on some node; its id."""
    words = ["--exclusive", "--mem=100", "--output=/dev/null", "--parsable", "--time=5"]
    words += [f"--nodelist={on}"] if on else []
    said = slurm.run("sbatch", f"--nodes={nodes}", *words, f"--wrap={' '.join(command)}")
    return int(said.stdout)


def asked_since(slurm: Cluster, job: int) -> list[float]:
    """When those leases began that were asked for after a job, epoch."""
    words = ("-h", "--states=all", "-p", "harvest", "-o", "%i|%N|%S")
    lines = slurm.run("squeue", *words, SLURM_TIME_FORMAT="%s").stdout.split()
    parts = (line.split("|") for line in lines)
    # An array that another test had there has ids of another form, which int() accepts, too.
    return [float(began) for lease, node, began in parts if node and (whole(lease) or 0) > job]


def wait_until_begun(slurm: Cluster, job: int) -> None:
    """Wait for its nodes; how soon it has them, benchmarks/harvest.py measures."""
    slurm.wait_for(lambda: slurm.job(job)["JobState"] != "PENDING", "the start of a job")


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a harvester; what it said."""
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, (out, err)
    return out


def jobs_of(place: Site) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in place.document("status", str(place.pilot))["jobs"]}


def nothing_left(slurm: Cluster, place: Site) -> None:
    """No lease outlives its harvester, and no process or file of one is left."""
    slurm.wait_for(lambda: not slurm.run("squeue", "-h", "-p", "harvest").stdout, "the last lease")
    assert not place.left_behind()


def test_trainers_give_way_to_a_job_and_take_its_nodes_when_it_is_over(
    slurm: Cluster, place: Site
) -> None:
    """The nodes are handed over, no step is lost, and all is given back at last.

    Two take their time to leave: what the others have given up must stay free for the job.
    """
    names = ("one", "two", "three", "four")
    trainers = [
        place.counter(name, gated=True, nodes={"min": 1, "max": 1}, gpus=6) for name in names
    ]
    for trainer in trainers[:2]:
        trainer["env"]["COUNTER_SAVE_S"] = "6"
    place.write_jobs(*trainers)
    process = harvest(place)
    begun(place, *names)
    assert set(leases(slurm)) == set(NODES)
    job = main_job(slurm, 3, "sleep", "600")
    wait_until_begun(slurm, job)
    assert asked_since(slurm, job) == []
    assert len(leases(slurm)) == 1
    waiting = [each for each in jobs_of(place).values() if each["state"] == "pending"]
    assert len(waiting) == 3
    slurm.run("scancel", str(job))
    slurm.wait_for(lambda: len(leases(slurm)) == 4, "all nodes again")
    for name in names:
        place.open(name)
    out = ended(process)
    jobs = jobs_of(place)
    assert {each["state"] for each in jobs.values()} == {"completed"}, out
    assert sum(each["suspends"] for each in jobs.values()) == 3
    assert {each["lost_steps"] for each in jobs.values()} == {0}
    for name in jobs:
        place.check_account({name: 40})
    nothing_left(slurm, place)
    said = place.document("harvest", "report", str(place.pilot))
    # Three nodes of four were given up and taken again; each was idle for some seconds first. Where
    # another test had a harvester a moment ago, as beside a neighbour some wait in the queue, too.
    assert said["leases"] >= 7
    assert 0 < said["used_node_h"] <= said["held_node_h"] < said["offered_node_h"]
    assert sum(said[f"{part}_node_h"] for part in PARTS) == pytest.approx(
        said["offered_node_h"], abs=1e-3
    )
    # Each of the three had one node, which was its next job's already while it was suspended.
    assert 0 < said["preemption_node_h"] < said["held_node_h"]
    assert (said["rescaling_node_h"], said["other_node_h"]) == (0, 0)
    assert said["training_node_h"] > 0 < said["starting_node_h"]
    rows = {row["name"]: row for row in said["trainers"]}
    assert sorted(row["restarts"] for row in rows.values()) == [0, 1, 1, 1]
    assert {(row["steps"], row["most_nodes"], row["nodes"]) for row in rows.values()} == {
        (40, 1, 0)
    }
    used = sum(row["node_h"] for row in rows.values())
    assert used == pytest.approx(said["used_node_h"], abs=1e-3)


@pytest.mark.slow
def test_a_training_of_torchrun_is_suspended_on_all_its_leases(slurm: Cluster, place: Site) -> None:
    """Its processes do not know how to go on with other nodes; it does when it has two again."""
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    block = main_job(slurm, 2, "sleep", "600")
    wide = {
        "name": "wide",
        "command": [place.python, *TORCHRUN, str(TRAIN), str(run)],
        "nodes": 2,
        "gpus": 1,
        "env": {"OMP_NUM_THREADS": "1"},
    }
    place.write_jobs(wide)
    process = harvest(place, "--gpus-per-node", "1")
    wait_for((run / "where").exists, "the gate")
    assert len(jobs_of(place)["wide"]["segments"][-1]["gpus"]) == 2
    wait_until_begun(slurm, main_job(slurm, 1, "sleep", "5"))
    out = ended(process)
    done = jobs_of(place)["wide"]
    assert (done["state"], done["suspends"], done["lost_steps"]) == ("completed", 1, 0), out
    logs = [path.read_text() for path in place.pilot.glob("jobs/1/log*.txt")]
    assert "".join(logs).count("trained to step 12 on 2") == 1
    nothing_left(slurm, place)
    slurm.run("scancel", str(block))


def test_a_harvester_that_was_killed_is_followed_by_another(slurm: Cluster, place: Site) -> None:
    """Trainers and leases go on without it."""
    place.write_jobs(place.counter("one", gated=True, nodes={"min": 1, "max": 1}, gpus=6))
    first = harvest(place)
    begun(place, "one")
    before = leases(slurm)
    os.kill(manager(place), signal.SIGKILL)
    first.wait()
    second = place.start("run", "--resume", str(place.pilot))
    wait_for(lambda: manager(place) != first.pid, "another manager")
    place.run_until_done("suspend", str(place.pilot), "one")
    place.run_until_done("resume", str(place.pilot), "one")
    assert leases(slurm) == before
    place.open("one")
    ended(second)
    assert jobs_of(place)["one"]["state"] == "completed"
    place.check_account({"one": 40})
    nothing_left(slurm, place)


@pytest.mark.slow
def test_a_harvester_that_is_told_to_end_suspends_and_gives_back(
    slurm: Cluster, place: Site
) -> None:
    """As systemd does it; it goes on where it was."""
    place.write_jobs(place.counter("one", gated=True, nodes={"min": 1, "max": 1}, gpus=6))
    process = harvest(place, "--idle", "600")
    begun(place, "one")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 128 + signal.SIGTERM, (out, err)
    assert "hpcext run --resume" in err
    nothing_left(slurm, place)
    done = jobs_of(place)["one"]
    assert (done["state"], done["suspends"], done["lost_steps"]) == ("pending", 1, 0)
    place.open("one")
    ended(place.start("run", "--resume", str(place.pilot)))
    place.check_account({"one": 40})
    nothing_left(slurm, place)


@pytest.mark.slow
def test_leases_end_by_themselves_when_their_harvester_does_not_come_back(
    slurm: Cluster, place: Site
) -> None:
    place.write_jobs(place.counter("one", nodes={"min": 1, "max": 1}, gpus=6, steps=400))
    process = harvest(place)
    begun(place, "one")
    os.kill(manager(place), signal.SIGKILL)
    process.wait()
    nothing_left(slurm, place)
    # And of what ended meanwhile the next one hears.
    ended(place.start("run", "--resume", str(place.pilot)))
    assert jobs_of(place)["one"]["state"] == "completed"
    place.check_account({"one": 400})


@pytest.mark.slow
def test_a_node_that_dies_costs_what_was_not_saved(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("one", gated=True, nodes={"min": 1, "max": 1}, gpus=6))
    process = harvest(place, "--max-nodes", "1")
    begun(place, "one")
    (node,) = leases(slurm)
    slurm.kill_node(node)
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        wait_for(lambda: {step.attempt for step in place.steps("one")} == {1, 2}, "another attempt")
        place.open("one")
        ended(process)
        assert jobs_of(place)["one"]["state"] == "completed"
        assert node not in leases(slurm)
    finally:
        slurm.start_node(node)
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
        slurm.wait_for(
            lambda: "idle" in slurm.run("sinfo", "-h", "-n", node, "-o", "%T").stdout, "the node"
        )
    nothing_left(slurm, place)


@pytest.mark.slow
def test_a_training_that_does_not_answer_costs_its_grace_and_what_it_had_not_saved(
    slurm: Cluster, place: Site
) -> None:
    deaf = {"deaf": True, "gated": True, "suspend_timeout_s": 5}
    place.write_jobs(place.counter("one", nodes={"min": 1, "max": 1}, gpus=6, **deaf))
    process = harvest(place)
    begun(place, "one")
    job = main_job(slurm, 4, "sleep", "2")
    # Slurm enforces the grace by itself.
    wait_until_begun(slurm, job)
    wait_for(lambda: {step.attempt for step in place.steps("one")} == {1, 2}, "another attempt")
    place.open("one")
    ended(process)
    place.check_account({"one": 40})
    nothing_left(slurm, place)


def test_slurmctld_is_away_for_a_while(slurm: Cluster, place: Site) -> None:
    """Trainings go on, and what ends meanwhile is heard of; leases are known again."""
    place.write_jobs(
        place.counter("one", gated=True, nodes={"min": 1, "max": 1}, gpus=6),
        place.counter("two", gated=True, nodes={"min": 1, "max": 1}, gpus=6),
    )
    process = harvest(place)
    begun(place, "one", "two")
    before = leases(slurm)
    slurm.stop_ctld()
    try:
        place.open("one")
        wait_for(lambda: jobs_of(place)["one"]["state"] == "completed", "the end of one")
    finally:
        slurm.start_ctld()
    assert leases(slurm) == before
    place.open("two")
    ended(process)
    assert jobs_of(place)["two"]["attempts"] == 1
    nothing_left(slurm, place)


def test_a_training_that_cannot_run_is_given_up_and_others_are_not(
    slurm: Cluster, place: Site
) -> None:
    place.write_jobs(
        {"name": "broken", "command": ["/nowhere/train"], "nodes": 1, "gpus": 6, "retries": 0},
        place.counter("one", nodes={"min": 1, "max": 1}, gpus=6),
    )
    process = harvest(place)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 1, (out, err)
    jobs = jobs_of(place)
    assert (jobs["broken"]["state"], jobs["one"]["state"]) == ("failed", "completed")
    assert jobs["broken"]["why"] == "no such program '/nowhere/train'"
    nothing_left(slurm, place)


def test_a_lease_ends_before_a_job_that_is_planned(slurm: Cluster, place: Site) -> None:
    """Nobody is preempted for it: the hole's end was known."""
    running = main_job(slurm, 3, "sleep", "600")
    slurm.run("scontrol", "update", f"job={running}", "timelimit=6")
    wide = main_job(slurm, 4, "true")
    slurm.wait_for(lambda: "planned" in slurm.run("sinfo", "-N", "-h", "-o", "%T").stdout, "a plan")
    place.write_jobs(place.counter("one", gated=True, nodes={"min": 1, "max": 1}, gpus=6))
    shown = place.run("harvest", "holes", "--partition", "harvest")
    assert len(shown.out.splitlines()) == 2
    assert " min" in shown.out.splitlines()[1]
    process = harvest(place)
    begun(place, "one")
    ((node, lease),) = leases(slurm).items()
    limit = slurm.job(lease)["TimeLimit"]
    assert "00:03:00" <= limit <= "00:05:00"
    said = wait_for(lambda: _leaves(place, node), "the end")
    assert said < time.time() + 330
    place.open("one")
    ended(process)
    nothing_left(slurm, place)
    slurm.run("scancel", str(running), str(wide))


def _leaves(place: Site, node: str) -> float | None:
    """When the lease of a node has to be over, if the manager knows; one before it may be gone."""
    for file in (place.pilot / "leases").glob("*/lease.json"):
        with contextlib.suppress(FileNotFoundError):
            lease = json.loads(file.read_text())
            if lease["node"] == node:
                return lease["leave_at"] or None
    return None


@pytest.mark.slow
def test_the_page(slurm: Cluster, place: Site) -> None:
    """The commands of docs/harvest.md, in its order."""
    text = (REPOSITORY / "docs" / "harvest.md").read_text()
    script = re.search(r"^# train.py\n.*?(?=^```)", text, re.M | re.S)
    assert script
    (place.path / "train.py").write_text(script[0])
    commands = [shlex.split(line) for line in re.findall(r"^\$ (hpcext .*)", text, re.M)]
    assert [words[:3] for words in commands] == [
        ["hpcext", "sweep", "train.py"],
        *(["hpcext", "harvest", action] for action in ("holes", "start", "report")),
    ]
    for _, *words in commands:
        here = [word.replace("preemptible", "harvest") for word in words]
        finished = place.run(*here)
        assert finished.code == 0, finished
    assert "leased" in finished.out
    nothing_left(slurm, place)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition", "nowhere"), "nowhere has no nodes, or is not a partition"),
        (("--partition", "harvest", "--max-nodes", "0"), "--max-nodes"),
        (("--partition", "harvest", "--slots", "2", "--gpus-per-node", "2"), "--slots"),
        (("--partition", "harvest", "--gpus-per-node", "0"), "--gpus-per-node"),
        (("--partition", "harvest", "--policy", "nothing"), "--policy"),
        (("--partition", "harvest", "--objective", "all"), "throughput, priority"),
        (("--partition", "harvest", "--interval", "0"), "--interval"),
    ],
)
def test_impossible_requests_are_refused(
    slurm: Cluster, place: Site, words: tuple[str, ...], said: str
) -> None:
    place.write_jobs(place.counter("one"))
    finished = place.run("harvest", "start", str(place.jobs), *words)
    assert (finished.code, finished.out) == (2, "")
    assert said in finished.err
    assert len(finished.err.splitlines()) == 1
    assert not Path(place.environ["XDG_STATE_HOME"]).exists()
