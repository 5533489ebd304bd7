"""What fragmentation leaves on nodes goes to the jobs that gain most by it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from market import job, snapshot

from hpcext.core.values import Grant, Role, Target
from hpcext.policies.placement.candidates import asks_of
from hpcext.policies.placement.divide import Plan
from hpcext.policies.pollux.refill import refilled

GAIN = {0: 0.0, 1: 1.0, 2: 1.9, 3: 2.7, 4: 3.4, 6: 4.2, 8: 4.8}


def after(
    has: Mapping[str, Mapping[str, int]],
    sizes: tuple[tuple[int, ...], ...] = (),
    *,
    apart: bool = True,
    **nodes: int,
) -> dict[str, dict[str, int]]:
    """Jobs of up to two nodes, what each has → what each has then."""
    every = sizes or ((1, 2, 3, 4),) * len(has)
    jobs = [job(number, nodes=(1, 2), sizes=each) for number, each in enumerate(every, 1)]
    now = snapshot(jobs, **nodes)
    asks = asks_of(now)
    grants = {name: Grant(alloc, Role.PRIMARY, "") for name, alloc in has.items() if alloc}
    value = sum(GAIN[sum(alloc.values())] for alloc in has.values())
    plan = Plan([0] * len(asks), lambda number, kind: GAIN)
    found = refilled(now, Target(grants, value=value), asks, plan, apart=apart)
    total = sum(GAIN[sum(grant.alloc.values())] for grant in found.grants.values())
    assert found.value == pytest.approx(total)
    return {name: dict(grant.alloc) for name, grant in found.grants.items()}


def test_a_job_grows_where_it_is() -> None:
    assert after({"1": {"a": 3}, "2": {"b": 4}}, a=4, b=4) == {"1": {"a": 4}, "2": {"b": 4}}


def test_a_job_without_anything_comes_before_one_with_much() -> None:
    assert after({"1": {"a": 3}, "2": {}}, a=4) == {"1": {"a": 3}, "2": {"a": 1}}


def test_a_job_moves_where_there_is_more_room_and_another_grows_into_its_place() -> None:
    found = after({"1": {"a": 1}, "2": {"a": 1}}, a=2, b=4)
    assert sorted(sum(alloc.values()) for alloc in found.values()) == [2, 4]


def test_no_two_jobs_on_several_nodes_come_to_share_one() -> None:
    has = {"1": {"a": 3, "b": 3}, "2": {"c": 1}}
    # On two nodes the second could have two GPUs.
    sizes = ((3,), (1,))
    assert after(has, sizes, a=4, b=4, c=1) == has
    shared = after(has, sizes, apart=False, a=4, b=4, c=1)
    assert len(shared["2"]) == 2


def test_where_nothing_is_free_nothing_changes() -> None:
    has = {"1": {"a": 2}, "2": {"a": 2}}
    assert after(has, a=4) == has
