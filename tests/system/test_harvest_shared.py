"""A harvester on a real Slurm beside small jobs: a ticket does not keep a node's GPUs idle."""

from __future__ import annotations

import subprocess

from site_of_test import Site
from slurm_cluster import NODES, Cluster
from test_harvest import ended, harvest, jobs_of, leases, nothing_left
from test_pilot import begun

NAMES = ("one", "two", "three", "four")


def small(slurm: Cluster, *words: str) -> int:
    """Submit a job of one CPU, as tickets are, in the site's ordinary partition; its id."""
    more = ["--cpus-per-task=1", "--output=/dev/null", "--parsable", "--wrap=sleep 600"]
    said = slurm.run("sbatch", *more, *words)
    assert said.returncode == 0, said
    return int(said.stdout)


def whole_nodes(place: Site) -> subprocess.Popen[str]:
    """Start a harvester of as many trainers as there are nodes, each for all GPUs of one."""
    one = {"min": 1, "max": 1}
    place.write_jobs(*(place.counter(name, gated=True, nodes=one, gpus=6) for name in NAMES))
    return harvest(place)


def test_the_gpus_beside_a_small_job_are_harvested(slurm: Cluster, place: Site) -> None:
    """And the next small job begins beside the lease: nobody is preempted for it."""
    first = small(slurm, "--nodelist=n1")
    slurm.wait_for(lambda: slurm.job(first)["JobState"] == "RUNNING", "the small job")
    process = whole_nodes(place)
    begun(place, *NAMES)
    there = leases(slurm)
    assert set(there) == set(NODES)
    # All GPUs, and not all of what else there is.
    facts = slurm.job(there["n1"])
    # Its name differs by release.
    assert "gres/gpu=6" in (facts.get("AllocTRES") or facts["TRES"])
    assert facts["NumCPUs"] == "22"
    second = small(slurm)
    slurm.wait_for(lambda: slurm.job(second)["JobState"] == "RUNNING", "another small job")
    assert slurm.job(second)["NodeList"] == "n1"
    assert leases(slurm) == there
    for name in NAMES:
        place.open(name)
    ended(process)
    jobs = jobs_of(place)
    assert {job["state"] for job in jobs.values()} == {"completed"}
    assert {job["suspends"] for job in jobs.values()} == {0}
    assert {slurm.job(job)["JobState"] for job in (first, second)} == {"RUNNING"}
    assert {slurm.job(job)["Restarts"] for job in (first, second)} == {"0"}
    for name in NAMES:
        place.check_account({name: 40})
    slurm.run("scancel", str(first), str(second))
    nothing_left(slurm, place)


def test_a_node_is_not_leased_if_others_use_its_gpus_or_half_of_it(
    slurm: Cluster, place: Site
) -> None:
    others = [small(slurm, "--nodelist=n1", "--gres=gpu:1")]
    others.append(small(slurm, "--nodelist=n2", "--cpus-per-task=12"))
    for job in others:
        slurm.wait_for(lambda job=job: slurm.job(job)["JobState"] == "RUNNING", "a job")  # type: ignore[misc]
    process = whole_nodes(place)
    slurm.wait_for(lambda: set(leases(slurm)) == {"n3", "n4"}, "leases of the other nodes")
    # They are all that is idle, and the others come when their jobs are over.
    slurm.run("scancel", *map(str, others))
    begun(place, *NAMES)
    assert set(leases(slurm)) == set(NODES)
    for name in NAMES:
        place.open(name)
    ended(process)
    nothing_left(slurm, place)
