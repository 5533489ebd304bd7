"""Preemption by quality of service, as most sites have it; by partition: all other tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster, cluster
from test_pilot import again, begun, submit
from test_pilot_ends import ONE, done_after_grace, requeued, saved_when_told, steps_done

CONFIGURATION = """PreemptType=preempt/qos
AccountingStorageEnforce=associations,qos
{send_user_signal}"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster(CONFIGURATION) as one:
        yield one


@pytest.fixture
def place(slurm: Cluster, tmp_path: Path) -> Site:
    path = slurm.home / tmp_path.name
    slurm.as_user("mkdir", str(path))
    return Site(path, python=str(slurm.python), environ=slurm.user_environ(), user=slurm.user)


@pytest.mark.slow
def test_a_pilot_that_a_better_qos_preempts_goes_on(slurm: Cluster, place: Site) -> None:
    """The signal that the user asked for comes first, then the grace; both are one suspension."""
    for words in (
        ("add", "qos", "high"),
        ("modify", "qos", "normal", "set", "preemptmode=requeue", "gracetime=10"),
        ("modify", "qos", "high", "set", "preempt=normal", "priority=100"),
        ("modify", "user", slurm.user, "set", "qos+=high", "defaultqos=normal"),
    ):
        said = slurm.run("sacctmgr", "--immediate", *words)
        assert said.returncode == 0, said
    place.write_jobs(place.counter("only", gated=True, gpus=ONE))
    options = ("--nodelist=n1", "--signal=USR2@120", "--qos=normal")
    job = submit(place, *options, nodes=1, words=("--requeue",))
    begun(place, "only")
    wait_for(lambda: steps_done(place, "only")[-1:] == [39], "all steps but the last")
    high = slurm.as_user(
        "sbatch", "--parsable", "--qos=high", "--nodelist=n1", "--exclusive", "--wrap=sleep 1"
    )
    assert high.returncode == 0, high
    requeued(slurm, job)
    again(place, "1", 2)
    place.open("only")
    done_after_grace(slurm, job)
    saved_when_told(slurm, place, job)
    assert slurm.job(high.stdout.strip())["JobState"] == "COMPLETED"
