"""Leases of a harvester and a scripted LSF: what was stopped, and what LSF would begin again."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_lease_book import NAME, Harvester

from hpcext import documents
from hpcext.batch import runner
from hpcext.core.errors import BatchError
from hpcext.core.facts import NodeJoined, NodeLost
from hpcext.harvest import lease_jobs
from hpcext.harvest.lease import Lease
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
        self.hosts = {"n1": "ok"}
        self.others: list[dict[str, str]] = []
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
            rows = (f"{host} {self.hosts[host]} - 8 {self._used(host)}" for host in self.hosts)
            return "\n".join((columns, *(f"{row} {row.split()[-1]} 0 0 0" for row in rows), ""))
        if argv[0] == "bjobs":
            of_others = argv[-4:] == ["-u", "all", "-q", "p"]
            of_all = argv[-2:] == ["-u", "all"]
            assert of_others or of_all or argv[argv.index("-J") + 1] == NAME
            # What is not there is empty.
            empty = dict.fromkeys(argv[argv.index("-o") + 1].upper().split(), "")
            jobs = self.others if of_others else [*self.jobs.values(), *self.others * of_all]
            found = [{**empty, **job} for job in jobs]
            return json.dumps({"COMMAND": "bjobs", "RECORDS": found})
        if argv[0] == "bkill":
            self.killed += map(int, argv[1:])
            if self.refuses_to_kill:
                raise BatchError("Job <1>: Job has already finished", exit_code=255)
            return ""
        number = len(self.jobs) + 1
        said = argv[argv.index("-Jd") + 1]
        self.jobs[number] = {"JOBID": str(number), "STAT": "PEND", "JOB_DESCRIPTION": said}
        return f"Job <{number}> is submitted to queue <p>.\n"

    def _used(self, host: str) -> int:
        jobs = [*self.jobs.values(), *self.others]
        there = (job for job in jobs if job.get("EXEC_HOST", "") == f"8*{host}")
        return 8 * any(job["STAT"] in {"RUN", "SSUSP"} for job in there)

    def begin(self, lease: Lease) -> None:
        """It runs, and its agent is there."""
        assert lease.job_id is not None
        host = f"8*{lease.node}"
        self.jobs[lease.job_id] |= {"STAT": "RUN", "EXEC_HOST": host, "RUN_TIME": "1 second(s)"}
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
    only(one).stopped_at = stopped_at - lease_jobs.HEARD_S - 1
    one.cycle()
    assert lsf.killed == []
    lsf.jobs[1]["STAT"] = "DONE"
    one.cycle()
    assert isinstance(one.took()[-1], NodeLost)
    assert not one.book.leases


@pytest.mark.parametrize(
    ("says", "patience_s"),
    [(False, lease_jobs.HEARD_S), (True, lease_jobs.STOPPED_S)],
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


def test_what_does_not_leave_is_killed_as_soon_where_the_clock_was_set_back(
    one: Harvester, lsf: ScriptedLsf, monkeypatch: pytest.MonkeyPatch
) -> None:
    lsf.jobs[1]["STAT"] = "SSUSP"
    one.cycle()
    now_s = only(one).stopped_at or 0.0
    monkeypatch.setattr(time, "time", lambda: now_s - 3600.0)
    one.cycle()
    assert lsf.killed == []
    monkeypatch.setattr(time, "time", lambda: now_s - 3600.0 + lease_jobs.HEARD_S)
    one.cycle()
    assert lsf.killed == [1]


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


@pytest.mark.parametrize("came_back", ["before LSF gave its job up", "after that"])
def test_a_host_that_came_back_is_leased_at_once(
    one: Harvester, lsf: ScriptedLsf, came_back: str
) -> None:
    """That its lease ended says nothing of it: it was down."""
    lsf.hosts["n1"], lsf.jobs[1]["STAT"] = "unreach", "UNKWN"
    one.cycle(2)
    if came_back == "after that":
        lsf.jobs[1]["STAT"] = "EXIT"
        one.cycle(2)
        assert not one.book.leases
    lsf.hosts["n1"], lsf.jobs[1]["STAT"] = "ok", "EXIT"
    one.cycle(3)
    assert only(one).job_id == 2


def test_a_lease_that_ends_by_itself_is_not_requested_again_at_once(
    one: Harvester, lsf: ScriptedLsf
) -> None:
    lsf.jobs[1]["STAT"] = "EXIT"
    one.cycle(4)
    assert not one.book.leases


THEIRS = "hpcext-theirs-20261124-120000-ab12"


def theirs(number: int, host: str, state: str = "RUN") -> dict[str, str]:
    """A lease of another user's harvester, as bjobs -u all has it."""
    return {
        "JOBID": str(number),
        "STAT": state,
        "USER": "bob",
        "JOB_NAME": THEIRS,
        "EXEC_HOST": f"8*{host}" if state == "RUN" else "",
        "JOB_DESCRIPTION": f"1795441398 {host}",
    }


def test_hosts_are_shared_with_the_harvester_of_another_user(
    tmp_path: Path, lsf: ScriptedLsf
) -> None:
    """By the rule that holds on Slurm: what another waits for is given back, down to our part."""
    lsf.hosts = dict.fromkeys(("n1", "n2", "n3", "n4"), "ok")
    one = Harvester(tmp_path, system="lsf", logical=True)
    one.bound, one.loss = False, lambda _: (1, 0)
    one.book = one.another()
    one.cycle(3)
    for lease in list(one.book.leases.values()):
        lsf.begin(lease)
    one.cycle(2)
    assert len(one.book.leases) == 4
    lsf.others = [theirs(90, "n2", "PEND"), theirs(91, "n3", "PEND")]
    one.cycle(3)
    assert {each.node for each in one.book.leases.values() if each.released} == {"n2", "n3"}
