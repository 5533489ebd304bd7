"""A job that saves nothing, in a pilot: suspended as it is, or begun anew, as is said."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from nvidia_machine import Machine
from site_of_test import Site, wait_for
from train_saving_nothing import digest
from written import whole_lines

from hpcext.launch.transparent.criu import Criu

TRAIN = Path(__file__).with_name("train_saving_nothing.py")
ON_A_GPU = Path(__file__).parents[1] / "launch" / "counting_gpu.py"

needs_criu = pytest.mark.skipif(
    bool(why := Criu(os.environ).probe()), reason=f"no CRIU that works here: {why}"
)


def begin(site: Site, train: Path = TRAIN) -> Any:
    """Start a pilot with one such job."""
    command = [sys.executable, str(train), str(site.path / "stop")]
    job = {"name": "loop", "command": command, "workdir": str(site.path)}
    site.write_jobs({**job, "checkpoint": "transparent"})
    manager = site.start(
        "run", str(site.jobs), "--gpus", "1", "--name", "p", "--dir", str(site.pilot)
    )
    wait_for(lambda: len(steps(site)) > 3, "the first steps")
    return manager


def lines(site: Site) -> list[str]:
    path = site.pilot / "jobs" / "1" / "log.txt"
    return whole_lines(path)


def steps(site: Site) -> list[int]:
    return [int(line.split()[1]) for line in lines(site) if line.startswith("step ")]


def job(site: Site) -> dict[str, Any]:
    jobs = site.document("status", "p").get("jobs")
    return dict(jobs[0]) if jobs else {}


def finish(site: Site, manager: Any) -> dict[str, Any]:
    """Let it come to its end; what is said of it."""
    (site.path / "stop").touch()
    assert manager.wait(timeout=500) == 0
    return job(site)


@needs_criu
def test_a_loop_that_saves_nothing_is_suspended_and_resumed_and_no_step_is_lost(
    site: Site,
) -> None:
    manager = begin(site)
    said = site.run("suspend", "p", "loop", "--wait").out.splitlines()
    assert said[-1] == "loop is suspended"  # whose steps nobody knows
    stood = steps(site)
    site.run("resume", "p", "loop")
    wait_for(lambda: len(steps(site)) > len(stood) + 3, "further steps")
    row = finish(site, manager)
    done = steps(site)
    assert done == list(range(len(done)))
    assert lines(site)[-1] == f"end {len(done)} {digest(len(done))}"
    assert (row["state"], row["attempts"], row["suspends"]) == ("completed", 2, 1)


@needs_criu
@pytest.mark.slow
def test_one_with_memory_on_a_gpu_leaves_it_and_comes_back(machine: Machine, site: Site) -> None:
    manager = begin(site, ON_A_GPU)
    site.run("suspend", "p", "loop")
    wait_for(lambda: job(site).get("suspends") == 1, "the suspension")
    assert machine.on_gpus() == []
    site.run("resume", "p", "loop")
    wait_for(lambda: machine.on_gpus() == ["0"], "its return")
    row = finish(site, manager)
    done = steps(site)
    assert done == list(range(len(done)))
    assert (row["state"], row["attempts"], row["suspends"]) == ("completed", 2, 1)


@pytest.mark.slow
def test_one_that_cannot_be_suspended_as_it_is_goes_on_and_that_is_said(site: Site) -> None:
    programs = site.path / "programs"
    programs.mkdir()
    (programs / "criu").write_text(
        "#!/bin/sh\n# A stand-in of criu, for tests.\n"
        'case $1 in --version) echo "Version: 4.2.1" ;; check) ;; *) exit 9 ;; esac\n'
    )
    (programs / "criu").chmod(0o755)
    site.environ["PATH"] = f"{programs}:{site.environ['PATH']}"
    manager = begin(site)
    site.run("suspend", "p", "loop")
    wait_for(lambda: "exit code 9" in site.run("why", "p", "loop").out, "the reason")
    again = site.run("suspend", "p", "loop").err
    assert "is already to be suspended: cannot save: criu dump: exit code 9" in again
    before = len(steps(site))
    wait_for(lambda: len(steps(site)) > before + 3, "further steps")
    row = finish(site, manager)
    assert row["attempts"] == 1
    assert steps(site) == list(range(len(steps(site))))


@needs_criu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader workers", "ranks of torchrun"])
def test_all_processes_of_a_training_are_suspended_together(site: Site, kind: str) -> None:
    pytest.importorskip("torch")
    if kind == "loader workers":
        train = Path(__file__).with_name("train_loader_saving_nothing.py")
        command = [sys.executable, str(train), "3"]
    else:
        if os.geteuid() != 0:
            pytest.skip("CRIU saves connections only for root")
        train = Path(__file__).with_name("train_ranks_saving_nothing.py")
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        command = [torchrun, "--standalone", "--nproc-per-node", "2", str(train), "300"]
    site.write_jobs(
        {"name": "loop", "command": command, "checkpoint": "transparent"},
        {"name": "same", "command": command},
    )
    words = ("--gpus", "2", "--name", "p", "--dir", str(site.pilot))
    manager = site.start("run", str(site.jobs), *words)
    for number, wanted in ((1, 20), (2, 140)):
        wait_for(lambda wanted=wanted: len(steps(site)) > wanted, f"{wanted} steps")
        site.run("suspend", "p", "loop")
        wait_for(lambda number=number: job(site)["suspends"] == number, "the suspension")
        site.run("resume", "p", "loop")
    assert manager.wait(timeout=500) == 0
    assert steps(site) == list(range(300))
    same = (site.pilot / "jobs" / "2" / "log.txt").read_text().splitlines()
    assert lines(site)[-1] == same[-1]
