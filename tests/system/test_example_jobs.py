"""The example jobs in a pilot on two nodes of Slurm, judged by what their processes were told."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from site_of_test import Site
from slurm_cluster import Cluster
from test_pilot import over, submit

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs.toml"
SCRIPTS = {"digits_cnn.py", "logistic.py"}
Holding = set[tuple[str, str, str]]


def holding(user: str) -> Holding:
    """``(node, GPU, job)`` by the environment of the trainings that run now."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.username() != user or not SCRIPTS & {*process.cmdline()}:
                continue
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        if job := environ.get("HPCEXT_JOB_ID"):
            node = environ["SLURMD_NODENAME"]
            found |= {(node, gpu, job) for gpu in environ["SLURM_STEP_GPUS"].split(",")}
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_examples_share_two_nodes(slurm: Cluster, place: Site) -> None:
    place.jobs = EXAMPLES
    job = submit(place, "--gres=gpu:4", nodes=2, words=("--gpus-per-node", "4"))
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "RUNNING", "the allocation")
    seen: Holding = set()
    while slurm.job(job)["JobState"] == "RUNNING":
        now = holding(slurm.user)
        assert len({each[:2] for each in now}) == len(now), f"a GPU of two jobs: {now}"
        seen |= now
        time.sleep(0.5)
    jobs = over(slurm, place, job)
    assert {each["state"] for each in jobs.values()} == {"completed"}
    segments = {name: each["segments"] for name, each in jobs.items()}
    shape = {name: [(part["role"], len(part["gpus"])) for part in segments[name]] for name in jobs}
    assert shape == {
        "cnn": [("primary", 3)],
        "wide": [("primary", 4)],
        "narrow": [("primary", 1)],
        "logistic": [("primary", 1)],
        "last": [("primary", 2)],
    }
    for name, (only,) in segments.items():
        had = {f"{node}:{gpu}" for node, gpu, number in seen if number == jobs[name]["id"]}
        # That one trains for a few seconds only.
        assert had == set(only["gpus"]) or (name == "logistic" and not had)
        assert len({gpu.partition(":")[0] for gpu in only["gpus"]}) == 1
    assert jobs["logistic"]["started_s"] >= jobs["narrow"]["ended_s"]
    assert jobs["last"]["started_s"] >= max(jobs["cnn"]["ended_s"], jobs["wide"]["ended_s"])
    for name in ("cnn", "wide", "narrow", "last"):
        assert jobs[name]["metrics"]["accuracy"] >= 0.96
