"""How the script of a job ends when its manager has: back into the queue, or for good."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcext.backends.lsf import requeue


def ends(finish: str, path: Path, *, code: int, told: bool) -> int:
    """The exit status of a script whose manager ended with a code."""
    before = f"code={code} told={'1' if told else ''}\n"
    calls = f'brequeue() {{ echo "$1" > {path}/asked; told=1; }}\nLSB_JOBID=7\n'
    text = f'{calls}{before}{finish}exit "$code"\n'
    return subprocess.run(["sh", "-c", text], check=False).returncode


@pytest.mark.parametrize("by_value", [True, False])
def test_a_pilot_goes_back_and_counts_it(tmp_path: Path, by_value: bool) -> None:
    finish = requeue.pilot_lines(tmp_path, by_value=by_value).finish
    assert ends(finish, tmp_path, code=0, told=False) == 0
    for times in (1, 2):
        requeue.mark_pilot(tmp_path)
        assert ends(finish, tmp_path, code=0, told=False) == 85
        assert requeue.restarts(tmp_path) == times
    assert (tmp_path / "asked").exists() is not by_value


def test_a_pilot_that_was_killed_stays_killed(tmp_path: Path) -> None:
    finish = requeue.pilot_lines(tmp_path, by_value=True).finish
    requeue.mark_pilot(tmp_path)
    assert ends(finish, tmp_path, code=1, told=True) == 1
    assert requeue.restarts(tmp_path) == 0


@pytest.mark.parametrize(
    ("marks", "code", "told", "status"),
    [
        ((), 0, False, 0),
        ((), 3, False, 3),
        # The exit value of a training must not requeue its job.
        ((), 85, False, 1),
        ((), 0, True, 143),
        (("again",), 0, False, 85),
        # It is brequeue that tells it to end.
        (("again",), 0, True, 85),
        (("again", "hold"), 0, True, 143),
        (("hold",), 0, False, 0),
    ],
)
def test_a_suspendable_job_ends_as_its_marks_say(
    tmp_path: Path, marks: tuple[str, ...], code: int, told: bool, status: int
) -> None:
    lines = requeue.suspendable_lines(tmp_path, ends=":")
    for name in marks:
        (tmp_path / name).touch()
    assert ends(lines.finish, tmp_path, code=code, told=told) == status
    assert requeue.status(tmp_path) == (status if "again" in marks else None)
    # The next run begins without marks.
    subprocess.run(["sh", "-c", lines.begin], check=True)
    assert requeue.status(tmp_path) is None
    assert not (tmp_path / "hold").exists()
