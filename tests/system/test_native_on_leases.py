"""Trainings that know nothing of hpcext give way on leases of a real Slurm, and in its jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_harvest import ended, harvest, jobs_of, main_job, nothing_left
from test_pilot_ends import requeued
from test_suspendable import Batch
from written import whole_lines

from hpcext.launch.transparent.criu import Criu

TESTS = Path(__file__).parents[1]
SAVES_AT_SIGTERM = TESTS / "native" / "programs" / "term.sh"
COUNTING = TESTS / "launch" / "counting.py"

# An administrator gives criu the right by setcap; here criu is a script, which cannot have it.
WITH_ONE_CAPABILITY = """
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    int right = CAP_CHECKPOINT_RESTORE;

    (void)argc;
    if (syscall(SYS_capget, &header, data) != 0)
        return 71;
    data[right / 32].inheritable |= 1u << (right % 32);
    if (syscall(SYS_capset, &header, data) != 0)
        return 72;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, right, 0, 0) != 0)
        return 73;
    execv(REAL, argv);
    return 74;
}
"""


def directory(slurm: Cluster, place: Site, program: Path) -> Path:
    """One of the ordinary user, with a program that this user may read."""
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    shutil.copy(program, run)
    return run


def lines(path: Path) -> list[str]:
    return whole_lines(path)


def give_way(slurm: Cluster, place: Site, name: str) -> None:
    """Let a main job have all nodes for as long as it takes."""
    job = main_job(slurm, 4, "sleep", "600")
    wait_for(lambda: jobs_of(place)[name]["state"] == "pending", "that it gives way")
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "RUNNING", "the main job")
    slurm.run("scancel", str(job))
    wait_for(lambda: jobs_of(place)[name]["state"] == "running", "another lease")


@pytest.mark.slow
def test_what_saves_at_a_signal_gives_way_and_goes_on(slurm: Cluster, place: Site) -> None:
    """Each step is done once."""
    run = directory(slurm, place, SAVES_AT_SIGTERM)
    steps, saved = run / "own.steps", run / "saved"
    place.write_jobs(
        {
            "name": "own",
            "command": ["bash", SAVES_AT_SIGTERM.name],
            "workdir": str(run),
            "nodes": {"min": 1, "max": 1},
            "gpus": 6,
            "checkpoint": {"signal": "SIGTERM", "done": {"exit": [0], "file": "saved"}},
        }
    )
    process = harvest(place)
    wait_for(lambda: len(lines(steps)) > 5, "its steps")
    give_way(slurm, place, "own")
    went_on = int(saved.read_text())
    wait_for(lambda: int(lines(steps)[-1]) > went_on + 5, "that it goes on")
    slurm.as_user("touch", str(run / "gate"))
    ended(process)
    assert lines(steps) == [str(each) for each in range(1, len(lines(steps)) + 1)]
    job = jobs_of(place)["own"]
    assert (job["state"], job["attempts"], job["lost_s"]) == ("completed", 2, 0)
    nothing_left(slurm, place)


@pytest.fixture
def criu(slurm: Cluster, place: Site) -> None:
    """CRIU as an ordinary user may have it, first in the PATH of the place."""
    if why := Criu(os.environ).probe():
        pytest.skip(f"no CRIU that works here: {why}")
    programs = place.path / "programs"
    slurm.as_user("mkdir", str(programs))
    source, program = programs / "criu.c", programs / "criu"
    source.write_text(WITH_ONE_CAPABILITY)
    real = shutil.which("criu", path="/usr/local/sbin:/usr/sbin:/usr/bin")
    subprocess.run(["cc", f'-DREAL="{real}"', "-o", str(program), str(source)], check=True)
    subprocess.run(["setcap", "cap_checkpoint_restore+eip", str(program)], check=True)
    place.environ["PATH"] = f"{programs}:{place.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.usefixtures("criu")
def test_what_saves_nothing_gives_way_and_goes_on(slurm: Cluster, place: Site) -> None:
    """Each of its steps is done once, by its own account, which no image holds."""
    run = directory(slurm, place, COUNTING)
    place.write_jobs(
        {
            "name": "asis",
            "command": ["/usr/bin/python3", COUNTING.name, "child"],
            "workdir": str(run),
            "nodes": {"min": 1, "max": 1},
            "gpus": 6,
            "checkpoint": "transparent",
        }
    )
    process = harvest(place)

    def log() -> str:
        return "".join(file.read_text() for file in place.pilot.glob("jobs/*/log*"))

    def steps() -> list[int]:
        words = [line.split() for line in log().splitlines()]
        return [int(each[1]) for each in words if each[:1] == ["step"] and len(each) == 2]

    wait_for(lambda: len(steps()) > 20, "its steps")
    give_way(slurm, place, "asis")
    at = len(steps())
    wait_for(lambda: len(steps()) > at + 20, "that it goes on")
    slurm.as_user("touch", str(run / "stop"))
    ended(process)
    assert steps() == list(range(len(steps()))), log()
    job = jobs_of(place)["asis"]
    assert (job["state"], job["attempts"], job["lost_s"]) == ("completed", 2, 0)
    nothing_left(slurm, place)


@pytest.mark.slow
@pytest.mark.usefixtures("criu")
def test_what_saves_nothing_goes_on_when_its_job_is_requeued(slurm: Cluster, place: Site) -> None:
    """Suspended in a batch script, which asks for it by an option."""
    run = directory(slurm, place, COUNTING)
    batch = Batch(slurm, place)
    begin = f"/usr/bin/python3 {COUNTING.name} child"
    script = (
        "#!/bin/sh",
        f"export PATH={place.path}/programs:$PATH",
        f"cd {run}",
        f"exec hpcext suspendable --checkpoint transparent -- {begin}",
        "",
    )
    on = ("--partition=harvest", "--nodelist=n1", "--gres=gpu:1")
    said = batch.sbatch(*on, script="\n".join(script))
    assert said.returncode == 0, said
    batch.id = int(said.stdout)

    def steps() -> list[int]:
        words = [line.split() for line in batch.output().splitlines()]
        return [int(each[1]) for each in words if each[:1] == ["step"] and len(each) == 2]

    wait_for(lambda: len(steps()) > 20, "its steps")
    batch.preempt("n1")
    requeued(slurm, batch.id)
    at = len(steps())
    wait_for(lambda: len(steps()) > at + 20, "that it goes on")
    slurm.as_user("touch", str(run / "stop"))
    batch.wait_is("COMPLETED")
    assert steps() == list(range(len(steps()))), batch.output()
