"""The judge of the draws finds what it is there to find."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judge import Facts, LostError, judge, judge_exits
from plan import Job, Plan

Lines = list[dict[str, Any]]
JOB = Job("one", "arrays", 2, 0.1, 3, (1, 2, 1), 2.0)
ROWS = [list(range(first, first + 12)) for first in (0, 12, 24, 36)]
SAVED = "step-000000003.attempt-0001"
LAST = "step-000000008.attempt-0002"


def attempt(number: int, begin: int, end: int, found: list[str]) -> Lines:
    """One attempt that trains the steps after `begin` until `end`."""
    steps = [
        {"event": "step", "step": step, "epoch": (step - 1) // 4, "rows": ROWS[(step - 1) % 4],
         "size": 1, "sum": sum(sum(ROWS[at % 4]) for at in range(step))}
        for step in range(begin + 1, end + 1)
    ]  # fmt: skip
    first = {"event": "begin", "found": found}
    lines = [first, {"event": "resumed", "step": begin}, *steps]
    same = {"attempt": number, "rank": 0, "pid": 100 + number, "gpus": ["0"]}
    return [{**line, **same, "t": 100.0 * number + at} for at, line in enumerate(lines)]


def account() -> Lines:
    """Killed at step 5, goes on from 3, completes all 8."""
    second = attempt(2, 3, 8, [SAVED])
    return [*attempt(1, 0, 5, []), *second, {**second[-1], "event": "end", "found": [LAST]}]


def check(tmp_path: Path, lines: Lines, other: Lines | None = None, **facts: Any) -> None:
    jobs = [JOB]
    states = {"one": "completed"}
    (tmp_path / "one.account").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if other is not None:
        jobs.append(Job("two", "arrays", 2, 0.1, 3, (1, 2, 1), 2.0))
        states["two"] = "completed"
        (tmp_path / "two.account").write_text("".join(f"{json.dumps(line)}\n" for line in other))
    found = Facts(**{"states": states, **facts})
    judge(Plan(0, tuple(jobs), (), small_disk=False), tmp_path, found)


def test_a_good_account_is_good(tmp_path: Path) -> None:
    check(tmp_path, account())
    elsewhere = [{**line, "gpus": ["1"]} for line in account()]
    check(tmp_path, account(), elsewhere)


def at(step: int, **changes: Any) -> Callable[[Lines], object]:
    """Change the line of a step in the second attempt."""

    def change(lines: Lines) -> None:
        next(
            line for line in lines if line["attempt"] == 2 and line.get("step") == step
            and line["event"] == "step"
        ).update(changes)  # fmt: skip

    return change


BAD: dict[str, tuple[str, Callable[[Lines], object]]] = {
    "what it came to is not kept": ("is completed", lambda lines: lines[-1].update(found=[SAVED])),
    "a step is missing": ("came after", lambda lines: lines.pop(-4)),
    "the end is missing": ("never said", lambda lines: lines.pop()),
    "the last steps are missing": ("were lost", lambda lines: lines.__delitem__(slice(-3, -1))),
    "a sample is trained twice": ("twice", at(6, rows=ROWS[0])),
    "a sample is left out": ("samples", at(6, rows=ROWS[1][:-1], sum=0)),
    "the state is not that of the steps": ("the state is", at(7, sum=5)),
    "a rank is missing": ("by ranks", at(7, size=2)),
    "the attempts overlap": ("went on beside", lambda lines: lines[3].update(t=203.0)),
    "an attempt runs twice": (
        "ran twice",
        lambda lines: lines.insert(2, {**lines[1], "pid": 7}),
    ),
    "it begins anew": ("not from", lambda lines: lines[8].update(step=0)),
    "it begins with what was never done": ("not from", lambda lines: lines[8].update(step=5)),
    "its checkpoint is gone": ("every 3 are saved", lambda lines: lines[7].update(found=[])),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_account_is_found_out(tmp_path: Path, name: str) -> None:
    words, spoil = BAD[name]
    lines = copy.deepcopy(account())
    if name == "its checkpoint is gone":
        lines = [*attempt(1, 0, 5, []), *attempt(2, 0, 8, []), account()[-1]]
    spoil(lines)
    with pytest.raises(LostError, match=words):
        check(tmp_path, lines)


def test_a_shared_gpu_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(LostError, match="share a GPU"):
        check(tmp_path, account(), account())


def test_a_suspension_loses_no_step(tmp_path: Path) -> None:
    lines = account()
    lines.insert(7, {**lines[6], "event": "suspended", "step": 5})
    with pytest.raises(LostError, match="was suspended at 5"):
        check(tmp_path, lines)


def test_a_damaged_checkpoint_may_be_passed_over(tmp_path: Path) -> None:
    lines = account()
    lines[7]["found"] = [SAVED, "step-000000005.attempt-0001"]
    with pytest.raises(LostError, match="not from"):
        check(tmp_path, lines)
    check(tmp_path, lines, damaged={"one": {"step-000000005.attempt-0001": 150.0}})
    # Not if it was damaged later.
    with pytest.raises(LostError, match="not from"):
        check(tmp_path, lines, damaged={"one": {"step-000000005.attempt-0001": 250.0}})


def test_a_cancelled_job_does_not_begin_again(tmp_path: Path) -> None:
    gone = {"cancelled": {"one": 150.0}, "states": {"one": "cancelled"}}
    check(tmp_path, account()[:9], **gone)
    lines = [*account()[:9], *attempt(3, 3, 4, [SAVED])]
    with pytest.raises(LostError, match="was cancelled"):
        check(tmp_path, lines, **gone)
    with pytest.raises(LostError, match="is cancelled"):
        check(tmp_path, account()[:9], states={"one": "cancelled"})


def test_an_attempt_does_not_end_for_no_reason(tmp_path: Path) -> None:
    path = tmp_path / "1" / "attempt-0001" / "exit.json"
    path.parent.mkdir(parents=True)
    ended = {"exit_code": 1, "kill_asked_at": None, "started_at": 5.0, "main_ended_at": 9.0}
    path.write_text(json.dumps(ended))
    for hits in ([], [4.0, 10.0]):
        with pytest.raises(LostError, match="by itself"):
            judge_exits(tmp_path, {"one": "1"}, Facts(hits={"one": hits}))
    judge_exits(tmp_path, {"one": "1"}, Facts(hits={"one": [6.0]}))
    path.write_text(json.dumps({**ended, "kill_asked_at": 8.0}))
    judge_exits(tmp_path, {"one": "1"}, Facts(hits={"one": []}))
