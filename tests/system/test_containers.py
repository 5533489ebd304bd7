"""Containers by the key of a job, and as the command of a training, as docs/site.md has it.

Apptainer is installed by the test, where it can be had. Debian's sid has it: ``in-release 26.05
pytest -m slow tests/system/test_containers.py``. A pid namespace, which some containers have, can
be had everywhere.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from only_training import preempted_it_goes_on, suspended_and_resumed
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster
from test_pilot import submit
from test_suspendable import Batch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def apptainer() -> str:
    """The command; its package is installed if it is not here."""
    if shutil.which("apptainer") is None:
        words = ("apt-get", "install", "-qq", "-y", "--no-install-recommends", "apptainer")
        said = subprocess.run(words, capture_output=True, text=True, check=False)
        if said.returncode:
            pytest.skip(f"no Apptainer can be had here: {said.stderr.strip().splitlines()[-1]}")
    return "apptainer"


def image_in(slurm: Cluster, place: Site) -> tuple[Path, list[str]]:
    """An image that is a directory, and what has to be bound into it."""
    image = place.path / "image"
    for name in ("etc", "proc", "sys", "dev", "tmp", "var/tmp", "home", "usr"):
        (image / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    (image / "etc" / "of-the-image").touch()
    # Nobody but its user need read it.
    subprocess.run(["chown", "-R", f"{slurm.user}:", str(image)], check=True)
    libraries = Path(pytest.__file__).parents[1]
    return image, [str(each) for each in ("/usr", slurm.root, REPOSITORY, libraries)]


def inside(slurm: Cluster, place: Site, apptainer: str, *options: str) -> list[str]:
    """A counter in a container; what it needs is bound into it."""
    image, bound = image_in(slurm, place)
    binds = ",".join(bound)
    counter = shlex.join(place.counter("only", gated=True)["command"])
    # That of the outside stays there.
    own = f"LD_LIBRARY_PATH={slurm.root}/lib"
    script = f"test -e /etc/of-the-image && exec env {own} {counter}"
    return [apptainer, "exec", *options, "--bind", binds, str(image), "sh", "-c", script]


@pytest.mark.parametrize("options", [(), ("--pid",)], ids=["plain", "pid"])
@pytest.mark.parametrize("kind", ["suspendable", "pilot"])
def test_preempted_a_training_in_a_container_goes_on(
    slurm: Cluster, place: Site, apptainer: str, kind: str, options: tuple[str, ...]
) -> None:
    """In a pilot its user suspends and resumes it, too, before that."""
    batch = Batch(slurm, place)
    command = inside(slurm, place, apptainer, *options)
    if kind == "pilot":
        place.write_jobs({**place.counter("only", gated=True, gpus=1), "command": command})
        where = ("--partition=harvest", "--nodelist=n1")
        batch.id = submit(place, *where, nodes=1, words=("--requeue",))
    else:
        script = place.path / "train.sh"
        script.write_text(f"exec {shlex.join(command)}\n")
        where = ("--partition=harvest", "--nodelist=n1", "--gres=gpu:1")
        batch.submit(["sh", str(script)], *where)
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    if kind == "pilot":
        suspended_and_resumed(place)
    preempted_it_goes_on(slurm, place, batch)


@pytest.mark.usefixtures("apptainer")
def test_preempted_a_suspendable_command_with_an_image_goes_on(slurm: Cluster, place: Site) -> None:
    _, bound = image_in(slurm, place)
    batch = Batch(slurm, place)
    counter = shlex.join(place.counter("only", gated=True)["command"])
    own = f"LD_LIBRARY_PATH={slurm.root}/lib"
    command = ["sh", "-c", f"test -e /etc/of-the-image && exec env {own} {counter}"]
    options = ("--partition=harvest", "--nodelist=n1", "--gres=gpu:1")
    # Apptainer's own variable, as many sites have it.
    script = (
        f"#!/bin/sh\nexport APPTAINER_BIND={','.join(bound)}\n"
        f"exec hpcext suspendable --container image -- {shlex.join(command)}\n"
    )
    batch.id = int(batch.sbatch(*options, script=script).stdout)
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    preempted_it_goes_on(slurm, place, batch)


@pytest.mark.usefixtures("apptainer")
def test_preempted_a_job_with_an_image_goes_on(slurm: Cluster, place: Site) -> None:
    """In a pilot; its user suspends and resumes it before."""
    image, bound = image_in(slurm, place)
    job = place.counter("only", gated=True, gpus=1)
    # That of the outside is not there.
    env = {**job["env"], "LD_LIBRARY_PATH": f"{slurm.root}/lib"}
    place.write_jobs({**job, "env": env, "container": {"image": str(image), "binds": bound}})
    batch = Batch(slurm, place)
    where = ("--partition=harvest", "--nodelist=n1")
    batch.id = submit(place, *where, nodes=1, words=("--requeue",))
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    suspended_and_resumed(place)
    preempted_it_goes_on(slurm, place, batch)


@pytest.mark.parametrize("after", [True, False])
def test_a_preempted_training_in_a_pid_namespace_goes_on(
    slurm: Cluster, place: Site, after: bool
) -> None:
    """What the script has after it runs once, when the training is done."""
    batch = Batch(slurm, place)
    container = "unshare --user --map-root-user --pid --fork --mount-proc"
    counter = shlex.join(place.counter("only", gated=True)["command"])
    script = place.path / "train.sh"
    script.write_text(f"{container} sh -c {shlex.quote(counter + '; echo inner')}; echo outer\n")
    if not after:
        script.write_text(f"exec {container} {counter}\n")
    options = ("--partition=harvest", "--nodelist=n1", "--gres=gpu:1")
    batch.submit(["sh", str(script)], *options)
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    preempted_it_goes_on(slurm, place, batch)
    assert (batch.output().count("inner\n"), batch.output().count("outer\n")) == (after, after)
