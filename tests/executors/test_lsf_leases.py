"""Leases of a harvester and a scripted LSF: what was stopped, and what LSF would begin again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_lease_book import NAME, Harvester

from hpcext import documents
from hpcext.batch import runner
from hpcext.core.errors import BatchError
from hpcext.core.facts import NodeJoined, NodeLost
from hpcext.executors import lease_book
from hpcext.executors.lease import Lease
from hpcext.launch import agent

QUEUE = """QUEUE: p
PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV
 10   20  Open:Active       -    -    -    -     0     0     0     0     0    0
USERS: all
HOSTS:  all
"""


class ScriptedLsf:
    """Answers commands; leases wait until :meth:`begin`, and one that is killed ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: dict[int, dict[str, str]] = {}
        self.killed: list[int] = []
        self.refuses_to_kill = False
        monkeypatch.setattr(runner, "run", self)
        monkeypatch.setattr(runner, "everything_said", lambda *_, **__: "")
        monkeypatch.setattr("shutil.which", lambda _: None)

    def __call__(self, argv: Sequence[str], **_: Any) -> str:
        if argv[0] == "lsid":
            return "IBM Spectrum LSF Standard 10.1.0.15, May 13 2025\n"
        if argv[0] == "bqueues":
            return QUEUE
        if argv[0] == "bhosts":
            columns = "HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV"
            return f"{columns}\nn1 ok - 8 {self._used()} {self._used()} 0 0 0\n"
        if argv[0] == "bjobs":
            assert argv[argv.index("-J") + 1] == NAME
            return json.dumps({"COMMAND": "bjobs", "RECORDS": list(self.jobs.values())})
        if argv[0] == "bkill":
            self.killed += map(int, argv[1:])
            if self.refuses_to_kill:
                raise BatchError("Job <1>: Job has already finished", exit_code=255)
            return ""
        number = len(self.jobs) + 1
        said = argv[argv.index("-Jd") + 1]
        self.jobs[number] = {"JOBID": str(number), "STAT": "PEND", "JOB_DESCRIPTION": said}
        return f"Job <{number}> is submitted to queue <p>.\n"

    def _used(self) -> int:
        return 8 * any(job["STAT"] in {"RUN", "SSUSP"} for job in self.jobs.values())

    def begin(self, lease: Lease) -> None:
        """It runs, and its agent is there."""
        assert lease.job_id is not None
        self.jobs[lease.job_id] |= {"STAT": "RUN", "EXEC_HOST": "8*n1", "RUN_TIME": "1 second(s)"}
        self.jobs[lease.job_id] |= {"RUNTIMELIMIT": "60.0/n1"}
        document = {"schema": agent.AGENT, "devices": ["0", "1"]}
        documents.write_json(lease.directory / agent.AGENT_FILE, document)


@pytest.fixture
def lsf(monkeypatch: pytest.MonkeyPatch) -> ScriptedLsf:
    return ScriptedLsf(monkeypatch)


@pytest.fixture
def one(tmp_path: Path, lsf: ScriptedLsf) -> Harvester:
    """A harvester that has a lease."""
    harvester = Harvester(tmp_path, system="lsf", logical=True)
    harvester.cycle(2)
    (lease,) = harvester.book.leases.values()
    lsf.begin(lease)
    harvester.cycle()
    assert {type(fact) for fact in harvester.took()} == {NodeJoined}
    return harvester


def only(one: Harvester) -> Lease:
    (lease,) = one.book.leases.values()
    return lease


def test_what_leaves_is_not_killed(one: Harvester, lsf: ScriptedLsf) -> None:
    """An agent that has heard of it says so; its job is over when all has left."""
    lsf.jobs[1]["STAT"] = "SSUSP"
    (only(one).directory / agent.LEAVING_FILE).touch()
    one.cycle()
    stopped_at = only(one).stopped_at
    assert stopped_at is not None
    only(one).stopped_at = stopped_at - lease_book.HEARD_S - 1
    one.cycle()
    assert lsf.killed == []
    lsf.jobs[1]["STAT"] = "DONE"
    one.cycle()
    assert isinstance(one.took()[-1], NodeLost)
    assert not one.book.leases


@pytest.mark.parametrize(
    ("says", "patience_s"),
    [(False, lease_book.HEARD_S), (True, lease_book.STOPPED_S)],
    ids=["has not heard", "does not come to an end"],
)
def test_what_does_not_leave_is_killed(
    one: Harvester, lsf: ScriptedLsf, says: bool, patience_s: float
) -> None:
    """And is gone when LSF says that it has ended, not before."""
    lsf.jobs[1]["STAT"] = "SSUSP"
    if says:
        (only(one).directory / agent.LEAVING_FILE).touch()
    one.cycle()
    stopped_at = only(one).stopped_at
    assert stopped_at is not None
    assert lsf.killed == []
    only(one).stopped_at = stopped_at - patience_s - 1
    lsf.refuses_to_kill = True
    one.cycle()
    assert lsf.killed == [1]
    assert not any(isinstance(fact, NodeLost) for fact in one.took())
    lsf.jobs[1]["STAT"] = "EXIT"
    one.cycle()
    assert [type(fact) for fact in one.took()][-1] is NodeLost


def test_what_went_on_was_not_stopped(one: Harvester, lsf: ScriptedLsf) -> None:
    lsf.jobs[1]["STAT"] = "SSUSP"
    one.cycle()
    lsf.jobs[1]["STAT"] = "RUN"
    one.cycle()
    assert only(one).stopped_at is None
    assert lsf.killed == []


def test_what_is_to_begin_again_is_gone(one: Harvester, lsf: ScriptedLsf) -> None:
    """brequeue, or a lost host: what ran there has ended."""
    lsf.jobs[1]["STAT"] = "PEND"
    one.cycle()
    assert lsf.killed == [1]
    assert isinstance(one.took()[-1], NodeLost)
    # And killed again, if LSF did not hear it.
    one.cycle()
    assert lsf.killed[:2] == [1, 1]
