"""hpcext doctor, as an ordinary user of a real Slurm calls it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plugin import Plugin
from site_of_test import Site
from slurm_cluster import Cluster

from hpcext.batch.slurm import site as slurm_site

# Other checks import every framework; tests/lsf has them all.
DOCTOR = """
import sys
from hpcext.cli import doctor, main
doctor.CHECKS = [each for each in doctor.CHECKS if each.name not in {"torch", "tensorflow", "jax"}]
sys.exit(main.main(["doctor", "--json"]))
"""


def doctor(slurm: Cluster, place: Site, **environ: str) -> tuple[int, dict[str, dict[str, Any]]]:
    words = (str(slurm.python), "-c", DOCTOR)
    state = str(place.path / "state")
    ended = slurm.as_user(*words, timeout_s=280, HPCEXT_STATE_DIR=state, **environ)
    document = json.loads(ended.stdout)
    return ended.returncode, {each["name"]: each for each in document["findings"]}


def test_a_slurm_that_works(slurm: Cluster, place: Site) -> None:
    status, said = doctor(slurm, place, HPCEXT_HARVEST_PARTITION="harvest")
    assert status == 0, said
    assert said["batch"]["says"] == "Slurm"
    assert said["slurm"]["verdict"] == "ok"
    assert said["slurm"]["says"].endswith("its controller answers")
    assert said["harvest_partition"]["verdict"] == "ok"
    assert said["harvest_partition"]["says"].startswith("'harvest': 4 nodes")
    assert said["slurm plugin"]["verdict"] == "note"
    well = ("clock", "preemption", "requeue", "PrivateData", "backfill", "lock", "rename")
    assert {said[name]["verdict"] for name in well} == {"ok"}
    assert said["preemption"]["says"] == "jobs of batch, urgent preempt those of harvest"
    missing = said["signal at preemption"]  # the cluster has not set it
    setting = "=".join(slurm_site.signal_at_preemption(slurm.release))
    assert missing["do"] == f"an administrator adds {setting}, as this release calls it"
    assert all(each["why"] for each in said.values() if each["verdict"] != "ok")


@pytest.mark.slow
def test_a_plugin_that_is_loaded(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    _, said = doctor(slurm, place)
    # The tests' own plugin was put there by no hpcext-admin.
    assert said["slurm plugin"]["verdict"] == "note"
    assert said["slurm plugin"]["says"] == "loaded, of an unknown release"
    plugin.use(f"command={slurm.root}/none")
    status, said = doctor(slurm, place)
    assert status == 1
    assert "the command that it runs does not exist" in said["slurm plugin"]["says"]


def test_a_controller_that_is_down(slurm: Cluster, place: Site) -> None:
    slurm.stop_ctld()
    try:
        status, said = doctor(slurm, place)
    finally:
        slurm.start_ctld()
    assert status == 1
    assert said["slurm"]["verdict"] == "wrong"
    assert "no controller answers" in said["slurm"]["says"]
    assert said["slurm"]["do"]
