"""Lightning and TensorFlow in steps of Slurm, which both have ideas of their own about Slurm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site
from slurm_cluster import Cluster
from test_pilot import over, submit
from test_pilot_ends import endings, requeued
from written import whole_lines

TESTS = Path(__file__).parents[1]
LIGHTNING = "lightning/train_lightning.py"
FIT = "tensorflow/train_fit.py"
ENDS = {"keras": "final", "ranks": "end", "one": "end"}
"""Of which job what line is the last, with a digest of its weights."""

IMPORTS_S = 300
"""Eight processes import their frameworks at once, perhaps on two busy cores."""


def train(
    slurm: Cluster, place: Site, name: str, script: str, *words: str, ranks: int = 0
) -> dict[str, Any]:
    """A job of the training scripts of other tests, which write down what they do."""
    path = place.path / name
    slurm.as_user("mkdir", str(path))
    launch = ["hpcext", "launch", "--ranks", "{gpus}"] if ranks else []
    return {
        "name": name,
        "command": [*launch, place.python, str(TESTS / script), *words],
        "gpus": {"min": ranks or 1, "max": ranks or 1},
        "workdir": str(path),
        "env": {
            "SCRIPT_LOG": str(path / "log"),
            "PYTHONPATH": f"{place.environ['PYTHONPATH']}:{TESTS / 'training'}",
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": "-1",
        },
    }


def said(place: Site, name: str, word: str) -> list[list[str]]:
    """What a script wrote down of something: ``ATTEMPT RANK WORD ...``."""
    path = place.path / name / "log"
    lines = [line.split() for line in whole_lines(path)]
    return [line for line in lines if line[2:3] == [word]]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_preempted_they_end_as_if_nothing_had_been(slurm: Cluster, place: Site) -> None:
    """Lightning handles Slurm's SIGTERM, if it is let; TensorFlow has threads of its own."""
    keras = train(slurm, place, "keras", FIT)
    gate = place.path / "keras" / "go"
    os.mkfifo(gate)
    keras["env"]["SCRIPT_HOLD"] = f"5 {gate.with_name('here')} {gate}"
    place.write_jobs(
        keras,
        train(slurm, place, "ranks", LIGHTNING, "--hold", "1.2", ranks=2),
        train(slurm, place, "one", LIGHTNING, "--hold", "1.2"),
        train(slurm, place, "keras-alone", FIT),
        train(slurm, place, "ranks-alone", LIGHTNING, ranks=2),
        train(slurm, place, "one-alone", LIGHTNING),
    )
    options = ("--partition=harvest", "--nodelist=n1")
    job = submit(place, *options, nodes=1, words=("--requeue",))
    slurm.wait_for(gate.with_name("here").exists, "the gate of keras", IMPORTS_S)
    for name in ("ranks", "one"):
        gated = f"the gate of {name}"
        slurm.wait_for(lambda name=name: "1.2" in reached(place, name), gated, IMPORTS_S)
    for name, word in ENDS.items():
        alone = f"{name}-alone"
        slurm.wait_for(lambda alone=alone, word=word: said(place, alone, word), alone, IMPORTS_S)
    slurm.as_user("sbatch", "--partition=urgent", "--nodelist=n1", "--exclusive", "--wrap=sleep 1")
    slurm.wait_for(lambda: place.told("1"), "the suspension of keras")
    gate.write_text("go")
    requeued(slurm, job)
    jobs = over(slurm, place, job)
    assert {each["state"] for each in jobs.values()} == {"completed"}
    for number, (name, word) in enumerate(ENDS.items(), 1):
        assert [ended["suspended"] for ended in endings(place, str(number))] == [True, False]
        assert endings(place, str(number))[0]["notice_at"] is not None
        (undisturbed,) = {tuple(line[2:]) for line in said(place, f"{name}-alone", word)}
        (preempted,) = {tuple(line[2:]) for line in said(place, name, word)}
        assert preempted == undisturbed


def reached(place: Site, name: str) -> list[str]:
    """Batches of the first attempt of a job."""
    return [line[3] for line in said(place, name, "train") if line[0] == "1"]
