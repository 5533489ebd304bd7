"""As many GPUs for each job, first come, first served."""

from __future__ import annotations

import pytest
from market import answer, job, sizes, snapshot
from played import play

from hpcext.core.values import Cause, Job, Node, Role, Run, Snapshot, State
from hpcext.policies import find_policy
from hpcext.policies.common import BEHIND
from hpcext.sim.replay.physics import Physics


def waits(policy: str, *jobs: Job, **nodes: int) -> dict[str, str]:
    return dict(answer(policy, snapshot(list(jobs), **nodes)).waits)


def test_each_job_has_the_same_while_there_is_room() -> None:
    jobs = [job(number) for number in (1, 2, 3, 4)]
    assert sizes("fixed:gpus=2", snapshot(jobs, a=4, b=3)) == {"1": 2, "2": 2, "3": 2}
    assert waits("fixed:gpus=2", *jobs, a=4, b=3) == {
        "4": "next in the queue; waits for 2 GPUs on one node"
    }
    grant = answer("fixed:gpus=2", snapshot(jobs, a=4)).grants["1"]
    assert (grant.role, grant.why) == (Role.PRIMARY, "runs on 2 GPUs, a fixed size")


def test_without_a_number_each_has_its_best() -> None:
    jobs = [job(1, sizes=(1, 2, 4, 8)), job(2, 3)]
    assert sizes("fixed", snapshot(jobs, a=8)) == {"1": 8}
    few = [Job("1", "few", 1, (1, 2, 4, 8), 2), job(2, 3)]
    assert sizes("fixed", snapshot(few, a=8)) == {"1": 2, "2": 3}


@pytest.mark.parametrize(("may_have", "gets"), [((1, 2, 4), 2), ((3,), 3), ((4, 6), 4), ((5,), 5)])
def test_a_job_that_may_not_have_so_many_gets_the_next_fewer_or_its_least(
    may_have: tuple[int, ...], gets: int
) -> None:
    assert sizes("fixed:gpus=3", snapshot([job(1, sizes=may_have)], a=8)) == {"1": gets}


def test_no_job_is_overtaken() -> None:
    wide, narrow = job(2, sizes=(4,)), job(3, sizes=(1,))
    running = job(1, goal={"a": 2}, sizes=(2,))
    assert sizes("fixed:gpus=4", snapshot([running, wide, narrow], a=4)) == {"1": 2}
    assert waits("fixed:gpus=4", running, wide, narrow, a=4) == {
        "2": "next in the queue; waits for 4 GPUs on one node", "3": BEHIND,
    }  # fmt: skip


def test_a_job_that_fits_no_node_is_told_so() -> None:
    assert waits("fixed:gpus=1", job(1, sizes=(8,)), a=4) == {
        "1": "next in the queue; no node is large enough for it"
    }


def test_gpus_on_several_nodes_are_counted_together() -> None:
    over = job(1, sizes=(1, 2, 4), nodes=(2, 4))
    target = answer("fixed:gpus=4", snapshot([over], a=2, b=2, c=2))
    assert dict(target.grants["1"].alloc) == {"a": 2, "b": 2}
    assert waits("fixed:gpus=4", over, job(2), a=2)["1"].endswith(
        "too few nodes are large enough for it"
    )


def test_a_job_gets_what_its_user_asked_for_as_soon_as_there_is_room() -> None:
    def asked(**more: object) -> Job:
        return job(1, goal={"a": 2}, sizes=(3,), stated=(1, 2, 3, 4), **more)

    other = job(2, goal={"a": 2}, sizes=(2,))
    assert sizes("fixed:gpus=2", snapshot([asked()], a=4)) == {"1": 3}
    assert sizes("fixed:gpus=2", snapshot([asked(), other], a=4)) == {"1": 2, "2": 2}
    # Not where work would be lost.
    assert sizes("fixed:gpus=2", snapshot([asked(run=Run(registered=False))], a=4)) == {"1": 2}
    # Whoever waits comes after those that run.
    before = job(0, sizes=(2,), state=State.PENDING)
    assert sizes("fixed:gpus=2", snapshot([before, asked()], a=4)) == {"1": 3}


def test_a_queue_by_hand() -> None:
    """Five jobs of 100 s on two GPUs each, on a node with four: two at a time, in their order."""
    jobs = [Job(str(number), f"j{number}", number, (1, 2, 4), 4) for number in range(1, 6)]
    physics = {each.id: Physics({1: 1.0, 2: 2.0, 4: 3.0}, work=200.0) for each in jobs}
    result = play(jobs, [Node("a", 4)], find_policy("fixed:gpus=2"), physics)
    assert [result.jobs[each.id].since_s for each in jobs] == [100, 100, 200, 200, 300]
    assert all(record.suspends == 0 for record in result.records.values())


def test_waiting_jobs_go_before_those_that_have_had_their_turn() -> None:
    """Three jobs of 200 s, one at a time: each is suspended after 100 s for the next."""
    jobs = [Job(str(number), f"j{number}", number, (2,), 2) for number in (1, 2, 3)]
    physics = {each.id: Physics({2: 1.0}, work=200.0) for each in jobs}
    result = play(jobs, [Node("a", 2)], find_policy("fixed:gpus=2,turn_s=100"), physics)
    assert [result.jobs[each.id].since_s for each in jobs] == [400, 500, 600]
    for each in jobs:
        starts = [part.start_s for part in result.records[each.id].segments]
        assert starts == [100 * (int(each.id) - 1), 100 * (int(each.id) + 2)]


def test_no_job_is_suspended_while_none_waits() -> None:
    late = Job("2", "late", 2, (2,), 2, submitted_s=250.0)
    jobs = [Job("1", "early", 1, (2,), 2), late]
    physics = {each.id: Physics({2: 1.0}, work=300.0) for each in jobs}
    policy = find_policy("fixed:gpus=2,turn_s=100")
    result = play(jobs, [Node("a", 4)], policy, physics)
    assert all(record.suspends == 0 for record in result.records.values())
    # Its turn was over long ago when the other one comes.
    crowded = play(jobs, [Node("a", 2)], policy, physics)
    assert [part.end_s for part in crowded.records["1"].segments] == [250, 400]
    assert crowded.jobs["2"].since_s == 600


def test_no_shape_needs_more_nodes_than_are_wide_enough() -> None:
    nodes = {"narrow": Node("narrow", 1), "wide": Node("wide", 8)}
    one = Job("1", "job", 0, (2,), 2, nodes=(1, 3), ready=True)
    now = Snapshot(0.0, nodes, (one,), Cause.NODES)
    assert find_policy("fixed")(now).grants["1"].alloc == {"wide": 2}
