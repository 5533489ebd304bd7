"""What accounts of trainings come to: each step beyond the last checkpoint exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.acceptance import account
from hpcext.acceptance.account import Life, Verdict, judge


def life(began_s: float, *steps: int, wrong: bool = False) -> Life:
    return Life(began_s, began_s + len(steps), 1, steps, False, wrong)


def run(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


@pytest.mark.parametrize(
    ("lives", "lost", "fault"),
    [
        ([life(0, *run(1, 30))], 0, ""),
        ([life(0, *run(1, 30)), life(99, *run(31, 40))], 0, ""),
        # One that was ended before its first step is no fault.
        ([life(0), life(9, *run(1, 30))], 0, ""),
        ([life(0, *run(1, 30)), life(99, *run(21, 40))], 10, ""),
        ([life(0, *run(1, 60)), life(99, *run(21, 70))], 40, "40 steps were lost"),
        ([life(0, *run(1, 30)), life(99, *run(33, 40))], 0, "steps 31 to 32 are not recorded"),
        ([life(0, 1, 2, 4)], 0, "left out steps"),
        ([life(0, 1, 2, 2)], 0, "left out steps"),
        (
            [life(0, *run(1, 30)), life(15, *run(31, 40))],
            0,
            "two of its processes trained at the same time",
        ),
        ([life(0, 1, 2, wrong=True)], 0, "after step 2 its state did not match its steps"),
    ],
)
def test_a_verdict(lives: list[Life], lost: int, fault: str) -> None:
    found = judge(lives, save_every=20)
    assert (found.lost, bool(found.faults)) == (lost, bool(fault))
    assert fault in "; ".join(found.faults)


def test_accounts_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("begin 20.0 2\nstep 3 20.1\nend 20.2\n")
    (tmp_path / "a.txt").write_text("begin 10.0 1\nstep 1 10.1\nstep 2 10.2\nstep 3 1")
    (tmp_path / "begun.txt").write_text("beg")
    (tmp_path / "other.txt").write_bytes(b"begin \xff\n")
    assert account.read(tmp_path) == [
        Life(10.0, 10.2, 1, (1, 2), False, False),
        Life(20.0, 20.1, 2, (3,), True, False),
    ]
    assert judge(account.read(tmp_path)) == Verdict(3, 2, 0, ())
    assert account.read(tmp_path / "none") == []
