"""Trainings that hang, in real processes: noticed, their stacks written, told, restarted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for

TRAIN = Path(__file__).with_name("train_hanging.py")


def job(how: str, **more: Any) -> dict[str, Any]:
    """A job whose steps take 10 ms, so that 0.5 s without one count as a hang."""
    command = [sys.executable, str(TRAIN), how]
    return {"name": how, "command": command, "hang_after_s": 0.5, **more}


def begin(site: Site, how: str, **more: Any) -> subprocess.Popen[str]:
    site.write_jobs(job(how, **more))
    return site.start("run", str(site.jobs), "--gpus", "1", "--name", "p")


def found(site: Site) -> dict[str, Any]:
    jobs = site.document("status", "p").get("jobs")
    return dict(jobs[0]) if jobs else {}


def end(site: Site, manager: subprocess.Popen[str]) -> None:
    site.run("cancel", "p", "1")
    manager.communicate(timeout=500)


def test_a_dead_lock_is_told_with_its_stacks_and_nothing_else_is_done(site: Site) -> None:
    manager = begin(site, "lock")
    wait_for(lambda: found(site).get("hung"), "the hang to be noticed")
    told = found(site)
    assert (told["state"], told["hangs"], told["attempts"]) == ("running", 1, 1)
    assert "seems to hang: no step for " in site.run("why", "p", "lock").out
    assert "running, hangs" in site.run("status", "p").out
    wait_for(lambda: "in take_twice" in site.run("logs", "p", "lock").out, "the stacks")
    assert "--- no step for long" in site.run("logs", "p", "lock").out
    metrics = site.run("metrics", "--print").out
    if metrics:
        assert "hpcext_hangs_total" in metrics
    end(site, manager)


@pytest.mark.slow
@pytest.mark.parametrize("may", [True, False])
def test_py_spy_looks_where_it_is_installed_and_may(site: Site, *, may: bool) -> None:
    """The real one, or one that is not permitted to."""
    real = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    assert real, "needs py-spy: make test-slow installs it"
    folder = site.path / "bin"
    folder.mkdir()
    if may:
        (folder / "py-spy").symlink_to(real)
    else:
        (folder / "py-spy").write_text("#!/bin/sh\necho no permission >&2\nexit 1\n")
        (folder / "py-spy").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    manager = begin(site, "lock", env={"PATH": path})
    # Python itself writes: File "...", line 23 in take_twice.
    said = "take_twice (train_hanging.py:" if may else "in take_twice"
    wait_for(lambda: said in site.run("logs", "p", "lock").out, "the stacks")
    assert ("in take_twice" in site.run("logs", "p", "lock").out) is not may
    end(site, manager)


def test_it_goes_on_from_its_last_checkpoint_if_its_user_wants_that(site: Site) -> None:
    manager = begin(site, "lock", hang="restart")
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    told = found(site)
    assert (told["state"], told["hangs"], told["attempts"]) == ("completed", 1, 2)
    assert [part["steps"] for part in told["segments"]][-1] == 200 - 100
    assert told["loss"]["why"].startswith("it hung: no step for ")
    assert "retried in 1 s after: it hung: no step for " in out


def test_a_stopped_training_is_named_and_goes_on_when_it_is_continued(site: Site) -> None:
    manager = begin(site, "stop")
    wait_for(lambda: (site.path / "pid").exists() and (site.path / "pid").read_text(), "its file")
    pid = int((site.path / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: found(site).get("hung"), "the hang to be noticed")
    said = f"process {pid} (python"
    wait_for(lambda: said in site.run("logs", "p", "stop").out, "the line about it")
    assert "is stopped by a signal" in site.run("logs", "p", "stop").out
    os.kill(pid, signal.SIGCONT)
    # What it was told while it was stopped it does now.
    wait_for(lambda: "train_hanging.py" in site.run("logs", "p", "stop").out, "the stacks")
    end(site, manager)


def test_what_validates_and_saves_does_not_hang(site: Site) -> None:
    manager = begin(site, "validate", hang="restart")
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    told = found(site)
    assert (told["state"], told["hangs"], told["attempts"]) == ("completed", 0, 1)


@pytest.mark.slow
def test_the_stacks_of_a_rank_that_waits_for_one_that_is_stopped_are_written(site: Site) -> None:
    words = [sys.executable, "-m", "hpcext", "launch", sys.executable]
    ranks = [*words, str(TRAIN.with_name("train_hanging_ranks.py"))]
    # A busy machine delays steps of two ranks: the silence that counts is longer here.
    site.write_jobs({"name": "two", "command": ranks, "gpus": 2, "hang_after_s": 5})
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--name", "p")
    pids = site.path / "pid-0", site.path / "pid-1"
    wait_for(lambda: all(each.exists() and each.read_text() for each in pids), "150 steps")
    first, second = (int(each.read_text()) for each in pids)
    os.kill(second, signal.SIGSTOP)
    try:
        wait_for(lambda: found(site).get("hung"), "the hang to be noticed")
        wait_for(lambda: "train_hanging_ranks.py" in site.run("logs", "p", "two").out, "stacks")
        log = site.run("logs", "p", "two").out
        assert f"process {second} (python" in log
        assert f"process {first} (" not in log
    finally:
        os.kill(second, signal.SIGCONT)
    wait_for(lambda: not found(site).get("hung"), "it to go on")
    assert found(site)["hangs"] == 1
    end(site, manager)
