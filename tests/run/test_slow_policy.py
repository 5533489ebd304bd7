"""A policy that takes longer than anything may wait: nothing is lost, and nobody is left waiting.

Trainings keep the account.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from site_of_test import Site, wait_for

PROGRAM = (str(Path(__file__).with_name("slow_policy.py")),)
STEPS = {"first": 6000, "second": 6000}


@pytest.fixture
def slow(site: Site) -> Site:
    """Two jobs that train, under a policy that is asked about a third one, and does not answer."""
    site.environ["SLOW_ANSWERS"] = "1"
    gpus = {"min": 1, "max": 1}
    site.write_jobs(
        *(site.counter(name, steps=n, save_every=10_000, gpus=gpus) for name, n in STEPS.items())
    )
    return site


def begin(site: Site) -> subprocess.Popen[str]:
    """Start it, and have it asked for what it does not answer."""
    args = ("run", str(site.jobs), "--gpus", "2", "--policy", "slow", "--dir", str(site.pilot))
    manager = site.start(*args, python=PROGRAM)
    for name in STEPS:
        wait_for(lambda name=name: len(site.steps(name)) > 20, f"{name} to train")
    more = site.path / "more.toml"
    more.write_text('[[job]]\nname = "third"\ncommand = "true"\n')
    asked = site.run("submit", str(site.pilot), str(more))
    assert asked.code == 0, asked
    return manager


def decided(site: Site) -> list[dict[str, object]]:
    """The answers in the journal."""
    lines = (site.pilot / "journal.jsonl").read_text().splitlines()[1:]
    facts = (fact for line in lines for fact in json.loads(line)[1])
    return [fact for fact in facts if fact["type"] == "decided"]


def test_what_has_to_go_does_not_wait_for_a_decision(slow: Site) -> None:
    """The batch system gives 10 s; the policy would take an hour. No step is lost."""
    manager = begin(slow)
    # Requests are answered meanwhile, and say what is awaited.
    said = slow.run("why", str(slow.pilot), "third")
    assert "the policy is being asked for a decision" in said.out, said
    assert slow.run("suspend", str(slow.pilot), "second", "--wait").code == 0
    manager.send_signal(signal.SIGTERM)
    manager.communicate(timeout=500)
    assert len(decided(slow)) == 1
    document = slow.document("status", str(slow.pilot))
    assert [job["lost_steps"] for job in document["jobs"]] == [0, 0, 0]
    assert [job["suspends"] for job in document["jobs"]] == [1, 1, 0]
    assert slow.run("resume", str(slow.pilot), "second").code == 3
    # The next manager has a policy that answers, and trainings go on at the very next step.
    slow.environ["SLOW_ANSWERS"] = "1000"
    again = slow.start("run", "--resume", str(slow.pilot), python=PROGRAM)
    wait_for((slow.pilot / "manager.json").exists, "a manager")
    slow.run_until_done("resume", str(slow.pilot), "second")
    again.communicate(timeout=500)
    for name, steps in STEPS.items():
        assert [step.step for step in slow.steps(name)] == list(range(1, steps + 1))
    assert not slow.left_behind()


def test_after_the_deadline_jobs_keep_their_gpus_and_the_log_says_so(slow: Site) -> None:
    slow.environ["HPCEXT_DECISION_TIMEOUT_S"] = "10"
    manager = begin(slow)

    def said() -> bool:
        return "did not answer within 10 s" in slow.run("why", str(slow.pilot), "third").out

    wait_for(said, "why to say so")
    assert "the policy is not followed" in slow.run("status", str(slow.pilot)).out
    failure = slow.document("status", str(slow.pilot))["policy_failure"]
    assert failure == "did not answer within 10 s"
    # Who trained goes on with it; after its end the policy is asked again, and late again.
    before = [len(slow.steps(name)) for name in STEPS]
    wait_for(
        lambda: all(
            len(slow.steps(name)) > had + 20 for name, had in zip(STEPS, before, strict=True)
        ),
        "both to go on",
    )
    manager.send_signal(signal.SIGTERM)
    _, err = manager.communicate(timeout=500)
    assert "the policy did not answer within 10 s" in err
    document = slow.document("status", str(slow.pilot))
    assert [job["lost_steps"] for job in document["jobs"]] == [0, 0, 0]
    assert not slow.left_behind()


@pytest.mark.slow
def test_a_manager_that_is_killed_leaves_no_policy_behind(slow: Site) -> None:
    manager = begin(slow)
    (child,) = (
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if is_fork_of(pid, manager.pid)
    )
    manager.kill()
    manager.communicate()
    wait_for(lambda: not Path(f"/proc/{child}").exists(), "the policy's process to end")
    # Its lock is free at once: the next one goes on.
    slow.environ["SLOW_ANSWERS"] = "1000"
    ended = slow.run("run", "--resume", str(slow.pilot), python=PROGRAM)
    assert ended.code == 0, ended
    slow.check_account(STEPS, save_every=10_000)


def is_fork_of(pid: int, parent: int) -> bool:
    """Whether a process runs the same program as its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        mine, its = (Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, parent))
    except OSError:
        return False
    return int(stat[1]) == parent and mine == its
