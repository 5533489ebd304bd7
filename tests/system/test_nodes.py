"""Jobs of several nodes: one supervisor on each, one attempt, one acknowledgement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot import begun, over, submit

TRAIN = Path(__file__).parent / "train.py"
TORCHRUN = (
    "-m", "torch.distributed.run", "--nnodes={nodes}", "--nproc-per-node={gpus}",
    "--rdzv-backend=c10d", "--rdzv-endpoint={rendezvous}",
)  # fmt: skip
LAUNCH = ("-m", "hpcext", "launch", "python3")


def files(place: Site, job: str, name: str) -> list[dict[str, Any]]:
    """A file of each node's supervisor, of the first attempt; one may be later than the other."""
    attempt = place.pilot / "jobs" / job / "attempt-0001"
    paths = [path / name for path in (attempt, attempt / "node-0001")]
    wait_for(lambda: all(path.exists() for path in paths), f"{name} of both nodes")
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.slow),
        pytest.param(LAUNCH, id="launch"),
    ],
)
def test_a_training_over_two_nodes_is_suspended_and_goes_on(
    slurm: Cluster, place: Site, launcher: tuple[str, ...]
) -> None:
    """Ranks of two nodes meet where the pilot says, and agree on the step to stop at."""
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    wide = {
        "name": "wide",
        "command": [place.python, *launcher, str(TRAIN), str(run)],
        "nodes": 2,
        "gpus": 1,
        "env": {"OMP_NUM_THREADS": "1"},
    }
    place.write_jobs(wide, place.counter("beside", gated=True, gpus={"min": 1, "max": 6}))
    job = submit(place)
    begun(place, "beside")
    wait_for((run / "where").exists, "the gate")
    nodes = files(place, "1", "supervisor.json")
    assert len({facts["node"] for facts in nodes}) == 2
    jobs = place.document("status", str(place.pilot))["jobs"]
    held, others = (each["segments"][-1]["gpus"] for each in jobs)
    assert held == [gpu for facts in nodes for gpu in facts["gpus"]]
    # Of the node that it shares with the other job it has what that has not.
    assert not set(held) & set(others)
    place.run_until_done("suspend", str(place.pilot), "wide")
    last = place.pilot / "jobs" / "1" / "attempt-0001" / "exit.json"
    wait_for(last.exists, "its end")
    assert json.loads(last.read_text())["suspended"] is True
    place.open("beside")
    assert place.run("resume", str(place.pilot), "wide").code == 0
    jobs = over(slurm, place, job)
    assert {each["state"] for each in jobs.values()} == {"completed"}
    assert jobs["wide"]["suspends"] == 1
    # By rank 0, which torchrun may put on either node.
    logs = [path.read_text() for path in place.pilot.glob("jobs/1/log*.txt")]
    assert "".join(logs).count("trained to step 12 on 2") == 1
    assert "log.node-1.txt" in place.run("logs", str(place.pilot), "wide").err


