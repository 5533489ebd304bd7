"""What LSF's commands print, as its documentation and others' programs have it.

LSF is proprietary, so nothing here was printed by one of ours; each output says where it is from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpcext import backends
from hpcext.batch import lsf, runner
from hpcext.batch.jobs import End
from hpcext.batch.lsf import idle as lsf_idle
from hpcext.batch.lsf import jobs as lsf_jobs
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.engine import LsfEngine, LsfRelease
from hpcext.batch.lsf.inside import LsfJob
from hpcext.core.errors import BatchError, InputError

IBM = LsfEngine(LsfRelease("IBM Spectrum LSF", "10.1.0.15", "c"), frozenset(), {})
BALSAM = """{
 "COMMAND":"bjobs",
 "JOBS":47,
 "RECORDS":[
   {"JOBID":"806290", "STAT":"RUN", "QUEUE":"batch", "PROJ_NAME":"BIP152", "PEND_TIME":"17",
    "NREQ_SLOT":"43", "RUNTIMELIMIT":"1440.0", "RUN_TIME":"16038 second(s)"}
 ]
}"""
"""Printed on Summit; argonne-lcf/balsam, balsam/platform/scheduler/lsf_sched.py."""

ANOTHER = """{
  "COMMAND":"bjobs",
  "JOBS":1,
  "RECORDS":[
    {"JOBID":"22005", "STAT":"DONE", "EXIT_CODE":"", "FINISH_TIME":"Dec 28 19:56 L",
     "RUN_TIME":"00:00:01", "RUNTIMELIMIT":"00:10:00"}
  ]
}"""
"""With LSB_HMS_TIME_FORMAT; TheRoddyWMS/BatchEuphoria, LSFJobManagerSpec.groovy."""

UNKNOWN = """{"COMMAND":"bjobs","JOBS":1,"RECORDS":[
  {"JOBID":"99","ERROR":"Job <99> is not found"}
]}"""
"""As the contract in the issue has it: exit code 0."""


def test_a_job_that_runs() -> None:
    fields = lsf_jobs.parse_jobs(BALSAM)[806290]
    assert lsf.parse_end(fields, 1000.0) == End("running", 1000.0 + 86_400 - 16_038)


def test_times_as_hours_minutes_and_seconds() -> None:
    fields = lsf_jobs.parse_jobs(ANOTHER)[22005]
    assert lsf.parse_end(fields, 1000.0) == End("completed", 1000.0 + 599)


def test_an_unknown_job_is_left_out() -> None:
    assert lsf_jobs.parse_jobs(UNKNOWN) == {}


@pytest.mark.parametrize(
    ("fields", "end_s"),
    [
        # bjobs(1), -hms: with ABS_RUNLIMIT the host is named.
        ({"RUNTIMELIMIT": "3.0/hostA", "RUN_TIME": "60 second(s)"}, 120.0),
        # No limit.
        ({"RUNTIMELIMIT": "", "RUN_TIME": "60 second(s)"}, None),
        # bjobs(1), -WL: L is a run limit; E and X are estimates, which end nothing.
        ({"RUNTIMELIMIT": "", "TIME_LEFT": "1:30 L"}, 5400.0),
        ({"RUNTIMELIMIT": "", "TIME_LEFT": "1:30 E"}, None),
        ({"RUNTIMELIMIT": "", "TIME_LEFT": "0:0 X"}, None),
        ({"RUNTIMELIMIT": "never", "RUN_TIME": "soon"}, None),
    ],
)
def test_when_a_job_ends(fields: dict[str, str], end_s: float | None) -> None:
    assert lsf.parse_end({"STAT": "RUN", **fields}, 0.0) == End("running", end_s)


def test_another_engine_writes_a_dash_for_nothing() -> None:
    text = json.dumps({"RECORDS": [{"JOBID": "7", "STAT": "PEND", "RUNTIMELIMIT": "-"}]})
    assert lsf_jobs.parse_jobs(text)[7]["RUNTIMELIMIT"] == ""


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"RECORDS": 3}', '{"RECORDS": [{}]}', "{" * 9999]
)
def test_no_jobs(text: str) -> None:
    with pytest.raises(BatchError, match="not a list of jobs"):
        lsf_jobs.parse_jobs(text)


def test_states_are_those_of_bjobs() -> None:
    """bjobs(1), "Job status"; UNKWN and ZOMBI are no ends."""
    said = {each: lsf.state(each) for each in ("PEND", "USUSP", "RUN", "EXIT", "UNKWN", "ZOMBI")}
    assert list(said.values()) == [
        "pending", "suspended", "running", "failed", "unknown", "unknown"
    ]  # fmt: skip


def test_a_job_id() -> None:
    """bsub(1); what stands before is from mskcc/beagle_cli, tests of its LSF client."""
    waiting = "Cannot connect to LSF. Please wait ...\n"
    said = "Job <12345678> is submitted to default queue <normal>.\n"
    assert lsf.parse_job_id(waiting + said) == 12345678
    with pytest.raises(BatchError, match="not a job id"):
        lsf.parse_job_id("Request aborted by esub. Job not submitted.")


def test_jobs_after_a_wait() -> None:
    """The same client's: mbatchd was busy, and bjobs says so first."""
    assert 806290 in lsf_jobs.parse_jobs("Cannot connect to LSF. Please wait ...\n" + BALSAM)


