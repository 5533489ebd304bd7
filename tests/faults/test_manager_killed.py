"""SIGKILL of the manager at every kind of journal record: no job lost, none run twice."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for

DYING = str(Path(__file__).parent / "dying.py")
WHEN = ("before", "after", "acted")
QUICK = {
    ("Began", "before"),
    ("Started", "acted"),
    ("Ended", "before"),
    ("Submitted", "after"),
    ("Registered", "acted"),
    ("Release", "after"),
    ("Resize", "acted"),
    ("Drain", "before"),
}
"""Of the kinds of records and the instants of death; the others are in the slow tests."""
STEPS = {"first": 40, "second": 40, "third": 40, "last": 10}


def deaths(*facts: str) -> list[Any]:
    """Each fact and each instant."""
    return [
        pytest.param(fact, when, marks=() if (fact, when) in QUICK else pytest.mark.slow)
        for fact, when in itertools.product(facts, WHEN)
    ]


@pytest.fixture
def busy(site: Site) -> Site:
    """Four jobs on four slots: a primary, a secondary to promote, one that waits, a dependent."""
    site.write_jobs(
        site.counter("first", gpus={"min": 1, "max": 3, "optimal": 2}),
        site.counter("second", gpus={"min": 1, "max": 4, "optimal": 3}),
        site.counter("third", gpus={"min": 1, "max": 2, "optimal": 1}),
        site.counter("last", steps=10, after=["first", "third"]),
    )
    return site


def finish(site: Site) -> None:
    """Go on with the pilot, and judge by what the jobs wrote."""
    document = site.document("run", "--resume", str(site.pilot))
    assert {job["name"]: job["state"] for job in document["jobs"]} == dict.fromkeys(
        STEPS, "completed"
    ), [job["why"] for job in document["jobs"]]
    site.check_account(STEPS)


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("fact", "when"),
    deaths("Began", "Submitted", "Decided", "Started", "Registered", "Progressed", "Ended"),
)
def test_killed_at_a_record_of_what_happened(busy: Site, fact: str, when: str) -> None:
    args = ("run", str(busy.jobs), "--gpus", "4", "--dir", str(busy.pilot))
    killed = busy.run(*args, python=(DYING, fact, when))
    assert killed.code == -signal.SIGKILL, killed
    finish(busy)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_the_journal_is_compacted(busy: Site, when: str) -> None:
    args = ("run", str(busy.jobs), "--gpus", "4", "--dir", str(busy.pilot))
    killed = busy.run(*args, python=(DYING, "compact", when))
    assert killed.code == -signal.SIGKILL, killed
    finish(busy)


def begin_dying(site: Site, fact: str, when: str) -> subprocess.Popen[str]:
    """A manager that dies at the first record of a fact, with the first job's session up."""
    site.write_jobs(
        site.counter("first", gated=True, gpus={"min": 1, "max": 3, "optimal": 2}),
        site.counter("second", steps=40, gpus={"min": 1, "max": 4, "optimal": 3}),
        site.counter("third", steps=40, gpus={"min": 1, "max": 2, "optimal": 1}),
        site.counter("last", steps=10, after=["first", "third"]),
    )
    # Begun by an ordinary one, because every pilot begins with Submitted.
    manager = site.start("run", str(site.jobs), "--gpus", "4", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("first"), "the first step")
    manager.kill()
    manager.communicate()
    manager = site.start("run", "--resume", str(site.pilot), python=(DYING, fact, when))
    facts, journal = site.pilot / "manager.json", site.pilot / "journal.jsonl"
    wait_for(lambda: json.loads(facts.read_text())["pid"] == manager.pid, "the manager")
    wait_for(lambda: '"type":"registered","job":"1"' in journal.read_text(), "a session")
    return manager


def ask(site: Site, manager: subprocess.Popen[str], *words: str) -> None:
    """Ask for what the manager dies of; whoever asks is told, in one line."""
    asked = site.run(words[0], str(site.pilot), *words[1:])
    assert asked.code in {0, 3}, asked
    assert asked.code == 0 or "ended before it answered" in asked.err
    assert manager.wait() == -signal.SIGKILL
    manager.communicate()


REQUESTS = {
    "Hold": ("suspend", "first"),
    "Release": ("resume", "last"),
    "Resize": ("resize", "first", "1"),
    "Drain": ("drain",),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize(("fact", "when"), deaths(*REQUESTS))
def test_killed_at_a_record_of_a_request(site: Site, fact: str, when: str) -> None:
    """The request is in the journal or still in the spool: it is carried out either way."""
    manager = begin_dying(site, fact, when)
    if fact == "Release":
        site.run_until_done("suspend", str(site.pilot), "last")
    ask(site, manager, *REQUESTS[fact])
    if fact in {"Hold", "Resize"}:
        again = site.start("run", "--resume", str(site.pilot))
        if fact == "Hold":
            site.run_until_done("resume", str(site.pilot), "first")
        wait_for(lambda: len(list(site.pilot.glob("jobs/1/attempt-*"))) > 1, "the next attempt")
        site.open("first")
        again.communicate()
    site.open("first")
    if fact == "Resize":
        finish(site)
        assert len(site.steps("first")[-1].gpus) == 1
        return
    site.run("run", "--resume", str(site.pilot))  # Drained, if the request was in the spool.
    finish(site)


@pytest.mark.cases(2)
@pytest.mark.parametrize("when", WHEN)
def test_killed_at_the_record_of_a_submission(site: Site, when: str) -> None:
    """The jobs are there once, whether or not their sender was told."""
    manager = begin_dying(site, "Submitted", when)
    site.write_jobs(site.counter("late", steps=10, after=["first"]))
    ask(site, manager, "submit", str(site.jobs))
    site.open("first")
    document = site.document("run", "--resume", str(site.pilot))
    names = [job["name"] for job in document["jobs"]]
    assert names == [*STEPS, "late"]
    assert {job["state"] for job in document["jobs"]} == {"completed"}
    site.check_account({**STEPS, "late": 10})


@pytest.mark.cases(2)
@pytest.mark.parametrize("when", WHEN)
def test_killed_at_the_record_of_a_cancellation(site: Site, when: str) -> None:
    """What is cancelled stays cancelled, and so does what needs it."""
    ask(site, begin_dying(site, "Cancel", when), "cancel", "first")
    document = site.document("run", "--resume", str(site.pilot))
    states = {job["name"]: job["state"] for job in document["jobs"]}
    assert (states["first"], states["last"]) == ("cancelled", "cancelled")
    assert (states["second"], states["third"]) == ("completed", "completed")
    site.check_account({"second": 40, "third": 40})
