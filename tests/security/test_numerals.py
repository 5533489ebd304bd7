"""Numbers of outside: one reader of them, and what is no number is refused where it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcext import documents
from hpcext.allocation import Allocation
from hpcext.batch import lsf, slurm
from hpcext.batch.jobs import End
from hpcext.batch.lsf import idle as lsf_idle
from hpcext.batch.lsf import jobs as lsf_jobs
from hpcext.batch.slurm import idle as slurm_idle
from hpcext.batch.slurm import site as slurm_site
from hpcext.core.errors import BatchError, InputError, JournalError
from hpcext.manager.submissions import Submissions
from hpcext.numerals import whole
from hpcext.policies import find_policy
from hpcext.process import Process
from hpcext.protocol import Attempt

HOME = Path(documents.__file__).parent
ABSURD = "9" * 5000
ARABIC = "\u0661\u0662"
DEEP = '{"RECORDS":' * 3000


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("007", 7), ("9" * 18, 10**18 - 1), ("9" * 19, None), (ABSURD, None),
     ("", None), (None, None), ("-7", None), ("+7", None), (" 7", None), ("7\n", None),
     ("1_0", None), ("1.0", None), ("1e3", None), (ARABIC, None), ("\u00b2", None)],
)  # fmt: skip
def test_a_whole_number(text: str | None, number: int | None) -> None:
    assert whole(text) == number


def test_a_whole_number_of_few_digits() -> None:
    assert whole("9999", 4) == 9999
    assert whole("10000", 4) is None


@pytest.mark.parametrize("number", [ABSURD, ARABIC])
@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (slurm.parse_job_id, "{}"),
        (slurm.parse_version, "slurm {}.05.8"),
        (slurm.parse_version, "slurm 22.{}.8"),
        (slurm.parse_cpus, "2(x{})"),
        (lsf.parse_job_id, "Job <{}> is submitted to queue <normal>."),
    ],
)
def test_what_must_be_a_number_is_refused_in_one_line(
    parse: Callable[[str], object], text: str, number: str
) -> None:
    with pytest.raises(BatchError) as caught:
        parse(text.format(number))
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [ABSURD, ARABIC])
def test_what_may_be_a_number_is_left_out(number: str) -> None:
    assert slurm.parse_seen(f"{number}|RUNNING\n7|RUNNING") == slurm.parse_seen("7|RUNNING")
    assert slurm.parse_end(f"RUNNING|{number}|{number}|{number}") == End("running", None)
    assert slurm_idle.parse_planned(f"7|{number}|n1|x\n{number}|7|n1|x\n") == ()
    assert slurm_idle.parse_held(f"{number}|RUNNING|n1|7||\n") == ()
    assert slurm_idle.gres_count(f"gpu:{number}") == 0
    assert slurm_site.whole(number) == 0
    assert lsf.parse_time_limit(number) is None
    assert Process.parse(f"pid:{number}:1") is None
    assert Process.parse(f"pid:1:{number}") is None


@pytest.mark.parametrize("number", [ABSURD, ARABIC, "", "-1"])
def test_variables(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt("1", 1, 1, Path("/c"), Path("/r"), 1).environ()
    assert Attempt.from_environ(attempt) is not None
    with pytest.raises(ValueError, match=r"^HPCEXT_OP=.{0,70}: not a whole number$"):
        Attempt.from_environ({**attempt, "HPCEXT_OP": number})
    with pytest.raises(ValueError, match=r"^HPCEXT_RUNGS=.{0,70}: not FIRST:FACTOR$"):
        Attempt.from_environ({**attempt, "HPCEXT_RUNGS": f"3:{number}"})
    monkeypatch.setenv("SLURM_JOB_ID", number)
    assert Allocation.from_environ() is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NODEID", number)
    monkeypatch.setenv("SLURM_STEP_GPUS", f"0,{number},2")
    here = Allocation.from_environ()
    assert here is not None
    assert (here.node_index, here.gpus) == (0, (0, 2))


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        documents.decoded(DEEP)
    with pytest.raises(BatchError, match="not a list of jobs"):
        lsf_jobs.parse_jobs(DEEP)
    with pytest.raises(BatchError, match="not JSON"):
        lsf_idle.parse_hosts(DEEP)
    with pytest.raises(InputError, match=r"MODULE\.FUNCTION"):
        find_policy(f"bftrainer:objective={'a.' * 1500}b")


def test_digits_are_those_of_ascii_everywhere() -> None:
    """What str.isdecimal() takes, and a pattern of other digits than ``[0-9]``, int() may refuse.
    A name may be looked at so; and an argument of the supervisor, before it finds our package."""
    found = {
        str(path.relative_to(HOME))
        for path in HOME.rglob("*.py")
        if re.search(r"\.is(decimal|digit|numeric)\(|\\d", path.read_text())
    }
    assert found == {
        "jobfields.py", "jobtext.py", "launch/supervise.py", "numerals.py",
    }  # fmt: skip


@pytest.mark.parametrize("most", [1025, 10**9, 10**18, 10**19])
def test_a_kept_job_of_more_gpus_than_there_can_be_is_refused(tmp_path: Path, most: int) -> None:
    """Its sizes are enumerated."""
    spec = {"name": "a", "command": ["true"], "gpus": {"min": 1, "max": most}}
    (tmp_path / "a.json").write_text(
        json.dumps({"schema": "hpcext.submission/1", "first_id": 1, "jobs": [spec]})
    )
    with pytest.raises(JournalError, match=r"`int` <= 1024"):
        _ = Submissions(tmp_path).jobs