def test_hosts() -> None:
    """Fields and states: bhosts(1), and "Host status" for unavail and unreach."""
    rows = [("hostA", "ok"), ("hostB", "closed_Adm"), ("hostC", "unavail")]
    records = [{"HOST_NAME": name, "STATUS": state} for name, state in rows]
    found = lsf_idle.parse_hosts(json.dumps({"COMMAND": "bhosts", "HOSTS": 3, "RECORDS": records}))
    assert [name for name, load in found.items() if load.status in lsf_idle.GONE] == ["hostC"]
    with pytest.raises(BatchError, match="not a list of hosts"):
        lsf_idle.parse_hosts("LSF is down.")


def test_a_forgotten_job_may_be_an_error_or_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Galaxy (galaxyproject/galaxy#7007) has it on stderr with nothing on stdout."""

    def fails(argv: list[str], **_more: object) -> str:
        raise BatchError("bjobs failed", stderr="Job <99> is not found", exit_code=255)

    monkeypatch.setattr(lsf_probe, "known", lambda: IBM)
    monkeypatch.setattr(runner, "run", fails)
    assert lsf.Commands().states([99]) == {}
    monkeypatch.setattr(runner, "run", lambda argv, **_more: UNKNOWN)
    assert lsf.Commands().states([99]) == {}
    with pytest.raises(BatchError, match="does not know job 99"):
        lsf.Commands().end(99)


PAST = """
Accounting information about jobs that are:
  - submitted by all users.
  - accounted on all projects.
------------------------------------------------------------------------------

Job <98>, User <user1>, Project <default>, Status <EXIT>, Queue <priority>, Com
                     mand <sleep 1000>
Thu Nov 25 10:57:00: Submitted from host <hostA>, CWD <$HOME>;
Thu Nov 25 10:58:00: Completed <exit>; TERM_OWNER: job killed by owner.
------------------------------------------------------------------------------

Job <99>, Job Name <a name>, User <user1>, Project <default>, Status <DO
                     NE>, Queue <priority>, Command <true>
Thu Nov 25 10:58:00: Completed <done>.
"""
"""After the example of bacct(1); none was recorded."""


def test_a_job_that_mbatchd_has_forgotten_is_looked_up_in_accounting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(argv: list[str], **_more: object) -> str:
        if argv[0] == "bacct":
            assert argv == ["bacct", "-l", "99"]
            return PAST
        return UNKNOWN

    monkeypatch.setattr(runner, "run", run)
    assert lsf.Commands().states([99]) == {99: "completed"}
    assert lsf.parse_past(PAST) == {98: "failed", 99: "completed"}


@pytest.mark.parametrize(
    ("stdout", "stderr"),
    [
        ("", "LSF is down. Please wait ..."),
        ("", "batch system daemon not responding ... still trying"),
        ("", ""),
        ("LSF is down.", ""),
    ],
)
def test_bjobs_that_fails_has_not_said_that_a_job_is_gone(
    monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str
) -> None:
    def fails(argv: list[str], **_more: object) -> str:
        raise BatchError("bjobs failed", stdout=stdout, stderr=stderr, exit_code=255)

    monkeypatch.setattr(runner, "run", fails)
    with pytest.raises(BatchError):
        lsf.Commands().states([99])


def test_no_records_and_status_255_are_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So volclava 2.2 answers where there is no job."""

    def fails(argv: list[str], **_more: object) -> str:
        text = '{"COMMAND":"bjobs","JOBS":0,"RECORDS":[]}' if argv[0] == "bjobs" else ""
        raise BatchError("failed", stdout=text, stderr="", exit_code=255)

    monkeypatch.setattr(runner, "run", fails)
    assert lsf.Commands().states([99]) == {}


def test_other_errors_about_a_job_are_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    said = UNKNOWN.replace("Job <99> is not found", "Failed in an LSF library call")
    monkeypatch.setattr(runner, "run", lambda argv, **_more: said)
    assert lsf.Commands().states([99]) == {99: "unknown"}


@pytest.mark.parametrize("said", ["file", "counts", "names"])
def test_hosts_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str) -> None:
    """The variables: "Environment variables set for job execution"; n2 may come before n1."""
    for name in ("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LSB_JOBID", "7")
    (tmp_path / "hosts").write_text("n2\nn2\nn1\n")
    name, value = {
        "file": ("LSB_DJOB_HOSTFILE", str(tmp_path / "hosts")),
        "counts": ("LSB_MCPU_HOSTS", "n2 2 n1 1"),
        "names": ("LSB_HOSTS", "n2 n2 n1"),
    }[said]
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    here = LsfJob.from_environ()
    assert here is not None
    assert (here.id, here.hosts, here.indices) == (7, (("n2", 2), ("n1", 1)), (3, 4))


@pytest.mark.parametrize(
    ("here", "chosen"), [({"sbatch"}, "slurm"), ({"bsub"}, "lsf"), (set(), ""), (None, "")]
)
def test_which_batch_system(
    monkeypatch: pytest.MonkeyPatch, here: set[str] | None, chosen: str
) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda name: name if here is None or name in here else None
    )
    assert backends.choose("lsf").name == "lsf"
    if chosen:
        assert backends.choose("auto").name == chosen
    else:
        with pytest.raises(InputError, match="sbatch"):
            backends.choose("auto")
