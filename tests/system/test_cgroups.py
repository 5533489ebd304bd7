"""A Slurm that confines jobs by cgroups, as most sites have it: GPUs, memory, cores, processes.

The main suites run on such a one by ``make test-slurm CGROUPS=yes``; here is what only it shows.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from site_of_test import Site, wait_for
from slurm_cluster import CGROUPS, CONTROLLERS, GPUS, Cluster, cluster
from test_pilot import begun, over, submit
from test_suspendable import Batch

pytestmark = pytest.mark.skipif(
    not all((CGROUPS / name / "release_agent").exists() for name in CONTROLLERS),
    reason="no cgroups of version 1 here",
)

# No driver has these devices: EPERM is the word of the cgroup, ENXIO that of the kernel after it.
LOOK = """
import errno, json, os, sys, time
devices, out, gate = sys.argv[1:]
may = []
for index in range({gpus}):
    try:
        os.open(f"{{devices}}/gpu{{index}}", os.O_RDWR)
    except OSError as error:
        if error.errno != errno.EPERM:
            may.append(index)
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
cores = sorted(os.sched_getaffinity(0))
with open(out + ".new", "w") as file:
    json.dump({{"may": may, "visible": visible, "cores": cores}}, file)
os.rename(out + ".new", out)
while not os.path.exists(gate):
    time.sleep(0.05)
"""

CORES = (f"--cpus-per-task={min(2, os.cpu_count() or 1)}",)

HOG = """
import sys, time
held = bytearray(900 * 2**20)
for at in range(0, len(held), 4096):
    held[at] = 1
time.sleep(60)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """With as few cores as this machine has, so that they are confined, too."""
    with cluster(cgroups=True, cpus=os.cpu_count() or 1) as one:
        yield one


def looks(slurm: Cluster, place: Site, name: str, gpus: int) -> dict[str, Any]:
    """A job that says what it may do, and is there until the gate is open."""
    path = place.path / "look.py"
    path.write_text(LOOK.format(gpus=GPUS))
    words = (str(slurm.root / "dev"), str(place.path / name), str(place.path / "gate"))
    return {"name": name, "command": [place.python, str(path), *words], "gpus": gpus}


def said(place: Site, name: str) -> dict[str, Any]:
    path = place.path / name
    wait_for(path.exists, name)
    return dict(json.loads(path.read_text()))


def test_jobs_of_a_pilot_can_open_their_own_gpus_alone(slurm: Cluster, place: Site) -> None:
    """By the kernel's word, and frameworks count them from 0; each has its core."""
    place.write_jobs(looks(slurm, place, "one", 2), looks(slurm, place, "two", 3))
    job = submit(place, "--nodelist=n1", *CORES, nodes=1)
    one, two = said(place, "one"), said(place, "two")
    assert (len(one["may"]), len(two["may"])) == (2, 3)
    assert not set(one["may"]) & set(two["may"])
    assert (one["visible"], two["visible"]) == ("0,1", "0,1,2")
    assert not set(one["cores"]) & set(two["cores"])

    def held() -> dict[str, list[str]]:
        jobs = place.document("status", str(place.pilot))["jobs"]
        return {each["name"]: each["segments"][-1]["gpus"] for each in jobs}

    # A supervisor has said it soon after its training has begun.
    wait_for(lambda: all(held().values()), "the GPUs of both")
    # What hpcext shows is what the kernel allows.
    for name, facts in (("one", one), ("two", two)):
        assert held()[name] == [f"n1:{index}" for index in facts["may"]]
    (place.path / "gate").touch()
    assert {each["state"] for each in over(slurm, place, job).values()} == {"completed"}


def test_who_needs_more_memory_than_its_step_has_fails_alone(slurm: Cluster, place: Site) -> None:
    hog = place.path / "hog.py"
    hog.write_text(HOG)
    place.write_jobs(
        {"name": "hog", "command": [place.python, str(hog)], "gpus": 1, "retries": 0},
        place.counter("beside", gated=True, gpus=1),
    )
    job = submit(place, "--nodelist=n1", "--mem=1000", *CORES, nodes=1)
    begun(place, "beside")
    wait_for(lambda: "failed" in place.run("why", str(place.pilot), "hog").out, "its end")
    assert "out of memory" in place.run("why", str(place.pilot), "hog").out
    place.open("beside")
    going = {"RUNNING", "COMPLETING"}
    slurm.wait_for(lambda: slurm.job(job)["JobState"] not in going, "the end of the pilot")
    jobs = {each["name"]: each for each in place.document("status", str(place.pilot))["jobs"]}
    assert (jobs["beside"]["state"], jobs["beside"]["attempts"]) == ("completed", 1)


@pytest.mark.cases(1)
@pytest.mark.parametrize("victim", ["shell", "all"])
def test_nothing_runs_on_when_the_shell_of_a_suspendable_job_is_killed(
    slurm: Cluster, place: Site, victim: str
) -> None:
    """The shell alone, and with it all of ours: supervisor and manager."""
    batch = Batch(slurm, place)
    batch.submit(place.counter("only", gated=True)["command"], "--gres=gpu:1")
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    training = psutil.Process(place.steps("only")[-1].pid)
    shell = next(
        each for each in training.parents() if each.parent().name().startswith("slurmstepd")
    )
    ours = [shell, *(each for each in shell.children(recursive=True) if each != training)]
    for process in ours if victim == "all" else [shell]:
        os.kill(process.pid, signal.SIGKILL)
    batch.wait_is("FAILED")
    wait_for(lambda: not training.is_running(), "the end of the training")


def test_a_killed_supervisor_takes_its_step_along_and_is_tried_again(
    slurm: Cluster, place: Site
) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus=1))
    job = submit(place, *CORES, nodes=1)
    begun(place, "only")
    first = psutil.Process(place.steps("only")[-1].pid)
    supervisor = json.loads((place.pilot / "jobs/1/attempt-0001/supervisor.json").read_text())
    os.kill(supervisor["pid"], signal.SIGKILL)
    wait_for((place.pilot / "jobs/1/attempt-0002/report.json").exists, "another attempt")
    # Nobody may reap it in a container.
    assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE
    place.open("only")
    only = over(slurm, place, job)["only"]
    assert (only["state"], only["attempts"]) == ("completed", 2)
