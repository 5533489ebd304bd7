"""Who has had least goes first; what that means for nodes, queues and preemption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core.decisions import refusal
from hpcext.core.errors import InputError
from hpcext.core.values import Cause, Job, Node, Run, Snapshot, State, Target, total
from hpcext.policies import find_policy


def job(
    order: int,
    gpus: int,
    held: Mapping[str, int] | None = None,
    nodes: tuple[int, int] | None = None,
) -> Job:
    """One that asks for so many GPUs on each node, or in all, and runs if it holds any."""
    runs: dict[str, Any] = (
        {"state": State.RUNNING, "goal": held, "held": held, "run": Run(registered=True)}
        if held
        else {}
    )
    return Job(f"j{order}", f"job{order}", order, (gpus,), gpus, nodes, **runs)


def answer(
    jobs: list[Job],
    capacity: list[int],
    now_s: float = 0.0,
    memo: dict[str, Any] | None = None,
    options: str = "",
) -> Target:
    nodes = {f"n{number}": Node(f"n{number}", gpus) for number, gpus in enumerate(capacity)}
    now = Snapshot(now_s, nodes, tuple(jobs), Cause.TIME, memo)
    target = find_policy(f"tiresias:{options}")(now)
    assert refusal(now, target, {each.id: each for each in jobs}) == ""
    return target


def sizes(target: Target) -> dict[str, int]:
    return {name: total(grant.alloc) for name, grant in target.grants.items()}


def test_in_the_first_queue_they_go_as_they_came_and_smaller_ones_fill_what_is_left() -> None:
    target = answer([job(1, 3), job(2, 3), job(3, 1)], [4])
    assert sizes(target) == {"j1": 3, "j3": 1}
    assert target.waits == {"j2": "waits for 3 GPUs"}


def test_who_has_had_much_makes_way_for_who_has_had_nothing() -> None:
    old = job(1, 4, {"n0": 4})
    first = answer([old], [4], options="thresholds=100")
    assert sizes(first) == {"j1": 4}
    # 4 GPUs for 20 s are not 100 GPU-seconds, and for 25 s they are.
    early = answer([old, job(2, 2)], [4], 20.0, first.memo, "thresholds=100")
    assert sizes(early) == {"j1": 4}
    late = answer([old, job(2, 2)], [4], 25.0, first.memo, "thresholds=100")
    assert sizes(late) == {"j2": 2}


def test_time_that_a_job_waits_is_not_held_against_it() -> None:
    target = answer([job(1, 4, {"n0": 4}), job(2, 4)], [4])
    later = answer([job(1, 4, {"n0": 4}), job(2, 4)], [4], 50.0, target.memo)
    assert later.memo is not None
    assert later.memo["service"] == {"j1": 200.0, "j2": 0.0}


def test_within_a_lower_queue_who_came_into_it_first_goes_first() -> None:
    both = [job(1, 4, {"n0": 4}), job(2, 4, {"n1": 4})]
    memo = {"at_s": 0.0, "held": {}, "service": {"j1": 0.0, "j2": 90.0}, "queues": [[]]}
    one = answer(both, [4, 4], 10.0, memo, "thresholds=100")
    assert one.memo is not None
    assert one.memo["queues"] == [["j2"]]
    two = answer(both, [4, 4], 30.0, one.memo, "thresholds=100")
    assert two.memo is not None
    assert two.memo["queues"] == [["j2", "j1"]]
    # Only one of them has room beside a new one, and that is not the first of the file.
    assert sizes(answer([*both, job(3, 4)], [4, 4], 31.0, two.memo, "thresholds=100")) == {
        "j2": 4, "j3": 4,
    }  # fmt: skip


def test_jobs_that_have_had_more_make_room_together_for_one_that_needs_a_node() -> None:
    """There are enough GPUs for the new job and two others, but not on one node."""
    old = [job(number, 1, {f"n{number % 2}": 1}, (1, 1)) for number in range(4)]
    new = job(9, 2, nodes=(1, 1))
    service = {each.id: 500.0 for each in old}
    queues = [[each.id for each in old]]
    memo = {"at_s": 0.0, "held": {}, "service": service, "queues": queues}
    target = answer([*old, new], [2, 2], 0.0, memo, "thresholds=100")
    assert sizes(target) == {"j9": 2, "j0": 1, "j1": 1}
    # And nobody moves again before the queues change.
    after = [
        job(number, gpus, target.grants[name].alloc if name in target.grants else None, (1, 1))
        for number, gpus, name in [
            *((number, 1, f"j{number}") for number in range(4)),
            (9, 2, "j9"),
        ]
    ]
    again = answer(after, [2, 2], 1.0, target.memo, "thresholds=100")
    assert {name: grant.alloc for name, grant in again.grants.items()} == {
        name: grant.alloc for name, grant in target.grants.items()
    }
    # Earlier jobs are not moved for later ones.
    memo["service"], memo["queues"] = {}, [[new.id]]
    assert "j9" not in sizes(answer([*old[:2], new], [2, 2], 0.0, memo, "thresholds=100"))


def test_of_three_queues_a_job_sinks_to_the_last() -> None:
    memo = {"at_s": 0.0, "held": {}, "service": {"j1": 0.0}, "queues": [[], []]}
    target = answer([job(1, 1, {"n0": 1})], [1], 500.0, memo, "thresholds=10/400")
    assert target.memo is not None
    assert target.memo["queues"] == [[], ["j1"]]


def test_gpus_are_on_as_few_nodes_as_can_be() -> None:
    target = answer([job(1, 2), job(2, 6)], [4, 4, 2])
    assert {name: dict(grant.alloc) for name, grant in target.grants.items()} == {
        "j1": {"n2": 2},
        "j2": {"n0": 4, "n1": 2},
    }


def test_a_job_that_says_on_how_many_nodes_it_runs_has_as_many_on_each() -> None:
    target = answer([job(1, 1), job(2, 3, nodes=(2, 4))], [4, 4])
    assert dict(target.grants["j2"].alloc) == {"n0": 3, "n1": 3}
    assert answer([job(1, 3), job(2, 3, nodes=(2, 4))], [4, 4]).grants.keys() == {"j1"}


def test_a_job_without_a_session_is_left_alone() -> None:
    deaf = Job(
        "j1", "job1", 1, (4,), 4, state=State.RUNNING, goal={"n0": 4}, held={"n0": 4}
    )  # fmt: skip
    memo = {"at_s": 0.0, "held": {}, "service": {"j1": 1e9}, "queues": [["j1"]]}
    assert sizes(answer([deaf, job(2, 4)], [4], 0.0, memo)) == {"j1": 4}


@pytest.mark.parametrize("memo", [{"until_s": 3.0, "jobs": [1, 1]}, {"queues": 3}, {}])
def test_the_memo_of_another_policy_is_ignored(memo: dict[str, Any]) -> None:
    target = answer([job(1, 1, {"n0": 1})], [1], 7.0, memo)
    assert target.memo is not None
    assert target.memo["service"] == {"j1": 0.0}


@pytest.mark.parametrize("given_", ["5/3", "x", "0", "-1", "3//4", "inf", "nan"])
def test_thresholds_ascend(given_: str) -> None:
    with pytest.raises(InputError, match=r"thresholds|ascend"):
        find_policy(f"tiresias:thresholds={given_}")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.floats(0, 300), min_size=1, max_size=5),
)
@settings(max_examples=150)
def test_every_division_fits_and_no_job_waits_for_gpus_that_are_free(
    wanted: list[tuple[int, bool]], capacity: list[int], steps: list[float]
) -> None:
    jobs = [
        job(number, min(gpus, 4) if even else gpus, nodes=(1, 4) if even else None)
        for number, (gpus, even) in enumerate(wanted)
    ]
    memo, now_s = None, 0.0
    for passed_s in steps:
        now_s += passed_s
        target = answer(jobs, capacity, now_s, memo, "thresholds=50/500")
        memo = target.memo
        used = [dict(grant.alloc) for grant in target.grants.values()]
        free = sum(capacity) - sum(map(total, used))
        for each in jobs:
            if each.id not in target.grants and each.nodes is None:
                assert each.optimal > free
        jobs = [
            job(each.order, each.optimal, grant.alloc if grant else None, each.nodes)
            for each in jobs
            for grant in [target.grants.get(each.id)]
        ]
