"""Equal shares, within what jobs may have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from market import job, sizes, snapshot


def test_equal_within_what_jobs_may_have() -> None:
    jobs = [job(1), job(2, 1), job(3)]
    assert sizes("equal_share", snapshot(jobs, a=7)) == {"1": 3, "2": 1, "3": 3}
    # What is left over goes to the first.
    assert sizes("equal_share", snapshot(jobs, a=6)) == {"1": 3, "2": 1, "3": 2}


def test_who_comes_late_waits() -> None:
    assert sizes("equal_share", snapshot([job(n) for n in range(1, 4)], a=2)) == {"1": 1, "2": 1}


def test_shares_go_by_weight() -> None:
    jobs = [job(1, 9), job(2, 9, weight=2.0)]
    assert sizes("equal_share", snapshot(jobs, a=9)) == {"1": 3, "2": 6}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1), st.integers(0, 40))
def test_nobody_could_have_more_without_another_having_less_than_he(
    drawn: list[tuple[int, int]], gpus: int
) -> None:
    jobs = [job(n, sizes=tuple(range(low, low + more + 1))) for n, (low, more) in enumerate(drawn)]
    found = sizes("equal_share", snapshot(jobs, a=gpus))
    left = gpus - sum(found.values())
    for each in jobs:
        has = found.get(each.id, 0)
        if has == 0:
            assert left < each.sizes[0]
        elif has < each.sizes[-1]:
            assert left == 0
            assert all(
                found[other.id] <= max(has + 1, other.sizes[0])
                for other in jobs
                if other.id in found
            )
