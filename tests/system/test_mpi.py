"""Launchers of MPI as the command of a training: ``mpirun`` of Open MPI, ``mpiexec`` of MPICH.

The ranks are below the supervisor, so what it says reaches each of them; docs/site.md has the
commands.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster, free_ports
from test_pilot import over, submit
from test_pilot_ends import requeued
from test_suspendable import Batch

TRAIN = Path(__file__).parent / "train.py"


@pytest.fixture(params=["openmpi", pytest.param("mpich", marks=pytest.mark.slow)])
def mpirun(request: pytest.FixtureRequest) -> list[str]:
    """Two ranks of this node, as the page has it."""
    page = (REPOSITORY / "docs" / "site.md").read_text()
    name = {"openmpi": "mpirun", "mpich": "mpiexec"}[request.param]
    program = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.hydra"}[request.param]
    found = re.search(rf"^{name} (-.*) sh ranks.sh$", page, re.M)
    assert found
    return [program, *shlex.split(found[1].replace("{gpus}", "2"))]


def ranks(place: Site, port: int) -> list[str]:
    """The script of the page, that makes torch's variables of those of MPI."""
    page = (REPOSITORY / "docs" / "site.md").read_text()
    found = re.search(r"^```text\n(# ranks.sh\n.*?)^```", page, re.M | re.S)
    assert found
    path = place.path / "ranks.sh"
    path.write_text(found[1].replace("29500", str(port)).replace("train.py", f"{TRAIN} $RUN"))
    return ["sh", str(path)]


@pytest.mark.slow
def test_a_training_of_mpirun_in_a_pilot_is_suspended_and_goes_on(
    slurm: Cluster, place: Site, mpirun: list[str]
) -> None:
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    environ = {"OMP_NUM_THREADS": "1", "RUN": str(run)}
    command = [*mpirun, *ranks(place, free_ports(1)[0])]
    place.write_jobs({"name": "only", "command": command, "gpus": 2, "env": environ})
    job = submit(place, nodes=2)
    wait_for((run / "where").exists, "the gate")
    place.run_until_done("suspend", str(place.pilot), "only")
    wait_for(lambda: "is suspended" in place.run("why", str(place.pilot), "only").out, "suspension")
    assert place.run("resume", str(place.pilot), "only").code == 0
    only = over(slurm, place, job)["only"]
    assert (only["state"], only["suspends"], only["lost_steps"]) == ("completed", 1, 0)
    log = place.run("logs", str(place.pilot), "only").out
    assert log.count("trained to step 12 on 2") == 1
    # It did not begin anew, for then it would have waited at the gate.
    assert not (run / "gate").exists()


def test_a_suspendable_script_of_mpirun_is_preempted_and_goes_on(
    slurm: Cluster, place: Site, mpirun: list[str]
) -> None:
    batch = Batch(slurm, place)
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    words = shlex.join([*mpirun, *ranks(place, free_ports(1)[0])])
    script = place.path / "train.sh"
    script.write_text(f"export RUN={run}\n{words} && echo over\n")
    batch.submit(["sh", str(script)], "--partition=harvest", "--nodelist=n2", "--gres=gpu:2")
    wait_for((run / "where").exists, "the gate")
    batch.preempt("n2")
    requeued(slurm, batch.id)
    batch.wait_is("COMPLETED")
    assert batch.output().count("trained to step 12 on 2") == 1
    assert batch.output().count("over\n") == 1
    assert not (run / "gate").exists()
