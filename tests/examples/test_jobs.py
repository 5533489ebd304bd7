"""The main job as the README shows it: the example jobs on six slots of this machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_of_test import Site

JOBS = Path(__file__).parents[2] / "examples" / "jobs.toml"
README = JOBS.parents[1] / "README.md"
CNN = ("cnn", "wide", "narrow", "last")


def timeless(text: str) -> Iterator[str]:
    """Lines without the instants and lengths of time that differ from run to run."""
    for line in text.strip().splitlines():
        if line.startswith("["):
            yield line.partition("] ")[2]
        elif line[0].isdigit():
            yield " ".join(line.split()[:3])


def test_the_plan_of_the_example_is_that_of_the_readme(site: Site) -> None:
    """Its trainings are run in the slow suite; each script of them in test_examples.py."""
    plan = site.document("run", str(JOBS), "--gpus", "6", "--dry-run")
    sizes = {job["name"]: sum(job["gpus"].values()) for job in plan["jobs"]}
    assert sizes == {"cnn": 3, "wide": 3, "narrow": 0, "logistic": 0, "last": 0}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_six_slots_are_shared_and_every_model_is_as_good_as_alone(site: Site) -> None:
    site.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = site.run("run", str(JOBS), "--gpus", "6", "--name", "demo", timeout_s=500)
    assert run.code == 0, run
    jobs = {job["name"]: job for job in site.document("status", "demo")["jobs"]}
    logs = {name: site.run("logs", "demo", name).out for name in jobs}
    assert {job["state"] for job in jobs.values()} == {"completed"}, logs

    # Figure 5: a primary, a secondary on what it left, promoted by suspension and resumption.
    shape = {
        name: [(part["role"], len(part["gpus"])) for part in job["segments"]]
        for name, job in jobs.items()
    }
    assert shape["cnn"] == [("primary", 3)]
    assert shape["wide"] == [("secondary", 3), ("primary", 4)]
    assert shape["narrow"] == shape["logistic"] == [("primary", 1)]
    assert jobs["wide"]["suspends"] == 1
    assert jobs["last"]["started_s"] >= max(jobs["cnn"]["ended_s"], jobs["wide"]["ended_s"])
    taken = [
        (part["start_s"], part["end_s"], gpu)
        for job in jobs.values()
        for part in job["segments"]
        for gpu in part["gpus"]
    ]
    for start, end, gpu in taken:
        others = [span for span in taken if span[2] == gpu and span != (start, end, gpu)]
        assert all(other[1] <= start or other[0] >= end for other in others)

    # The README shows this very session.
    recorded = README.read_text().partition("output of `make demo`")[2].split("```")[1]
    assert recorded.count("GPUs") > 4
    said = run.out.replace(f"free on {platform.node()}", "free on gpu1")
    assert set(timeless(recorded)) <= set(timeless(said)), said

    # Each step was done once, and the accuracy is what the script itself printed into its log.
    assert all(job["lost_steps"] == 0 for job in jobs.values())
    assert all(sum(part["steps"] for part in job["segments"]) == 144 for job in jobs.values())
    for name in CNN:
        accuracy = jobs[name]["metrics"]["accuracy"]
        assert accuracy >= 0.96
        assert f"accuracy {accuracy:.4f} on 360 held-out digits after 144 steps" in logs[name]
    assert jobs["logistic"]["metrics"]["accuracy"] >= 0.95
    assert not site.left_behind()
