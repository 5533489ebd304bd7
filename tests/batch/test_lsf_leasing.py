"""What is asked of LSF for a lease, and what it says of one: bsub(1), bjobs(1)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcext.batch import runner
from hpcext.batch.leasing import Held, Idle, LeaseSubmission, Other
from hpcext.batch.lsf.engine import LsfEngine, LsfRelease
from hpcext.batch.lsf.jobs import jobs_command, parse_jobs
from hpcext.batch.lsf.leasing import LsfLeasing, held_of, options, others_of
from hpcext.core.errors import BatchError
from hpcext.launch import agent

IBM = LsfEngine(LsfRelease("IBM Spectrum LSF", "10.1.0.15", "c"), frozenset(), {})
NODE = Idle("h1", True, False, 4, "", 16, 0)
ORDER = LeaseSubmission(
    "hpcext-a", 7, "killable", ("-P", "ABC"), NODE, 4, 90, Path("/shared/leases/7")
)


def said(**fields: str) -> str:
    """Records as bjobs has them: all values are strings, and what is not there is empty."""
    empty = dict.fromkeys(("STAT", "RUN_TIME", "RUNTIMELIMIT", "TIME_LEFT", "EXEC_HOST"), "")
    record = {"JOBID": "3", **empty, "JOB_DESCRIPTION": "7", "PEND_REASON": "", **fields}
    return json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [record]})


def test_a_lease_has_all_of_its_host_and_its_own_minutes() -> None:
    words = options(ORDER, IBM)
    assert words[:8] == ["-J", "hpcext-a", "-Jd", "7 h1", "-q", "killable", "-P", "ABC"]
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    assert (pairs["-m"], pairs["-n"], pairs["-R"]) == ("h1", "16", "span[hosts=1]")
    assert pairs["-gpu"] == "num=4/host:mode=shared:j_exclusive=yes"
    # Not scaled by the speed of the host that it was submitted on.
    assert pairs["-W"] == "90/h1"


def test_jobs_with_gpus_must_be_rerunnable_to_be_preempted() -> None:
    """GPU enhancements of 10.1 Fix Pack 7; others are never begun again."""
    slots = options(ORDER._replace(gpus=0), IBM)
    assert "-rn" not in options(ORDER, IBM)
    assert "-rn" in slots
    assert "-gpu" not in slots


def test_a_host_without_a_limit_of_slots() -> None:
    words = options(ORDER._replace(node=NODE._replace(cpus=0)), IBM)
    assert words[words.index("-n") + 1] == "1"


def test_a_lease_that_runs() -> None:
    text = said(STAT="RUN", EXEC_HOST="16*h1", RUN_TIME="60 second(s)", RUNTIMELIMIT="90.0/h1")
    assert held_of(parse_jobs(text), 1000.0) == (Held(3, "7", "running", "h1", 6340.0, ""),)


@pytest.mark.parametrize(
    ("stat", "state", "stopped"),
    [
        ("PEND", "pending", False), ("PSUSP", "pending", False), ("SSUSP", "suspended", True),
        ("USUSP", "suspended", True), ("DONE", "completed", False), ("EXIT", "failed", False),
        # The host does not answer: what runs there may go on.
        ("UNKWN", "unknown", False), ("ZOMBI", "unknown", False),
    ],
)  # fmt: skip
def test_states(stat: str, state: str, stopped: bool) -> None:
    (held,) = held_of(parse_jobs(said(STAT=stat, EXEC_HOST="4*h1:4*h2")), 0.0)
    assert (held.state, held.stopped, held.end_s) == (state, stopped, None)


@pytest.fixture
def bjobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a bjobs into the path that says something on stderr and fails."""

    def put(text: str) -> None:
        path = tmp_path / "bjobs"
        path.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 255\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


@pytest.mark.parametrize("text", ["Job <hpcext-a> is not found", "No unfinished job found"])
def test_no_lease_is_an_answer(bjobs: Any, text: str) -> None:
    bjobs(text)
    assert LsfLeasing().held("hpcext-a") == ()


