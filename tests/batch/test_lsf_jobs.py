"""Jobs of an LSF by its tables, as a real engine of its line has printed them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcext.batch import lsf, runner
from hpcext.batch.jobs import End
from hpcext.batch.leasing import Idle, LeaseSubmission
from hpcext.batch.lsf import (
    engine as lsf_engine,
)
from hpcext.batch.lsf import (
    idle as lsf_idle,
)
from hpcext.batch.lsf import (
    jobs as lsf_jobs,
)
from hpcext.batch.lsf import (
    leasing as lsf_leasing,
)
from hpcext.batch.lsf import (
    probe as lsf_probe,
)
from hpcext.batch.lsf import (
    queues as lsf_queues,
)
from hpcext.batch.lsf.engine import LsfEngine, LsfRelease
from hpcext.core.errors import BatchError
from hpcext.textfiles import parse_toml

RECORDED = Path(__file__).parent / "recorded" / "volclava-2.2"
VOLCLAVA = LsfEngine(
    LsfRelease("volclava project", "2.2", "clusterD"),
    frozenset({"bsub", "bjobs", "bhosts", "bqueues", "bkill", "lsrun"}),
    {
        "bsub": frozenset({"-J", "-Jd", "-q", "-m", "-n", "-R", "-W", "-o", "-r"}),
        "bjobs": frozenset({"-a", "-l", "-w", "-o", "-json", "-J"}),
        "bhosts": frozenset({"-w", "-l", "-R"}),
        "bparams": frozenset({"-l"}),
    },
)
IBM = LsfEngine(LsfRelease("IBM Spectrum LSF", "10.1.0.15", "c"), frozenset(), {})


def said(name: str) -> str:
    return (RECORDED / name).read_text()


def at(text: str) -> float:
    return time.mktime(time.strptime(f"2026 {text}", "%Y %b %d %H:%M:%S"))


def test_recordings_say_where_they_are_from() -> None:
    origins = parse_toml(said("origins.toml"), "origins.toml")
    assert set(origins) == {path.name for path in RECORDED.iterdir()} - {"origins.toml"}


def test_states_of_a_wide_table() -> None:
    found = {
        job: lsf.state(each["STAT"])
        for job, each in lsf_jobs.parse_wide(said("bjobs-a-w.txt")).items()
    }
    assert len(found) == 33
    assert [found[each] for each in (12, 17, 22, 31, 8, 2)] == [
        "running", "unknown", "pending", "suspended", "failed", "completed",
    ]  # fmt: skip
    assert lsf_jobs.parse_wide("JOBID USER STAT\nno such thing\n7 is a number\n") == {}


@pytest.mark.parametrize("between", ["\x85", "\u2028", "\x0c", "\r"])
def test_the_name_of_a_job_is_no_row(between: str) -> None:
    text = f"JOBID USER STAT JOB_NAME\n7 me RUN a{between}8 bob EXIT b\n"
    assert list(lsf_jobs.parse_wide(text)) == [7]


@pytest.mark.parametrize(
    "parse", [lsf_jobs.parse_wide, lambda text: lsf_jobs.parse_long(text, 0.0)]
)
def test_output_that_is_not_a_table_is_not_an_answer(parse: Callable[[str], object]) -> None:
    with pytest.raises(BatchError, match="not a list of jobs"):
        parse("LSF is down. Please wait ...")


def test_a_long_form_says_all_that_is_asked_of_a_job() -> None:
    now_s = at("Nov 24 00:29:50")
    found = lsf_jobs.parse_long(said("bjobs-a-l.txt"), now_s)
    wide = lsf_jobs.parse_wide(said("bjobs-a-w.txt"))
    # A wide table has the elements of an array under one number.
    arrays = {job: each["STAT"] for job, each in found.items() if isinstance(job, str)}
    assert arrays == {"3[2]": "EXIT", "3[1]": "EXIT", "6[2]": "DONE", "6[1]": "DONE"}
    assert {job: each["STAT"] for job, each in found.items() if job not in arrays} == {
        job: each["STAT"] for job, each in wide.items() if job not in {3, 6}
    }
    assert found["3[2]"]["EXEC_HOST"] == "p1"
    limited = found[15]
    assert (limited["RUNTIMELIMIT"], limited["EXEC_HOST"]) == ("1.0", "p0")
    assert limited["RUN_TIME"] == "320 second(s)"
    assert lsf.parse_end(limited, now_s) == End("running", at("Nov 24 00:25:30"))
    assert lsf.parse_end(found[12], now_s) == End("running", None)
    assert (found[22]["EXEC_HOST"], found[22]["RUN_TIME"]) == ("", "")
    assert found[22]["PEND_REASON"] == (
        "Load information unavailable: 1 host; Job slot limit reached: 2 hosts;"
    )
    assert found[17]["EXEC_HOST"] == "p2"
    assert found[1]["EXEC_HOST"].split(":") == ["p2", "p2", "p1"]
    stopped = lsf_jobs.parse_long(said("bjobs-l-suspended.txt"), now_s)
    assert {job for job, each in stopped.items() if each["STAT"] == "USUSP"} == {12, 13}


def test_a_long_form_as_ibm_documents_it() -> None:
    """Its lines are broken after 80 columns; "Hosts and slots" of a job that has begun."""
    text = (
        "\nJob <109>, Job Name <lease>, User <user1>, Project <default>, Status <RUN>, Queue\n"
        "                     <normal>, Command <#!/bin/sh>, Job Description <17>\n"
        "Wed Dec 30 23:50:00: Submitted from host <hostb>, CWD <$HOME>, Output File </a/lea\n"
        "                     ses/17/lsf.out>, 2 Task(s);\n\n"
        " CPULIMIT                RUNLIMIT\n"
        " 480.0 min of hostA      60.0 min of hostA\n"
        "Wed Dec 30 23:55:00: Started 2 Task(s) on Host(s) <2*hostA>, Allocated 2 Slot(s) on H\n"
        "                     ost(s) <2*hostA>, Execution Home </home/user1>;\n"
    )
    # The year has passed meanwhile.
    now_s = time.mktime((2027, 1, 1, 0, 5, 0, 0, 0, -1))
    (fields,) = lsf_jobs.parse_long(text, now_s).values()
    assert fields["JOB_DESCRIPTION"] == "17"
    assert fields["OUTPUT_FILE"] == "/a/leases/17/lsf.out"
    assert (fields["EXEC_HOST"], fields["RUNTIMELIMIT"]) == ("2*hostA", "60.0")
    assert fields["RUN_TIME"] == f"{24 * 3600 + 600} second(s)"
    (held,) = lsf_leasing.held_of({109: fields}, now_s)
    assert (held.comment, held.node, held.state) == ("17", "hostA", "running")
    (held,) = lsf_leasing.held_of({109: {**fields, "JOB_DESCRIPTION": ""}}, now_s)
    assert held.comment == "17"


def test_json_with_few_fields() -> None:
    found = lsf_jobs.parse_jobs(said("bjobs-o-jobid_stat_exec_host-json.txt"))
    assert len(found) == 24
    assert (found[17]["STAT"], found[17]["EXEC_HOST"], found[22]["EXEC_HOST"]) == (
        "UNKWN",
        "p2",
        "",
    )


def test_queues_as_the_engine_prints_them() -> None:
    queues = {each.name: each for each in lsf_queues.parse_queues(said("bqueues-l.txt"))}
    assert list(queues) == ["normal", "tstp", "requeue"]
    assert queues["tstp"].controls == {"SUSPEND": "SIGTSTP"}
    assert (queues["normal"].rerunnable, queues["tstp"].rerunnable) == (False, True)
    assert queues["requeue"].requeue.split() == ["85"]
    assert (queues["normal"].priority, queues["tstp"].priority) == (30, 20)


def test_hosts_as_the_engine_prints_them() -> None:
    loads = lsf_idle.parse_hosts(said("bhosts-w.txt"))
    assert [(each.name, each.status, each.slots, each.used) for each in loads.values()] == [
        ("p0", "closed_Full", 4, 4), ("p1", "closed_Full", 4, 4), ("p2", "unavail", 4, 2),
    ]  # fmt: skip
    assert lsf_engine.parse_release(said("lsid.txt")) == VOLCLAVA.release


# What an engine lacks.


class Bjobs:
    """Answers as volclava's bjobs does: it ends with 99 at the first field that it has not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        monkeypatch.setattr(runner, "run", self)

    def __call__(self, argv: list[str], **_more: object) -> str:
        self.asked.append(argv)
        if "-l" in argv:
            return said("bjobs-a-l.txt")
        for field in argv[argv.index("-o") + 1].split():
            if field not in {"jobid", "stat", "exec_host"}:
                what = f"<{field.upper()}> in the format string is not a valid field name.\n"
                raise BatchError("bjobs failed", stderr=what, exit_code=99)
        return said("bjobs-o-jobid_stat_exec_host-json.txt")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[LsfEngine], None]:
    """Have the LSF of this machine be one, with what is kept of it in a place of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(lsf_probe, "_memory", None)
    return lambda of: lsf_probe._remember(lsf_probe._identity(), of)


def test_fields_that_are_refused_are_asked_for_once(
    engine: Callable[[LsfEngine], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine(VOLCLAVA)
    bjobs = Bjobs(monkeypatch)
    assert lsf.Commands().end(15).state == "running"
    assert bjobs.asked[-1] == ["bjobs", "-l", "-a", "15"]
    refused = lsf_probe.known().refused
    assert "run_time" in refused
    # A later command of the user's knows it, too.
    monkeypatch.setattr(lsf_probe, "_memory", None)
    before = len(bjobs.asked)
    assert lsf_probe.known().refused == refused
    lsf.Commands().end(15)
    assert [each[1] for each in bjobs.asked[before:]] == ["-l"]
    # States need no more than the engine has.
    assert lsf.Commands().states([17])[17] == "unknown"
    assert bjobs.asked[-1][1] == "-o"
    (kept,) = (tmp_path / "state" / "hpcext").glob("lsf-engine-*.json")
    assert kept.stat().st_mode & 0o077 == 0


def test_fields_that_an_engine_passes_over(
    engine: Callable[[LsfEngine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(VOLCLAVA)
    answers = {"-o": said("bjobs-o-jobid_stat_exec_host-json.txt"), "-l": said("bjobs-a-l.txt")}
    monkeypatch.setattr(runner, "run", lambda argv, **_: answers[argv[1]])
    assert lsf.Commands().end(15).end_s is not None


def test_no_json_at_all(
    engine: Callable[[LsfEngine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(VOLCLAVA._replace(options={"bjobs": frozenset({"-a", "-l", "-w"})}))
    answers = {"-w": said("bjobs-a-w.txt"), "-l": said("bjobs-a-l.txt")}
    monkeypatch.setattr(runner, "run", lambda argv, **_: answers[argv[1]])
    assert lsf.Commands().states([31])[31] == "suspended"
    assert lsf.Commands().end(15).end_s is not None


@pytest.mark.parametrize(
    ("stdout", "stderr", "answer"),
    [
        ('{"COMMAND": "bjobs", "JOBS": 0, "RECORDS": []}', "", True),
        ("", "Job <99> is not found\n", True),
        ("", "No unfinished job found\n", True),
        ("", "No job found\n", True),
        ("", "Failed in an LSF library call: LIM is down; try later\n", False),
        ("", "", False),
        ("", "Job <99> is not found\nbatch daemon not responding\n", False),
    ],
)
def test_no_jobs_is_an_answer_but_a_failure_is_not(
    engine: Callable[[LsfEngine], None],
    monkeypatch: pytest.MonkeyPatch,
    stdout: str,
    stderr: str,
    answer: bool,
) -> None:
    def fails(argv: list[str], **_more: object) -> str:
        raise BatchError("bjobs failed", stdout=stdout, stderr=stderr, exit_code=255)

    engine(IBM)
    monkeypatch.setattr(runner, "run", fails)
    if answer:
        assert lsf.Commands().states([99]) == {}
    else:
        with pytest.raises(BatchError):
            lsf.Commands().states([99])


def test_what_is_kept_is_of_these_very_commands(
    engine: Callable[[LsfEngine], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("lsid", "bjobs", "bsub"):
        (programs / name).write_text(f"#!/bin/sh\necho '{said('lsid.txt')}'\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    asked = lsf_probe.known()
    assert asked.release == VOLCLAVA.release
    lsf_probe.learn(asked, {"run_time"}, arguments=False)
    monkeypatch.setattr(lsf_probe, "_memory", None)
    assert lsf_probe.known() == asked._replace(refused=frozenset({"run_time"}), arguments=False)
    # A new release is asked anew.
    (programs / "bjobs").write_text("#!/bin/sh\n# another\n")
    assert lsf_probe.known().refused == frozenset()


def test_a_document_of_somebody_else_is_not_believed(
    engine: Callable[[LsfEngine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(VOLCLAVA)
    lsf_probe.learn(VOLCLAVA)
    path = lsf_probe._path()
    assert lsf_probe._kept() == VOLCLAVA
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)
    assert lsf_probe._kept() is None
    path.unlink()
    path.write_text('{"schema": "hpcext.lsf-engine/1", "identity": 3}')
    assert lsf_probe._kept() is None


# What bsub is asked for.

ORDER = LeaseSubmission(
    "hpcext-7", 3, "q", (), Idle("h", True, False, 2, "", 4, 0), 2, 9, Path("/l/3")
)


def test_a_lease_asks_for_what_bsub_has() -> None:
    words = lsf_leasing.options(ORDER, IBM)
    assert words[words.index("-gpu") + 1] == "num=2/host:mode=shared:j_exclusive=yes"
    assert {"-gpu", "-cwd", "-Jd"} <= set(words)
    few = lsf_leasing.options(ORDER, VOLCLAVA)
    assert not set(few) & {"-gpu", "-rn", "-cwd"}
    assert few[few.index("-Jd") + 1] == "3 h"
    assert "-gpu" not in lsf_leasing.options(ORDER, IBM, "")
    other = lsf_leasing.options(ORDER, IBM, "num={gpus}:mode=shared")
    assert other[other.index("-gpu") + 1] == "num=2:mode=shared"


def test_an_option_that_is_missing_is_named() -> None:
    usage = "bsub: invalid option -- 'g'\nUsage: bsub [-h] [-J job_name] [-q queue_name]\n"
    assert lsf_engine.unknown_options(["bsub", "-J", "a", "-gpu", "num=1"], usage) == ["-gpu"]
    # A usage that names no options at all accuses none.
    assert lsf_engine.unknown_options(["bsub", "-J", "a"], "usage: bsub command") == []


def test_a_failed_command_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bsub").write_text("#!/bin/sh\necho 'Usage: bsub [-J name]' >&2; exit 255\n")
    (tmp_path / "bsub").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(BatchError, match="bsub failed: it does not know -rn here"):
        runner.run(["bsub", "-J", "a", "-rn"])


def test_a_silent_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bjobs").write_text(
        "#!/bin/sh\necho 'ls_getmastername: LIM is down; try later' >&2\nexec sleep 600\n"
    )
    (tmp_path / "bjobs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(runner, "SLOW_S", 0.5)
    monkeypatch.setattr(runner, "DOWN_S", 2.0)
    monkeypatch.setattr(runner, "_warned_s", [float("-inf")])
    with pytest.raises(BatchError, match=r"did not answer within 2 s.*LIM is down"):
        runner.run(["bjobs"])
    (line,) = caplog.messages
    assert line.startswith("bjobs has not answered for ")
    assert "LIM is down" in line
