"""What dies or disobeys under a live manager: jobs go on from their last checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest
from site_of_test import Site, wait_for


def start(site: Site, *jobs: dict[str, Any], gpus: int = 4) -> subprocess.Popen[str]:
    site.write_jobs(*jobs)
    return site.start("run", str(site.jobs), "--gpus", str(gpus), "--dir", str(site.pilot))


def end(site: Site, manager: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """Wait for the manager, and what became of each job."""
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    document = site.document("status", str(site.pilot))
    return {job["name"]: job for job in document["jobs"]}


def supervisor_of(site: Site, name: str) -> psutil.Process:
    """The parent of a counter."""
    return psutil.Process(site.steps(name)[-1].pid).parent()


@pytest.mark.cases(2)
@pytest.mark.parametrize("victim", ["rank", "supervisor", "both"])
def test_a_killed_process_costs_no_more_than_since_the_checkpoint(site: Site, victim: str) -> None:
    hit = site.counter("hit", steps=80, gated=True)
    manager = start(site, hit, site.counter("bystander", steps=60))
    wait_for(lambda: len(site.steps("hit")) >= 12, "twelve steps")
    supervisor, rank = supervisor_of(site, "hit"), site.steps("hit")[-1].pid
    if victim in {"supervisor", "both"}:
        supervisor.kill()
    if victim in {"rank", "both"}:
        os.kill(rank, signal.SIGKILL)
    site.open("hit")
    jobs = end(site, manager)
    assert (jobs["hit"]["attempts"], jobs["bystander"]["attempts"]) == (2, 1)
    assert jobs["hit"]["lost_steps"] <= 5
    site.check_account({"hit": 80, "bystander": 60})


def test_a_job_that_ignores_the_signal_is_killed_in_time_and_not_asked_again(site: Site) -> None:
    """It is promoted when the first ends, does not answer, and goes on from its checkpoint."""
    manager = start(
        site,
        site.counter("first", steps=30, gated=True, gpus={"min": 1, "max": 4, "optimal": 2}),
        site.counter(
            "deaf", steps=150, deaf=True, gated=True, gpus={"min": 1, "max": 4, "optimal": 3},
            suspend_timeout_s=0.5,
        ),
    )  # fmt: skip
    wait_for(lambda: site.steps("deaf"), "the first step")
    site.open("first")
    wait_for(lambda: {step.attempt for step in site.steps("deaf")} == {1, 2}, "its next attempt")
    site.open("deaf")
    jobs = end(site, manager)
    assert (jobs["deaf"]["state"], jobs["deaf"]["attempts"]) == ("completed", 2)
    assert (jobs["deaf"]["suspends"], len(jobs["deaf"]["segments"])) == (0, 2)
    site.check_account({"first": 30, "deaf": 150})


def test_a_manager_and_a_supervisor_both_killed(site: Site) -> None:
    manager = start(site, site.counter("hit", steps=80, gated=True))
    wait_for(lambda: len(site.steps("hit")) >= 12, "twelve steps")
    supervisor = supervisor_of(site, "hit")
    manager.kill()
    manager.communicate()
    supervisor.kill()
    site.open("hit")
    document = site.document("run", "--resume", str(site.pilot))
    assert document["jobs"][0]["state"] == "completed"
    site.check_account({"hit": 80})


def test_a_job_that_ends_while_no_manager_runs_is_not_run_again(site: Site) -> None:
    alone = site.counter("alone", steps=30, gated=True)
    manager = start(site, alone, site.counter("late", after=["alone"]))
    wait_for(lambda: site.steps("alone"), "the first step")
    manager.kill()
    manager.communicate()
    site.open("alone")
    wait_for(lambda: not site.left_behind(), "the job's end")
    document = site.document("run", "--resume", str(site.pilot))
    assert [(job["state"], job["attempts"]) for job in document["jobs"]] == [("completed", 1)] * 2
    site.check_account({"alone": 30, "late": 40})


def test_a_cancelled_job_stays_cancelled_when_the_manager_dies(site: Site) -> None:
    manager = start(site, site.counter("gone", gated=True), site.counter("other", steps=60))
    wait_for(lambda: site.steps("gone"), "the first step")
    assert site.run("cancel", str(site.pilot), "gone").code == 0
    manager.kill()
    manager.communicate()
    document = site.document("run", "--resume", str(site.pilot))
    assert [job["state"] for job in document["jobs"]] == ["cancelled", "completed"]
    site.check_account({"other": 60})


@pytest.mark.parametrize("times", [3])
def test_a_manager_that_is_killed_again_and_again(site: Site, times: int) -> None:
    totals = {"a": 80, "b": 60, "c": 50}
    site.write_jobs(
        site.counter("a", steps=80, gated=True, gpus={"min": 1, "max": 3, "optimal": 2}),
        site.counter("b", steps=60, gpus={"min": 1, "max": 4, "optimal": 3}),
        site.counter("c", steps=50, after=["a"]),
    )
    manager = site.start("run", str(site.jobs), "--gpus", "4", "--dir", str(site.pilot))
    for number in range(1, times + 1):
        wait_for(lambda number=number: len(site.steps("a")) >= 8 * number, "more steps")
        manager.kill()
        manager.communicate()
        manager = site.start("run", "--resume", str(site.pilot))
    site.open("a")
    assert set(end(site, manager)) == set(totals)
    site.check_account(totals)


def test_a_disk_that_is_full_for_a_while_loses_no_job(site: Site) -> None:
    """The attempt's directory cannot be made; the job waits and runs when there is room."""
    first = site.counter("first", steps=60, gated=True)
    manager = start(site, first, site.counter("second"), gpus=1)
    wait_for(lambda: site.steps("first"), "the first step")
    # As root and as a user alike: a plain file where the job's directory is to be.
    blocked = site.pilot / "jobs" / "2"
    blocked.write_text("")
    site.open("first")
    wait_for(lambda: "retried" in site.run("why", str(site.pilot), "second").out, "the refusal")
    blocked.unlink()
    jobs = end(site, manager)
    assert jobs["second"]["state"] == "completed"
    site.check_account({"first": 60, "second": 40})


def test_a_manager_that_cannot_write_says_where(site: Site) -> None:
    """No file may grow, for root neither; a full disk is met in the same place."""
    end(site, start(site, site.counter("only", steps=5)))
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", sys.executable, "-m", "hpcext"]
    finished = subprocess.run(
        [*limited, "run", "--resume", str(site.pilot)],
        env=site.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = f"hpcext: {site.pilot / 'manager.json'}: File too large\n"
    assert (finished.returncode, finished.stderr) == (1, expected)
    assert site.run("run", "--resume", str(site.pilot)).code == 0


def test_a_journal_that_is_damaged_is_left_alone(site: Site) -> None:
    manager = start(site, site.counter("only", steps=5))
    end(site, manager)
    journal = site.pilot / "journal.jsonl"
    damaged = journal.read_bytes().replace(b'"type":"ended"', b'"type":"enXed"', 1)
    journal.write_bytes(damaged)
    finished = site.run("run", "--resume", str(site.pilot))
    assert (finished.code, "is damaged" in finished.err) == (3, True), finished
    assert finished.err.count("\n") == 1
    assert journal.read_bytes() == damaged


def test_a_pilot_that_went_away(site: Site) -> None:
    manager = start(site, site.counter("only", steps=5))
    end(site, manager)
    shutil.rmtree(site.pilot)
    assert site.run("status", str(site.pilot)).code == 3