def test_no_answer_is_not_an_empty_answer(bjobs: Any) -> None:
    """Leases that nobody could ask for are not gone."""
    bjobs("LSF is down. Please wait ...")
    with pytest.raises(BatchError, match="LSF is down"):
        LsfLeasing().held("hpcext-a")


def test_a_lease_is_held_once(tmp_path: Path) -> None:
    """What LSF begins again, on another host perhaps, ends at once; so does what is over."""
    directory = tmp_path / "a lease's"
    directory.mkdir()
    script = LsfLeasing().script("echo held", directory)

    def run() -> str:
        ended = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True)
        return ended.stdout

    assert run() == ""
    (directory / agent.LEASE_FILE).touch()
    assert run() == "held\n"
    (directory / agent.AGENT_FILE).touch()
    assert run() == ""


def test_leases_of_others_are_told_from_other_jobs() -> None:
    """Anybody may name and describe a job as he likes."""
    name = "hpcext-a-20261124-120000-ab12"

    def others(**fields: str) -> tuple[Other, ...]:
        text = said(**{"JOB_NAME": name, "USER": "bob", "JOB_DESCRIPTION": "7 h1", **fields})
        return tuple(others_of(parse_jobs(text), 1000.0).values())

    ours = Other(name, "bob", "h2", True, asked_s=7.0)
    assert others(STAT="RUN", EXEC_HOST="16*h2") == (ours,)
    ran = others(STAT="RUN", EXEC_HOST="16*h2", RUN_TIME="90 second(s)")
    assert ran == (ours._replace(since_s=910.0),)
    waits = Other(name, "bob", "h1", False, asked_s=7.0)
    assert others(STAT="PEND", RUN_TIME="0 second(s)") == (waits,)
    # Nobody has asked tomorrow.
    assert others(STAT="PEND", JOB_DESCRIPTION="2000 h1") == (waits._replace(asked_s=1000.0),)
    # One of an older release, which did not say where it waits.
    assert others(STAT="PSUSP", JOB_DESCRIPTION="7") == (waits._replace(node=""),)
    # On a host that does not answer it may be still.
    assert others(STAT="UNKWN", EXEC_HOST="16*h2") == (ours,)
    assert others(STAT="EXIT", EXEC_HOST="16*h2") == ()
    assert others(STAT="RUN", JOB_NAME="hpcext-a") == ()
    assert others(STAT="RUN", JOB_DESCRIPTION="my job") == ()


def test_a_job_that_waits_for_hosts_is_not_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    def due(**fields: str) -> bool:
        monkeypatch.setattr(runner, "run", lambda *_, **__: said(**fields))
        return LsfLeasing().due()

    assert due(STAT="PEND", JOB_NAME="wide")
    assert not due(STAT="PSUSP", JOB_NAME="held")
    assert not due(STAT="RUN", JOB_NAME="wide")
    assert not due(STAT="PEND", JOB_NAME="hpcext-a-20261124-120000-ab12")


def test_what_is_said_of_our_leases_is_their_number() -> None:
    (held,) = held_of(parse_jobs(said(STAT="RUN", JOB_DESCRIPTION="7 h1")), 0.0)
    assert held.comment == "7"


def test_no_answer_about_others_is_not_an_empty_answer(bjobs: Any) -> None:
    bjobs("LSF is down. Please wait ...")
    with pytest.raises(BatchError, match="LSF is down"):
        LsfLeasing().others("killable", "")
    bjobs("No unfinished job found in queue <killable>")
    assert LsfLeasing().others("killable", "") == ()


def test_leases_are_asked_for_by_their_name() -> None:
    words = jobs_command("json", ["jobid", "stat"], ["-J", "hpcext-a"])
    assert words == ["bjobs", "-o", "jobid stat", "-json", "-J", "hpcext-a"]
