"""Equal shares, within what jobs may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from market import answer, job, sizes, snapshot
from msgspec.structs import replace

from hpcext.core.values import Run, State, total
from hpcext.policies import find_policy

RUNS = Run(registered=True)


def test_equal_within_what_jobs_may_have() -> None:
    jobs = [job(1), job(2, 1), job(3)]
    assert sizes("equal_share", snapshot(jobs, a=7)) == {"1": 3, "2": 1, "3": 3}
    # What is left over goes to the first.
    assert sizes("equal_share", snapshot(jobs, a=6)) == {"1": 3, "2": 1, "3": 2}


def test_who_comes_late_waits() -> None:
    assert sizes("equal_share", snapshot([job(n) for n in range(1, 4)], a=2)) == {"1": 1, "2": 1}


@pytest.mark.parametrize("policy", ["equal_share", "pollux", "tiresias", "fixed"])
def test_a_job_that_fits_no_node_learns_why(policy: str) -> None:
    too_wide, too_many = job(1, sizes=(4,)), job(2, sizes=(1,), nodes=(3, 3))
    for each, what in ((too_wide, "no node is"), (too_many, "too few nodes are")):
        why = answer(policy, snapshot([each], a=2, b=2)).waits[each.id]
        assert why.endswith(f"{what} large enough for it")


def test_jobs_that_shrink_move_together_for_one_that_needs_a_node() -> None:
    jobs = [job(1, goal={"a": 4}), job(2, goal={"b": 4}), job(3, sizes=(4,))]
    target = answer("equal_share", snapshot(jobs, a=4, b=4))
    assert target.value is None
    allocs = {name: grant.alloc for name, grant in target.grants.items()}
    assert allocs["3"].keys().isdisjoint({*allocs["1"], *allocs["2"]})
    assert {name: total(alloc) for name, alloc in allocs.items()} == {"1": 2, "2": 2, "3": 4}
    # And there they stay.
    after = [
        replace(each, goal=allocs[each.id], held=allocs[each.id], state=State.RUNNING, run=RUNS)
        for each in jobs
    ]
    again = answer("equal_share", snapshot(after, a=4, b=4))
    assert {name: grant.alloc for name, grant in again.grants.items()} == allocs


def test_shares_go_by_weight() -> None:
    jobs = [job(1, 9), job(2, 9, weight=2.0)]
    assert sizes("equal_share", snapshot(jobs, a=9)) == {"1": 3, "2": 6}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1), st.integers(0, 40))
def test_parts_are_max_min_fair(drawn: list[tuple[int, int]], gpus: int) -> None:
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


def test_the_rest_may_go_to_the_first_of_the_queue() -> None:
    # 23 GPUs: 5 for each of four, and the other 3 for the first; it may have 7, so one is left.
    jobs = [job(1, 7), job(2, 9), job(3, 9), job(4, 9)]
    assert sizes("equal_share:rest=first", snapshot(jobs, a=23)) == {"1": 7, "2": 6, "3": 5, "4": 5}
    assert sizes("equal_share", snapshot(jobs, a=23)) == {"1": 6, "2": 6, "3": 6, "4": 5}


def test_who_may_not_have_a_share_waits_for_the_rest() -> None:
    jobs = [job(1, 2), job(2, sizes=(4, 8)), job(3, 3)]
    # A share is 3: nothing for the second, who gets of the 4 that are left over what he may have.
    assert sizes("equal_share:rest=first", snapshot(jobs, a=9)) == {"1": 2, "2": 4, "3": 3}
    assert sizes("equal_share:rest=first", snapshot(jobs, a=4)) == {"1": 2, "3": 2}


def test_shares_go_by_weight_and_only_to_so_many_as_may_run() -> None:
    jobs = [job(1, 9), job(2, 9, weight=2.0), job(3, 9)]
    grants = find_policy("equal_share:rest=first,parallel=2")(snapshot(jobs, a=10)).grants
    assert {name: total(grant.alloc) for name, grant in grants.items()} == {"1": 4, "2": 6}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 40))
def test_nothing_is_left_that_somebody_could_have(most: list[int], gpus: int) -> None:
    jobs = [job(n, each) for n, each in enumerate(most)]
    found = sizes("equal_share:rest=first", snapshot(jobs, a=gpus))
    assert sum(found.values()) == min(gpus, sum(most))
    assert all(found.get(each.id, 0) >= min(each.sizes[-1], gpus // len(jobs)) for each in jobs)
