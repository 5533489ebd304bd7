"""SIGKILL of the manager at every kind of journal record: no job lost, none run twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from site_of_test import Site, wait_for

DYING = str(Path(__file__).parent / "dying.py")
WHEN = ("before", "after", "acted")
STEPS = {"first": 40, "second": 40, "third": 40, "last": 10}


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
    )
    site.check_account(STEPS)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    "fact", ["Began", "Submitted", "Started", "Registered", "Progressed", "Ended"]
)
def test_killed_at_a_record_of_what_happened(busy: Site, fact: str, when: str) -> None:
    args = ("run", str(busy.jobs), "--gpus", "4", "--dir", str(busy.pilot))
    killed = busy.run(*args, python=(DYING, fact, when))
    assert killed.code == -signal.SIGKILL, killed
    finish(busy)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("fact", "verb", "undo"),
    [
        ("Hold", ["suspend", "first"], ["resume", "first"]),
        ("Release", ["resume", "last"], None),
        ("Resize", ["resize", "first", "1"], None),
        ("Drain", ["drain"], None),
        ("Submitted", ["submit"], None),
    ],
)
def test_killed_at_a_record_of_a_request(
    busy: Site, fact: str, verb: list[str], undo: list[str] | None, when: str
) -> None:
    """The request is written down or still in the spool; its sender is told that nobody answered."""
    busy.write_jobs(*(dict(site_job) for site_job in _longer(busy)))
    python = (DYING, fact if fact != "Submitted" else "none", when)
    manager = busy.start(
        "run", str(busy.jobs), "--gpus", "4", "--dir", str(busy.pilot), python=python
    )
    wait_for(lambda: busy.steps("first"), "the first step")
    wait_for(
        lambda: (
            busy.run("why", str(busy.pilot), "first").out.startswith("first is running")
            and '"registered","job":"1"'.replace('"registered"', '"type":"registered"')
            in (busy.pilot / "journal.jsonl").read_text().replace(" ", "")
        ),
        "the session of the first job",
    )
    if fact == "Release":
        assert busy.run("suspend", str(busy.pilot), "last").code == 0
    if fact == "Submitted":
        manager.kill()
        manager.wait()
        refused = busy.run("submit", str(busy.pilot), str(busy.jobs))
        assert refused.code == 3, refused
    else:
        asked = busy.run(verb[0], str(busy.pilot), *verb[1:])
        assert asked.code in {0, 3}, asked
    assert manager.wait() == -signal.SIGKILL
    manager.communicate()
    if undo:
        again = busy.start("run", "--resume", str(busy.pilot))
        wait_for(lambda: busy.run(undo[0], str(busy.pilot), *undo[1:]).code == 0, "the resume")
        again.communicate()
    if fact == "Drain":
        busy.run("run", "--resume", str(busy.pilot))
    finish(busy)


def _longer(site: Site) -> list[dict[str, object]]:
    return [
        site.counter("first", steps=40, step_s=0.05, gpus={"min": 1, "max": 3, "optimal": 2}),
        site.counter("second", steps=40, gpus={"min": 1, "max": 4, "optimal": 3}),
        site.counter("third", steps=40, gpus={"min": 1, "max": 2, "optimal": 1}),
        site.counter("last", steps=10, after=["first", "third"]),
    ]
