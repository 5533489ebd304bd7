"""A Slurm on which credentials are good for long: what is requeued begins before they expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from site_of_test import Site
from slurm_cluster import Cluster, cluster
from test_pilot import again, begun, over, submit
from test_pilot_ends import ONE, requeued

CONFIGURATION = "AuthInfo=socket={root}/run/munge.socket,cred_expire=3600"
"""A job that is not brought forward waits for an hour."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster(CONFIGURATION) as one:
        yield one


def make_place(slurm: Cluster, path: Path) -> Site:
    slurm.as_user("mkdir", str(path))
    return Site(path, python=str(slurm.python), environ=slurm.user_environ(), user=slurm.user)


@pytest.mark.slow
def test_another_manager_of_the_user_has_a_preempted_pilot_begin_again(
    slurm: Cluster, tmp_path: Path
) -> None:
    """Not what is no pilot: that may wait for reasons of its own."""
    home = slurm.home / tmp_path.name
    place = make_place(slurm, home)
    place.write_jobs(place.counter("only", gated=True, gpus=ONE))
    job = submit(place, "--nodelist=n1", nodes=1, words=("--requeue",))
    beside = make_place(slurm, home / "beside")
    beside.environ["XDG_STATE_HOME"] = place.environ["XDG_STATE_HOME"]
    beside.write_jobs(beside.counter("other", gated=True, gpus=ONE))
    stays = submit(beside, "--nodelist=n2", nodes=1)
    plain = slurm.as_user(
        "sbatch", "--parsable", "--requeue", "--nodelist=n3", "--exclusive", "--output=/dev/null",
        "--wrap=sleep 3600",
    ).stdout.strip()  # fmt: skip
    begun(place, "only")
    begun(beside, "other")
    slurm.wait_for(lambda: slurm.job(plain)["JobState"] == "RUNNING", "the plain job")
    urgent = ("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
    for node in ("n1", "n3"):
        assert slurm.run(*urgent, f"--nodelist={node}").returncode == 0
    slurm.wait_for(lambda: slurm.job(plain)["Restarts"] == "1", "its preemption")
    requeued(slurm, job)
    again(place, "1", 2)
    assert slurm.job(plain)["JobState"] == "PENDING"
    assert slurm.job(plain)["Reason"] == "BeginTime"
    place.open("only")
    jobs = over(slurm, place, job)
    assert (jobs["only"]["state"], jobs["only"]["lost_steps"]) == ("completed", 0)
    beside.open("other")
    over(slurm, beside, stays)
    slurm.run("scancel", plain)
