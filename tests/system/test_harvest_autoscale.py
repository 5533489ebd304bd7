"""A harvester of a real Slurm has more nodes or fewer, by what they are worth to a training."""

from __future__ import annotations

import os

import pytest
from site_of_test import Site
from slurm_cluster import Cluster
from test_harvest import ended, harvest, jobs_of, leases, main_job, nothing_left
from test_harvest_in_place import EPOCHS, PATIENT, TRAIN, Wide

MUCH, LITTLE = "1e6", "20"
"""Noise scales: with the first a second node is worth having."""


class Noisy(Wide):
    """The same training, which says how much its gradients vary; its speeds are not stated."""

    def __init__(self, place: Site, slurm: Cluster) -> None:
        super().__init__(place, slurm)
        self.varies(MUCH)
        train = [str(TRAIN), str(self.run), "--global-batch=12", f"--epochs={EPOCHS}"]
        command = [place.python, "-m", "hpcext", "launch", place.python, *train, "--pause=0.1"]
        place.write_jobs(
            {
                "name": "wide",
                "command": command,
                "nodes": {"min": 1, "max": 2},
                "gpus": 1,
                "retries": 0,
                "env": {"OMP_NUM_THREADS": "1"},
            }
        )

    def varies(self, noise: str) -> None:
        """Say another noise scale from now on."""
        new = self.run / "noise.new"
        new.write_text(noise)
        os.replace(new, self.run / "noise")


@pytest.mark.slow
def test_a_node_is_given_back_when_it_is_not_worth_it_and_taken_again(
    slurm: Cluster, place: Site
) -> None:
    """The training leaves it as it goes on; nobody else wants it meanwhile."""
    wide = Noisy(place, slurm)
    block = main_job(slurm, 1, "sleep", "3000")
    process = harvest(place, "--gpus-per-node", "1", *PATIENT, "--autoscale", "0.7:0.95:2")
    wide.wait_for_size(2)
    first, _ = wide.nodes()
    assert len(leases(slurm)) == 2
    said = place.document("status", str(place.pilot))["outlook"]
    assert said["utility"] > 0.8
    wide.varies(LITTLE)
    wide.wait_for_size(1)
    slurm.wait_for(lambda: set(leases(slurm)) == {first}, "the end of the other lease", 120)
    assert wide.nodes() == [first]
    wide.varies(MUCH)
    wide.wait_for_size(2)
    assert wide.nodes()[0] == first
    wide.hurry()
    out = ended(process)
    done = jobs_of(place)["wide"]
    assert (done["state"], done["attempts"], done["suspends"]) == ("completed", 1, 0), out
    assert done["rescales"] >= 3
    wide.check()
    nothing_left(slurm, place)
    slurm.run("scancel", str(block))
