"""A JAX training over nodes of Slurm, which gets another one after a suspension."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site
from slurm_cluster import Cluster
from test_frameworks import IMPORTS_S, said
from test_pilot import over, submit

TESTS = Path(__file__).parents[1]
# The devices of all nodes are two, so that the same numbers are added up in the same order.
FLAGS = (
    "--xla_backend_optimization_level=0 "
    "--xla_force_host_platform_device_count=$((2 / HPCEXT_NUM_NODES))"
)
HOLDS = 5


def train(slurm: Cluster, place: Site, name: str, **keys: Any) -> dict[str, Any]:
    """A job of the training script of other tests, of one process on each node."""
    path = place.path / name
    slurm.as_user("mkdir", str(path))
    os.mkfifo(path / "go")
    os.chown(path / "go", path.stat().st_uid, path.stat().st_gid)
    script = TESTS / "jax" / "train_jax.py"
    return {
        "name": name,
        "command": f'XLA_FLAGS="{FLAGS}" exec hpcext launch {place.python} {script} --still '
        "--epochs=2",
        "shell": True,
        "gpus": 1,
        "workdir": str(path),
        "env": {
            "SCRIPT_LOG": str(path / "log"),
            "SCRIPT_HOLD": f"{HOLDS} {path}/here {path}/go",
            "PYTHONPATH": f"{place.environ['PYTHONPATH']}:{TESTS / 'training'}",
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "-1",
        },
        **keys,
    }


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_suspended_and_resumed_on_a_second_node(slurm: Cluster, place: Site) -> None:
    """Step for step and bit for bit what the one is that has two nodes all the time."""
    place.write_jobs(
        train(slurm, place, "calm", nodes=2),
        train(slurm, place, "wider", nodes={"min": 1, "max": 2}, scaling={1: 1.0, 2: 1.9}),
        # It leaves nothing of one node.
        place.counter("beside", gated=True, gpus=5, scaling={5: 8.0}),
    )
    job = submit(place, words=("--policy", "bftrainer"))
    for name in ("calm", "wider"):
        slurm.wait_for((place.path / name / "here").exists, f"the gate of {name}", IMPORTS_S)
    place.open("beside")
    slurm.wait_for(lambda: place.told("2"), "the suspension")
    for name in ("calm", "wider"):
        (place.path / name / "go").write_text("go")
    jobs = over(slurm, place, job)
    assert {each["state"] for each in jobs.values()} == {"completed"}
    for name, sizes in (("calm", [2]), ("wider", [1, 2])):
        parts = jobs[name]["segments"]
        nodes = [{gpu.partition(":")[0] for gpu in part["gpus"]} for part in parts]
        assert [len(each) for each in nodes] == sizes, name
        assert (jobs[name]["suspends"], jobs[name]["lost_steps"]) == (len(sizes) - 1, 0)
        assert [int(line[3]) for line in steps(place, name)] == list(range(20))
        ran = {(line[0], line[1]) for line in said(place, name, "step")}
        assert len(ran) == sum(sizes)
    assert rows(place, "wider") == rows(place, "calm")
    assert weights(place, "wider") == weights(place, "calm")


def steps(place: Site, name: str) -> list[list[str]]:
    """What rank 0 wrote down of its steps."""
    return [line for line in said(place, name, "step") if line[1] == "0"]


def rows(place: Site, name: str) -> dict[str, list[int]]:
    """The samples of each step, of all ranks."""
    found: dict[str, list[int]] = {}
    for line in said(place, name, "step"):
        found.setdefault(line[3], []).extend(map(int, line[5].split(",")))
    return {step: sorted(samples) for step, samples in found.items()}


def weights(place: Site, name: str) -> list[list[str]]:
    """Those that rank 0 had at the end."""
    found = [line[3:] for line in said(place, name, "weight") if line[1] == "0"]
    assert found
    return found
