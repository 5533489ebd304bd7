"""Launchers of MPI as the command of a training: ``mpirun``, ``mpiexec``, ``srun --mpi``.

The ranks are below the supervisor, or marked by it, so what it says reaches each of them;
docs/site.md has the commands.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster
from test_pilot import over, submit
from test_pilot_ends import requeued
from test_suspendable import Batch

TRAIN = Path(__file__).parent / "train.py"
TRAIN_MPI = Path(__file__).parent / "train_mpi.py"


@pytest.fixture(params=["openmpi", pytest.param("mpich", marks=pytest.mark.slow)])
def mpirun(request: pytest.FixtureRequest) -> list[str]:
    """Two ranks of this node, as the page has it."""
    page = (REPOSITORY / "docs" / "site.md").read_text()
    name = {"openmpi": "mpirun", "mpich": "mpiexec"}[request.param]
    program = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.hydra"}[request.param]
    found = re.search(rf"^{name} (-.*) sh ranks.sh$", page, re.M)
    assert found
    if shutil.which(program) is None:
        # `make test` installs it; what another release's root has is tests/system/in-release's.
        pytest.skip(f"no {program} in this root")
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
    command = [*mpirun, *ranks(place, free_port())]
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


@pytest.mark.slow
def test_a_suspendable_script_of_mpirun_is_preempted_and_goes_on(
    slurm: Cluster, place: Site, mpirun: list[str]
) -> None:
    batch = Batch(slurm, place)
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    words = shlex.join([*mpirun, *ranks(place, free_port())])
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


@pytest.fixture(scope="session")
def mpi4py(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package lies; it is fetched if it can be."""
    place = tmp_path_factory.mktemp("mpi4py")
    words = ("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), "mpi4py")
    said = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if said.returncode:
        pytest.fail(f"no mpi4py: {said.stderr.strip().splitlines()[-1]}")
    return place


def library(name: str) -> Path:
    """Where the loader finds one of the machine's libraries."""
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^\s*{re.escape(name)} .*=> (.*)$", known, re.M)
    if found is None:
        pytest.fail(f"no {name}, which make test-slow installs")
    return Path(found[1])


@pytest.mark.slow
@pytest.mark.parametrize(("way", "nodes"), [("pmi2", 2), ("pmix", 1)])
def test_a_suspendable_script_of_srun_with_mpi_is_preempted_and_goes_on(
    slurm: Cluster, place: Site, mpi4py: Path, way: str, nodes: int
) -> None:
    """MPICH speaks PMI-2 with Slurm, and Open MPI PMIx, of which two nodes cannot share a /tmp."""
    batch = Batch(slurm, place)
    run, code = place.path / "run", place.path / "mpi"
    slurm.as_user("mkdir", str(run))
    shutil.copytree(mpi4py, code)
    code.chmod(0o755)
    paths = {"PYTHONPATH": f"{code}:$PYTHONPATH"}
    if way == "pmi2":
        # As mpi4py calls the library, which Debian has under another name.
        (code / "libmpi.so.12").symlink_to(library("libmpich.so.12"))
        paths |= {"LD_LIBRARY_PATH": f"{code}:$LD_LIBRARY_PATH", "MPI4PY_MPIABI": "mpich"}
    else:
        library("libmpi.so.40")
        # What slurmd itself loads, when it begins.
        library("libpmix.so")
    lines = [f"export {name}={value}" for name, value in paths.items()]
    lines.append(f"srun --mpi={way} --ntasks=2 {slurm.python} {TRAIN_MPI} {run} && echo over")
    script = place.path / "train.sh"
    script.write_text("\n".join([*lines, ""]))
    options = (f"--nodes={nodes}", "--ntasks=2", "--exclude=n3,n4", "--gres=gpu:2")
    batch.submit(["sh", str(script)], "--partition=harvest", *options)
    wait_for((run / "where").exists, "the gate")
    batch.preempt("n1")
    requeued(slurm, batch.id)
    batch.wait_is("COMPLETED")
    assert batch.output().count("trained to step 12 on 2") == 1
    assert batch.output().count("MPI counts 2") == 1
    assert batch.output().count("over\n") == 1
    # It did not begin anew, for then it would have waited at the gate.
    assert not (run / "gate").exists()
    (job,) = place.document("status", f"job-{batch.id}")["jobs"]
    assert (job["suspends"], job["lost_steps"]) == (1, 0)


@pytest.mark.slow
def test_a_script_whose_mpirun_has_lost_its_ranks_to_a_preemption_is_not_done(
    slurm: Cluster, place: Site
) -> None:
    """On several nodes they are below daemons that Slurm ends at once: it begins anew."""
    batch = Batch(slurm, place)
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    words = shlex.join(["mpirun.openmpi", "-n", "2", *ranks(place, free_port())])
    script = place.path / "train.sh"
    script.write_text(f"export RUN={run}\n{words}\necho over\n")
    options = ("--nodes=2", "--ntasks=2", "--exclude=n3,n4", "--gres=gpu:2")
    batch.submit(["sh", str(script)], "--partition=harvest", *options)
    wait_for((run / "where").exists, "the gate")
    batch.preempt("n1")
    requeued(slurm, batch.id)
    (run / "gate").touch()
    batch.wait_is("COMPLETED")
    assert batch.output().count("trained to step 12 on 2") == 1
    assert batch.output().count("over\n") == 1
