"""Limits that a site writes, and bftrainer by other solvers than the exact one."""

from __future__ import annotations

from pathlib import Path

import market
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market import answer, job, snapshot

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.values import Run, Snapshot


def limited(tmp_path: Path, text: str, now: Snapshot) -> dict[str, int]:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return market.sizes(f"bftrainer:limits={path}", now)


JOBS = [job(1, name="a-1"), job(2, name="a-2"), job(3, name="b")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[[limit]]\njobs = ["a-*"]\nmost = 2', {"1": 1, "2": 1, "3": 4}),
        ('[[limit]]\njobs = ["a-*"]\nof = "jobs"\nmost = 1', {"1": 4, "3": 4}),
        ('[[limit]]\njobs = ["b"]\nleast = 4', {"1": 2, "2": 2, "3": 4}),
        ("[[limit]]\nmost = 3", {"1": 1, "2": 1, "3": 1}),
        # Two together; more is asked for b than it can use.
        ('[[limit]]\njobs = ["b"]\nleast = 9\n[[limit]]\njobs = ["a-?"]\nmost = 3',
         {"1": 2, "2": 1, "3": 4}),
        # What cannot hold together is not asked for; what is forbidden stays so.
        ('[[limit]]\njobs = ["b"]\nleast = 2\n[[limit]]\njobs = ["b"]\nmost = 1',
         {"1": 4, "2": 3, "3": 1}),
        ('[[limit]]\njobs = ["other"]\nmost = 0', {"1": 3, "2": 3, "3": 2}),
    ],
)  # fmt: skip
def test_limits_hold(tmp_path: Path, text: str, found: dict[str, int]) -> None:
    has = limited(tmp_path, text, snapshot(JOBS, a=8))
    # Of optima that are as good any one: jobs that are alike may change places.
    assert sorted(has.values()) == sorted(found.values())
    if '"b"' in text or '"a-' in text:
        assert has["3"] == found["3"]


def test_what_cannot_change_now_counts_too(tmp_path: Path) -> None:
    kept = job(1, 4, {"a": 2}, name="a-1", run=Run(registered=False))
    has = limited(tmp_path, '[[limit]]\njobs = ["a-*"]\nmost = 3', snapshot([kept, *JOBS[1:]], a=8))
    assert has == {"1": 2, "2": 1, "3": 4}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no [[limit]]"),
        ("[[limits]]", "did you mean limit?"),
        ("[[limit]]", "[[limit]] 1: neither least nor most; add one"),
        ("[[limit]]\nmost = 1\nleast = 2", "[[limit]] 1: least 2 is more than most 1"),
        ("[[limit]]\nmost = -1", "[[limit]] 1: most: -1"),
        (
            "[[limit]]\nmost = 1\nof = 'nodes'",
            """[[limit]] 1: of: 'nodes' (valid: "gpus" or "jobs")""",
        ),
        ("[[limit]]\nmost = 1\njobs = 'a'", "[[limit]] 1: jobs: a string"),
        ("[[limit]]\nmots = 1", "did you mean most?"),
        ("limit = [1]", "[[limit]] 1: an integer (valid: a table)"),
        ("[[limit]", "line 1"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        limited(tmp_path, text, snapshot(JOBS, a=8))
    assert said in str(caught.value)
    assert str(tmp_path / "limits.toml") in str(caught.value)


def test_a_path_must_be_absolute_and_there() -> None:
    for path, said in (("limits.toml", "an absolute path"), ("/nowhere/l.toml", "/nowhere/l.toml")):
        with pytest.raises(InputError, match=said):
            market.sizes(f"bftrainer:limits={path}", snapshot(JOBS, a=8))


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 40), min_size=3, max_size=3),
            st.integers(0, 3),
            st.sampled_from([0.0, 5.0, 60.0]),
            st.sampled_from([0.5, 1.0, 2.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 7),
)
@settings(max_examples=25, deadline=None)
def test_the_paper_s_programme_and_the_counting_model_are_worth_as_much_as_the_exact_division(
    drawn: list[tuple[list[int], int, float, float]], gpus: int
) -> None:
    jobs, left = [], gpus
    for order, (speeds, has, up_s, weight) in enumerate(drawn, 1):
        goal = {"a": min(has, left)} if min(has, left) else None
        left -= min(has, left)
        stated = {size: float(speed) for size, speed in enumerate(speeds, 1)}
        known = Estimate(stated=stated, up_s=up_s, down_s=up_s / 2)
        jobs.append(job(order, 3, goal, estimate=known, weight=weight))
    now = snapshot(jobs, a=gpus)
    exact, counting, milp = (
        answer(f"bftrainer:solver={solver}", now) for solver in ("exact", "counting", "milp")
    )
    assert exact.value == pytest.approx(counting.value) == pytest.approx(milp.value)
    assert milp.bound == pytest.approx(exact.value)