@pytest.mark.slow
def test_a_training_gets_a_second_node_when_it_comes_free(slurm: Cluster, place: Site) -> None:
    """BFTrainer's division counts nodes that a job may spread over."""
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    wide = {
        "name": "wide",
        "command": [place.python, *TORCHRUN, str(TRAIN), str(run)],
        "nodes": {"min": 1, "max": 2},
        "gpus": 1,
        "scaling": {1: 1.0, 2: 1.9},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    beside = place.counter("beside", gated=True, gpus=6, scaling={6: 1.0})
    place.write_jobs(wide, beside)
    job = submit(place, words=("--policy", "bftrainer"))
    begun(place, "beside")
    wait_for((run / "where").exists, "the gate")
    place.open("beside")
    jobs = over(slurm, place, job)
    assert {each["state"] for each in jobs.values()} == {"completed"}
    held = [{gpu.partition(":")[0] for gpu in part["gpus"]} for part in jobs["wide"]["segments"]]
    assert [len(nodes) for nodes in held] == [1, 2]
    assert (jobs["wide"]["suspends"], jobs["wide"]["lost_steps"]) == (1, 0)
    logs = [path.read_text() for path in place.pilot.glob("jobs/1/log*.txt")]
    assert "".join(logs).count("trained to step 12 on 2") == 1


def test_a_node_that_goes_down_takes_the_whole_job_and_another_takes_its_place(
    slurm: Cluster, place: Site
) -> None:
    wide = place.counter("wide", gated=True, gpus=6)
    # One that counts, and one that is there: what a node does is not asked of this job.
    wide["command"] = [
        "sh",
        "-c",
        f"test $SLURM_NODEID = 0 || exec sleep 600; {' '.join(wide['command'])}",
    ]
    place.write_jobs({**wide, "nodes": 2}, place.counter("kept", gated=True, gpus=3))
    job = submit(place, "--nodelist=n1,n2,n3", nodes=3)
    begun(place, "wide", "kept")
    first = [facts["node"] for facts in files(place, "1", "supervisor.json")]
    assert first == ["n1", "n2"]
    place.open("kept")
    # Slurm may never give back the GPUs of a step that runs while its job loses a node, and the job
    # could not have n3: "_step_dealloc_lps: unable to update job's core use information due to job
    # resizing" (22.05), "gres_stepmgr_step_alloc: step's > job's" (24.11).
    wait_for((place.pilot / "jobs" / "2" / "attempt-0001" / "exit.json").exists, "its end")
    slurm.wait_for(
        lambda: "hpcext-2-1" not in slurm.run("squeue", "-s", "-h", "-o%j").stdout, "its step's end"
    )
    try:
        slurm.kill_node("n2")
        slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        # The next attempt may be one too early to know, and be lost with the node.
        began = "jobs/1/attempt-000[2-9]/node-0001/supervisor.json"
        again = wait_for(lambda: list(place.pilot.glob(began)), "another attempt")
        assert json.loads(again[0].read_text())["node"] == "n3"
        assert place.run("cancel", str(place.pilot), "wide").code == 0
        slurm.wait_for(
            lambda: slurm.job(job)["JobState"] not in {"RUNNING", "COMPLETING"}, "the end"
        )
    finally:
        slurm.start_node("n2")
        slurm.wait_for(lambda: "n2|idle" in slurm.run("sinfo", "-hNo", "%N|%T").stdout, "n2")
    jobs = {each["name"]: each for each in place.document("status", str(place.pilot))["jobs"]}
    assert jobs["kept"]["state"] == "completed"
    assert jobs["wide"]["state"] == "cancelled"


def test_more_nodes_than_the_pilot_has_are_refused(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("wide", gpus=1, nodes=3))
    words = ("--nodes", "2", "--gpus-per-node", "6", "--dir", str(place.pilot))
    refused = place.run("pilot", "submit", str(place.jobs), *words)
    assert refused.code == 2
    assert "needs at least 3 nodes, and this pilot has 2" in refused.err


@pytest.mark.cases(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_of_one_rank_counts_once(slurm: Cluster, place: Site, rank: int) -> None:
    """Slurm ends the other one as in a preemption, and that is none."""
    wide = {
        "name": "wide",
        "command": f"test $SLURM_NODEID = {rank} || exec sleep 600; exit 3",
        "shell": True,
        "nodes": 2,
        "gpus": 1,
        "retries": 1,
    }
    place.write_jobs(wide)
    job = submit(place)
    going = {"PENDING", "RUNNING", "COMPLETING"}
    slurm.wait_for(lambda: slurm.job(job)["JobState"] not in going, "the end of the pilot")
    (wide,) = place.document("status", str(place.pilot))["jobs"]
    assert (wide["state"], wide["attempts"]) == ("failed", 2)
    assert f"on its node {rank}: exit code 3" in wide["why"]
