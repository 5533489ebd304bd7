"""A job that saves nothing, in a pilot where there is no CRIU: it stays in memory meanwhile."""

from __future__ import annotations

import signal
from typing import Any

import psutil
import pytest
from nvidia_machine import Machine
from site_of_test import Site, wait_for
from test_transparent_run import ON_A_GPU, begin, finish, job, lines, steps
from train_saving_nothing import digest


@pytest.fixture(autouse=True)
def _no_criu(site: Site) -> None:
    programs = site.path / "programs"
    programs.mkdir()
    text = "#!/bin/sh\n# A stand-in of criu, for tests.\necho Version: 3.17.1\n"
    (programs / "criu").write_text(text)
    (programs / "criu").chmod(0o755)
    site.environ["PATH"] = f"{programs}:{site.environ['PATH']}"


def suspend(site: Site, number: int = 1) -> list[int]:
    """Suspend the job; the steps that it has done."""
    assert site.run("suspend", "p", "loop", "--wait").out.splitlines()[-1] == "loop is suspended"
    assert job(site)["suspends"] == number
    return steps(site)


def kept(site: Site) -> psutil.Process:
    """The process of the suspended command, from what its job says of it."""
    (note,) = [each for each in job(site)["notes"] if "stays in the memory" in each]
    process = psutil.Process(int(note.partition("process ")[2].partition(",")[0]))
    assert process.status() == psutil.STATUS_STOPPED
    return process


def all_done(site: Site, row: dict[str, Any], attempts: int) -> None:
    """Check that each step was done once, and what is said of the job."""
    done = steps(site)
    assert done == list(range(len(done)))
    assert lines(site)[-1] == f"end {len(done)} {digest(len(done))}"
    assert (row["state"], row["attempts"]) == ("completed", attempts)
    assert row["suspends"] == attempts - 1


def test_a_loop_that_saves_nothing_stays_in_memory_and_no_step_is_lost(site: Site) -> None:
    manager = begin(site)
    for number in (1, 2):
        stood = suspend(site, number)
        kept(site)
        site.run("resume", "p", "loop")
        wait_for(lambda stood=stood: len(steps(site)) > len(stood) + 3, "further steps")
    all_done(site, finish(site, manager), 3)


def test_one_that_is_cancelled_meanwhile_leaves_the_memory(site: Site) -> None:
    manager = begin(site)
    suspend(site)
    process = kept(site)
    site.run("cancel", "p", "loop")
    process.wait(240)
    assert manager.wait(240) == 1
    assert job(site)["state"] == "cancelled"


@pytest.mark.cases(1)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_it_stays_when_its_manager_ends_and_goes_on_under_the_next(site: Site, signum: int) -> None:
    manager = begin(site)
    if signum == signal.SIGKILL:
        suspend(site)
    manager.send_signal(signum)
    manager.wait(240)
    stood = steps(site)
    process = kept(site)
    again = site.start("run", "--resume", "p")
    if signum == signal.SIGKILL:
        wait_for(lambda: site.run("resume", "p", "loop").code == 0, "the manager")
    wait_for(lambda: len(steps(site)) > len(stood) + 3, "further steps")
    assert process.status() != psutil.STATUS_STOPPED
    all_done(site, finish(site, again), 2)
    assert not process.is_running()


def test_what_gives_way_on_one_gpu_stays_and_comes_back(machine: Machine, site: Site) -> None:
    site.environ |= {"LD_LIBRARY_PATH": str(machine.path), "CUDA_VISIBLE_DEVICES": "0"}
    manager = begin(site, ON_A_GPU)
    site.run("suspend", "p", "loop", "--wait")
    assert machine.on_gpus() == []
    kept(site)
    site.run("resume", "p", "loop")
    wait_for(lambda: machine.on_gpus() == ["0"], "its return")
    row = finish(site, manager)
    done = steps(site)
    assert done == list(range(len(done)))
    assert (row["state"], row["attempts"], row["suspends"]) == ("completed", 2, 1)


def test_one_whose_memory_was_taken_begins_anew_and_that_is_said(site: Site) -> None:
    manager = begin(site)
    suspend(site)
    kept(site).kill()
    site.run("resume", "p", "loop")
    wait_for(lambda: steps(site).count(0) == 2, "another beginning")
    row = finish(site, manager)
    assert row["attempts"] == 2
    (note,) = [each for each in row["notes"] if "begins anew" in each]
    assert "its processes stayed in memory, and were killed" in note
    assert "s of work are lost" in note
