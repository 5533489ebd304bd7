"""The least total time, and the two heuristics for it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market import answer, job, sizes, snapshot

from hpcext.core.estimate import Estimate, Observed
from hpcext.core.values import Cause, Job, total
from hpcext.policies.total_time import UNKNOWN_S


def known(*speeds: float, work: float = 100.0) -> Estimate:
    """Speeds on 1, 2, 3... GPUs in work per second."""
    return Estimate(stated=dict(enumerate(speeds, 1)), work=work)


ALL = ("total_time", "optimus", "doubling:strategy=precompute")


def test_longer_jobs_get_more() -> None:
    """200 s and 50 s on one GPU: the first GPU more saves the first one 100 s, then 33, then 17."""
    jobs = [
        job(1, estimate=known(1, 2, 3, 4, work=50)),
        job(2, estimate=known(1, 2, 3, 4, work=200)),
    ]
    for policy in ("total_time", "optimus"):
        assert sizes(policy, snapshot(jobs, a=4)) == {"1": 1, "2": 3}
    # Three is no power of two: the second doubles once, and then the first, which saves 25 s.
    assert sizes(ALL[2], snapshot(jobs, a=4)) == {"1": 2, "2": 2}


def test_a_greedy_by_one_stops_where_one_more_is_slower_and_doubling_does_not() -> None:
    """The paper's reason for doubling: 8 to 9 is a loss, 8 to 16 a gain (section 4.2)."""
    speeds = [float(n) for n in range(1, 9)] + [5.0] * 7 + [12.0]
    alone = [job(1, 16, estimate=known(*speeds))]
    found = [sizes(policy, snapshot(alone, a=16))["1"] for policy in ALL]
    assert found == [16, 8, 16]


def test_the_shortest_run_where_not_all_can() -> None:
    jobs = [job(n, estimate=known(1, 2, 3, 4, work=work)) for n, work in enumerate((90, 10, 50), 1)]
    assert sizes("total_time", snapshot(jobs, a=2)) == {"2": 1, "3": 1}
    # The heuristics give one worker to each in the order of the queue.
    assert sizes("optimus", snapshot(jobs, a=2)) == {"1": 1, "2": 1}


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers(1, 100)),
        min_size=1,
        max_size=3,
    ),
    st.integers(3, 8),
)
@settings(max_examples=100)
def test_no_division_ends_sooner_in_sum(drawn: list[tuple[list[int], int]], gpus: int) -> None:
    jobs = [
        job(n, estimate=known(*map(float, speeds), work=work))
        for n, (speeds, work) in enumerate(drawn, 1)
    ]

    def ends_s(counts: tuple[int, ...]) -> float:
        return sum(
            (each.estimate.work or 0) / each.estimate.stated[count]
            for each, count in zip(jobs, counts, strict=True)
        )

    best = min(
        ends_s(counts)
        for counts in itertools.product(range(1, 5), repeat=len(jobs))
        if sum(counts) <= gpus
    )
    target = answer("total_time", snapshot(jobs, a=gpus))
    counts = tuple(total(target.grants[each.id].alloc) for each in jobs)
    assert ends_s(counts) == pytest.approx(best)
    assert target.value == pytest.approx(-best) == pytest.approx(target.bound)
    for heuristic in ALL[1:]:
        value = answer(heuristic, snapshot(jobs, a=gpus)).value
        assert value is not None
        assert value <= -best + 1e-9


def test_a_job_of_unknown_length_is_believed_to_be_in_its_middle() -> None:
    """Two hours on two GPUs, twice as fast as one: as much is left, four hours of one GPU."""
    seen = (Observed(1, 1, 1.0, seconds=1.0), Observed(2, 1, 2.0, seconds=7200.0))
    old = job(1, estimate=Estimate(observed=seen))
    # On one GPU each 14,401 s and an hour are left, so the first GPU more goes to the old one.
    assert UNKNOWN_S == 3600
    assert sizes("total_time", snapshot([job(2), old], a=3)) == {"1": 2, "2": 1}
    assert sizes("total_time", snapshot([job(2, weight=9.0), old], a=3)) == {"1": 1, "2": 2}


@pytest.mark.filterwarnings("error")
def test_a_job_that_has_done_all_its_work_needs_no_more_gpus() -> None:
    over = job(1, 4, {"a": 1}, estimate=Estimate(stated={1: 1.0, 4: 4.0}, work=9.0, done=9.0))
    assert sizes("total_time", snapshot([over, job(2)], a=4)) == {"1": 1, "2": 3}
    assert sizes("optimus", snapshot([over, job(2)], a=4)) == {"1": 1, "2": 3}


def test_a_change_has_to_be_worth_its_seconds() -> None:
    """Of 100 s on 2 GPUs a third saves 33 s."""
    for up_s, gets in ((30.0, 3), (40.0, 2)):
        estimate = Estimate(stated={1: 1.0, 2: 2.0, 3: 3.0}, work=200.0, up_s=up_s)
        running = job(1, 3, {"a": 2}, estimate=estimate)
        assert sizes("total_time", snapshot([running], a=3)) == {"1": gets}


def test_between_two_decisions_nothing_changes() -> None:
    def jobs(**second: object) -> list[Job]:
        return [job(1, goal={"a": 1}, why="so"), job(2, why="waits", **second)]

    first = answer("optimus", snapshot(jobs(), 50.0, a=4))
    assert first.wake_s == 650
    later = snapshot(jobs(), 60.0, a=4)
    kept = answer("optimus", type(later)(60.0, later.nodes, later.jobs, Cause.TIME, first.memo))
    assert {name: dict(grant.alloc) for name, grant in kept.grants.items()} == {"1": {"a": 1}}
    assert kept.waits == {"2": "waits"}
    assert (kept.wake_s, kept.memo) == (650, first.memo)
    for now_s, cause, ready in (
        (60.0, Cause.SUBMITTED, True),
        (60.0, Cause.ENDED, False),
        (650.0, Cause.TIME, True),
    ):
        again = snapshot(jobs(ready=ready), now_s, a=4)
        target = answer("optimus", type(again)(now_s, again.nodes, again.jobs, cause, first.memo))
        assert target.wake_s == now_s + 600, (now_s, cause)
