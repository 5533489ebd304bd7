"""Seats on a shared GPU beside every policy: who has one, and what the policy sees of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcext.core import values as v
from hpcext.core.decisions import refusal
from hpcext.policies import POLICIES, find_policy
from hpcext.policies.placement import seats

HERE, SHARED = v.Node("n", 4), v.Node("n/mps", 2, seats=2)


def job(order: int, sizes: tuple[int, ...] = (1, 2, 3, 4), **more: Any) -> v.Job:
    return v.Job(str(order), f"j{order}", order, sizes, sizes[-1], **{"shares": True, **more})


def on(alloc: dict[str, int], **more: Any) -> dict[str, Any]:
    """A job that runs there, with a session that answers."""
    known = {
        "state": v.State.RUNNING,
        "run": v.Run(registered=True),
        "op": 1,
        "role": v.Role.SECONDARY,
    }
    return {**known, "goal": alloc, "held": alloc, **more}


def ask(*jobs: v.Job, policy: str = "marble", nodes: tuple[v.Node, ...] = (HERE, SHARED)) -> Any:
    now = v.Snapshot(0.0, {node.name: node for node in nodes}, jobs, v.Cause.ENDED)
    return find_policy(policy)(now)


def places(target: v.Target) -> dict[str, dict[str, int]]:
    return {name: dict(grant.alloc) for name, grant in target.grants.items()}


def test_those_that_wait_get_seats_in_the_order_of_the_queue() -> None:
    target = ask(job(1), job(2, shares=False), job(3), job(4), job(5))
    assert places(target) == {"1": {"n": 4}, "3": {"n/mps": 1}, "4": {"n/mps": 1}}
    assert target.grants["3"].role is v.Role.SECONDARY
    assert target.grants["3"].why == "shares a GPU with 2 seats: no whole GPU was free for it"
    assert target.waits.keys() == {"2", "5"}


@pytest.mark.parametrize("more", [{"sizes": (2, 3)}, {"nodes": (2, 2)}, {"ready": False}])
def test_a_seat_is_for_those_who_can_run_on_one(more: dict[str, Any]) -> None:
    assert places(ask(job(1), job(2, **more))) == {"1": {"n": 4}}


def test_free_gpus_promote_the_job_that_the_policy_would_start() -> None:
    """One that has a seat is in its place of the queue: it waits for GPUs of its own."""
    target = ask(job(2, **on({"n/mps": 1})), job(3))
    assert places(target) == {"2": {"n": 4}, "3": {"n/mps": 1}}
    assert target.grants["2"].role is v.Role.PRIMARY


def test_without_free_gpus_it_keeps_its_seat() -> None:
    sits = job(2, **on({"n/mps": 1}, why="shares a GPU"))
    target = ask(job(1, **on({"n": 4})), sits)
    assert places(target) == {"1": {"n": 4}, "2": {"n/mps": 1}}
    assert target.grants["2"] == v.Grant({"n/mps": 1}, v.Role.SECONDARY, "shares a GPU")


@pytest.mark.parametrize(
    "more", [{"run": v.Run(registered=False)}, {"suspendable": False}, {"state": v.State.STARTING}]
)
def test_one_that_would_lose_its_work_is_not_promoted(more: dict[str, Any]) -> None:
    sits = job(2, **on({"n/mps": 1}, **more))
    target = ask(sits, job(3))
    assert places(target) == {"2": {"n/mps": 1}, "3": {"n": 4}}


def test_a_job_that_is_leaving_does_not_block_the_other_seat() -> None:
    leaves = job(2, **on({"n/mps": 1}, goal=None, ready=False, state=v.State.STOPPING))
    full = job(1, **on({"n": 4}))
    target = ask(full, leaves, job(3), job(4), job(5))
    # Both seats are granted; reconcile starts nobody on one that is still held.
    assert places(target) == {"1": {"n": 4}, "3": {"n/mps": 1}, "4": {"n/mps": 1}}


def test_a_policy_sees_neither_seats_nor_who_has_one() -> None:
    seen: list[v.Snapshot] = []

    def policy(now: v.Snapshot) -> v.Target:
        seen.append(now)
        return v.Target(memo={"mine": 1}, wake_s=7.0)

    sits, stays = (
        job(1, **on({"n/mps": 1})),
        job(2, **on({"n/mps": 1}, run=v.Run(registered=False))),
    )
    full = job(3, **on({"n": 4}))
    jobs = (sits, stays, full, job(4))
    nodes = {"n": HERE, "n/mps": SHARED}
    now = v.Snapshot(1.0, nodes, jobs, v.Cause.ENDED, {"mine": 0}, (sits, stays, full))
    target = seats.allocate(now, policy=policy)
    assert seen[0].nodes == {"n": HERE}
    waiting = replace(sits, state=v.State.PENDING, goal=None, held={}, role=None)
    assert seen[0].jobs == (waiting, full, job(4))
    assert seen[0].busy == (full,)
    assert seen[0].memo == {"mine": 0}
    assert (target.memo, target.wake_s) == ({"mine": 1}, 7.0)


def test_without_seats_the_policy_sees_the_snapshot_unchanged() -> None:
    now = v.Snapshot(0.0, {"n": HERE}, (job(1),), v.Cause.ENDED)
    asked: list[v.Snapshot] = []
    target = v.Target()
    answer = seats.allocate(now, policy=lambda now: (asked.append(now), target)[1])
    assert answer is target
    assert asked[0] is now


@st.composite
def jobs(draw: st.DrawFn) -> tuple[v.Job, ...]:
    """Some that run on GPUs of their own or on seats, and some that wait."""
    found, free, seats_left = [], HERE.gpus, SHARED.gpus
    for order in range(1, draw(st.integers(0, 7)) + 1):
        sizes = tuple(range(1, draw(st.integers(1, 4)) + 1))
        one = job(order, sizes, shares=draw(st.booleans()), ready=draw(st.booleans()))
        where = draw(st.sampled_from(["own", "seat", "nowhere"]))
        registered = {"run": v.Run(registered=draw(st.booleans()))}
        if where == "own" and free:
            size = draw(st.integers(1, min(free, sizes[-1])))
            one, free = replace(one, ready=True, **on({"n": size}, **registered)), free - size
        elif where == "seat" and seats_left:
            one = replace(one, ready=True, shares=True, **on({"n/mps": 1}, **registered))
            seats_left -= 1
        found.append(one)
    return tuple(found)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fixed"])
@settings(deadline=None, max_examples=25)
@given(jobs())
def test_whatever_the_policy_the_answer_can_be_carried_out(
    policy: str, jobs: tuple[v.Job, ...]
) -> None:
    now = v.Snapshot(0.0, {"n": HERE, "n/mps": SHARED}, jobs, v.Cause.ENDED)
    target = find_policy(policy)(now)
    assert refusal(now, target, {job.id: job for job in jobs}) == ""
    for one in jobs:
        had = one.goal and "n/mps" in one.goal
        gets = target.grants.get(one.id)
        if gets and "n/mps" in gets.alloc:
            assert one.shares
            assert gets.role is v.Role.SECONDARY
        # Who has a seat is never left with nothing.
        assert gets is not None or not had
    taken = sum(grant.alloc.get("n/mps", 0) for grant in target.grants.values())
    waiting = [one for one in jobs if one.ready and one.shares and one.id not in target.grants]
    assert taken == SHARED.gpus or not waiting
