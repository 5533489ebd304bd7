"""hpcext doctor --probe on a real Slurm: what a lease goes through, and nothing is left of it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster


def probing(place: Site) -> subprocess.Popen[str]:
    """A doctor at it, from the user's own state directory."""
    place.environ |= {"HPCEXT_STATE_DIR": str(place.path / "state")}
    return place.start("doctor", "--probe", "harvest", "--json")


def nothing_left(slurm: Cluster, place: Site) -> None:
    """No job, no process, no file."""
    slurm.wait_for(lambda: not slurm.run("squeue", "-h").stdout, "an empty queue")
    state = place.path / "state"
    wait_for(lambda: not list(state.glob("doctor-*")), "the end of the keeper")
    assert not list((state / "pilots").iterdir())
    wait_for(lambda: not running(place), "the end of all processes")


def running(place: Site) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(str(place.path) in word for word in words):
            found.append(process)
    return found


@pytest.mark.slow
def test_a_lease_is_preempted_and_its_work_survives(slurm: Cluster, place: Site) -> None:
    out, err = probing(place).communicate(timeout=500)
    findings = [each for each in json.loads(out)["findings"] if each["name"] == "probe"]
    assert {each["verdict"] for each in findings} == {"ok"}, (findings, err)
    told = [each["says"] for each in findings]
    parts = (
        "lease: job",
        "shared files",
        "trains",
        "preempted by",
        "suspended at",
        "began",
        "work",
    )
    for words, said in zip(parts, told, strict=True):
        assert words in said
    nothing_left(slurm, place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "signum",
    [signal.SIGINT, signal.SIGKILL],
    ids=["Ctrl-C", "killed"],
)
def test_nothing_is_left_of_one_that_is_ended(
    slurm: Cluster, place: Site, signum: signal.Signals
) -> None:
    process = probing(place)
    slurm.wait_for(lambda: list(place.path.glob("state/doctor-*/pilot/jobs/*/log.txt")), "a job")
    # Whatever is killed besides, the lease is over then.
    (lease,) = slurm.run("squeue", "-h", "-o", "%l", "-p", "harvest").stdout.split()
    assert lease == "10:00"
    process.send_signal(signum)
    process.communicate(timeout=500)
    nothing_left(slurm, place)


@pytest.mark.slow
def test_a_lease_without_gpus_is_reported_in_the_harvesters_words(
    slurm: Cluster, place: Site
) -> None:
    """At once, and no file system is blamed. Here the site's TaskProlog takes them away."""
    conf = Path(slurm.environ["SLURM_CONF"])
    before = conf.read_text()
    prolog = conf.with_name("taskprolog")
    prolog.write_text("#!/bin/sh\necho unset CUDA_VISIBLE_DEVICES\n")
    prolog.chmod(0o755)
    conf.write_text(f"{before}TaskProlog={prolog}\n")
    slurm.run("scontrol", "reconfigure")
    try:
        out, err = probing(place).communicate(timeout=500)
    finally:
        conf.write_text(before)
        slurm.run("scontrol", "reconfigure")
    said = [each for each in json.loads(out)["findings"] if each["name"] == "probe"]
    assert (said[-1]["verdict"], len(said)) == ("wrong", 3), (said, err)
    assert "the harvester says: " in said[-1]["says"]
    assert "has no GPUs: give --slots" in said[-1]["says"]
    nothing_left(slurm, place)
