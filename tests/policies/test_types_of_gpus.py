"""Nodes of several kinds of GPUs: who gets which, and that no job spans two."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market import CURVE, answer, job

from hpcext.core.estimate import Estimate
from hpcext.core.values import Cause, Job, Node, Run, Snapshot, total
from hpcext.policies.bftrainer import CHANGE_S, Options

NODES = {"a": (4, "fast"), "b": (4, "slow")}
STEEP = {"fast": {1: 3.0, 4: 12.0}, "slow": {1: 1.0, 4: 4.0}}
FLAT = {"fast": {1: 1.1, 4: 4.4}, "slow": {1: 1.0, 4: 4.0}}
SOLVERS = (
    "bftrainer", "bftrainer-lifetime", "total_time", "pollux:p=1", "pollux:p=-1", "pollux:p=0",
)  # fmt: skip
COUNTERS = ("equal_share", "optimus", "doubling:strategy=precompute", "marble", "exclusive",
            "pollux:search=genetic")  # fmt: skip


def machine(jobs: list[Job], nodes: Mapping[str, tuple[int, str]], now_s: float = 0.0) -> Snapshot:
    all_ = {name: Node(name, gpus, kind) for name, (gpus, kind) in nodes.items()}
    return Snapshot(now_s, all_, tuple(jobs), Cause.SUBMITTED)


def known(by_kind: Mapping[str, Mapping[int, float]], **more: Any) -> Estimate:
    return Estimate(stated=by_kind["slow"], by_kind=by_kind, **more)


def allocs(policy: str, now: Snapshot) -> dict[str, dict[str, int]]:
    return {name: dict(grant.alloc) for name, grant in answer(policy, now).grants.items()}


@pytest.mark.parametrize("policy", SOLVERS)
@pytest.mark.parametrize("first", [STEEP, FLAT])
def test_the_fast_gpus_go_to_the_jobs_that_they_help(policy: str, first: dict[str, Any]) -> None:
    second = FLAT if first is STEEP else STEEP
    jobs = [job(1, estimate=known(first)), job(2, estimate=known(second))]
    steep = "1" if first is STEEP else "2"
    found = allocs(policy, machine(jobs, NODES))
    assert found == {steep: {"a": 4}, "2" if steep == "1" else "1": {"b": 4}}


@pytest.mark.parametrize(("cost_s", "swap"), [(1.0, True), (200.0, False)])
def test_jobs_change_places_if_that_is_worth_its_cost(cost_s: float, swap: bool) -> None:
    """The sum rises from 4.4 + 4 to 12 + 4 of the speed of one, for 120 s; 4.4 + 4 are lost."""
    steep, flat = (known(each, up_s=cost_s, down_s=cost_s / 2) for each in (STEEP, FLAT))
    jobs = [job(1, goal={"b": 4}, estimate=steep), job(2, goal={"a": 4}, estimate=flat)]
    if swap:
        assert allocs("bftrainer", machine(jobs, NODES)) == {"1": {"a": 4}, "2": {"b": 4}}
    else:
        assert allocs("bftrainer", machine(jobs, NODES)) == {"1": {"b": 4}, "2": {"a": 4}}


def test_who_cannot_move_keeps_its_kind() -> None:
    fixed = job(1, goal={"a": 4}, estimate=known(FLAT), run=Run(registered=False))
    found = allocs("bftrainer", machine([fixed, job(2, estimate=known(STEEP))], NODES))
    assert found == {"1": {"a": 4}, "2": {"b": 4}}


def test_one_kind_with_a_name_has_its_own_curve() -> None:
    """On fast GPUs a second one helps the first job more, on slow ones the second."""
    first = known({"fast": {1: 1.0, 2: 1.9}, "slow": {1: 0.5, 2: 0.6}})
    second = known({"fast": {1: 1.0, 2: 1.5}, "slow": {1: 0.5, 2: 0.75}})
    jobs = [job(1, 2, estimate=first), job(2, 2, estimate=second)]
    for policy in ("bftrainer", "optimus", "total_time"):
        assert allocs(policy, machine(jobs, {"a": (3, "fast")})) == {"1": {"a": 2}, "2": {"a": 1}}
        assert allocs(policy, machine(jobs, {"a": (3, "slow")})) == {"1": {"a": 1}, "2": {"a": 2}}


def test_a_name_changes_nothing_where_all_are_alike() -> None:
    jobs = [job(1), job(2, goal={"a": 1}), job(3, estimate=Estimate())]
    wide = Job("4", "j4", 4, (2,), 2, nodes=(2, 3), estimate=Estimate(stated=CURVE))
    for policy in (*SOLVERS, *COUNTERS):
        plain, named = (
            answer(policy, machine([*jobs, wide], {"a": (4, kind), "b": (3, kind)}))
            for kind in ("", "slow")
        )
        assert plain == named


@pytest.mark.parametrize("policy", [*SOLVERS, *COUNTERS])
def test_a_job_of_several_nodes_is_on_one_kind(policy: str) -> None:
    nodes = {"a": (2, "fast"), "b": (2, "slow"), "c": (2, "fast"), "d": (2, "slow")}
    wide = [
        Job(str(n), f"j{n}", n, (1, 2), 2, nodes=(2, 3), estimate=Estimate(stated={1: 1.0, 6: 6.0}))
        for n in (1, 2)
    ]
    found = allocs(policy, machine(wide, nodes))
    # The paper's search deals GPUs out without a look at their kinds.
    assert found or "genetic" in policy
    for alloc in found.values():
        assert set(alloc) in ({"a", "c"}, {"b", "d"})
    alone = allocs(policy, machine(wide[:1], {"a": (2, "fast"), "b": (2, "slow")}))
    assert alone == {}, "there is no kind of which there are two nodes"


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 40), min_size=4, max_size=4),
            st.sampled_from(["", "fast", "slow"]),
            st.integers(1, 2),
            st.sampled_from([None, 0.0, 5.0, 60.0]),
            st.sampled_from([None, 0.0, 5.0, 60.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_bound_and_what_is_given_against_all_divisions(
    drawn: list[tuple[list[int], str, int, float | None, float | None]], fast: int, slow: int
) -> None:
    """Eq. 16 over kinds, written down once more; one node of each, so that all counts fit."""
    left = {"fast": fast, "slow": slow}
    node = {"fast": "a", "slow": "b"}
    jobs, stated = [], {}
    for order, (speeds, held, has, up_s, down_s) in enumerate(drawn, 1):
        curves = {
            "fast": {1: float(speeds[0]), 2: float(speeds[1])},
            "slow": {1: float(speeds[2]), 2: float(speeds[3])},
        }
        goal = {node[held]: has} if held and has <= left[held] else None
        left[held] = left.get(held, 0) - (has if goal else 0)
        jobs.append(job(order, 2, goal, estimate=known(curves, up_s=up_s, down_s=down_s)))
        stated[str(order)] = curves
    kinds = {"a": "fast", "b": "slow"}

    def gain(each: Job, kind: str, count: int) -> float:
        curves = stated[each.id]
        slowest = min(curve[1] for curve in curves.values())

        def speed(kind: str, n: int) -> float:
            return curves[kind][n] / slowest if n else 0.0

        has, here = total(each.goal), kinds[next(iter(each.goal))] if each.goal else kind
        up_s = CHANGE_S if each.estimate.up_s is None else each.estimate.up_s
        down_s = CHANGE_S if each.estimate.down_s is None else each.estimate.down_s
        cost_s = up_s if count > has else down_s if count < has else 0.0
        if has and count and kind != here:
            cost_s = max(up_s, down_s)
        return Options().forward_s * speed(kind, count) - cost_s * speed(here, has)

    options = [(kind, count) for kind in ("fast", "slow") for count in range(3)]
    best = max(
        sum(gain(each, *choice) for each, choice in zip(jobs, choices, strict=True))
        for choices in itertools.product(options, repeat=len(jobs))
        if sum(count for kind, count in choices if kind == "fast") <= fast
        and sum(count for kind, count in choices if kind == "slow") <= slow
    )
    target = answer("bftrainer", machine(jobs, {"a": (fast, "fast"), "b": (slow, "slow")}))
    value = 0.0
    for each in jobs:
        alloc = target.grants[each.id].alloc if each.id in target.grants else {}
        value += gain(each, kinds[next(iter(alloc))] if alloc else "fast", total(alloc))
    assert target.value == pytest.approx(value)
    assert target.bound is not None
    assert value - 1e-6 <= best <= target.bound + 1e-6 * abs(target.bound)
    # Of nearly all instances as small as these the search finds the best; it does not promise it.
    assert value >= 0.9 * best - 1e-6
