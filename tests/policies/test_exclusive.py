"""The baseline, as MARBLE section VII-A describes LSF."""

from __future__ import annotations

from typing import Any

from hpcext.core import values as v
from hpcext.policies import find_policy
from hpcext.policies.common import BEHIND

SIZES = tuple(range(1, 7))


def job(order: int, sizes: tuple[int, ...] = SIZES, **more: Any) -> v.Job:
    return v.Job(str(order), f"j{order}", order, sizes, max(sizes), **more)


def ask(*jobs: v.Job, nodes: dict[str, int] | None = None) -> v.Target:
    there = {name: v.Node(name, gpus) for name, gpus in (nodes or {"n": 6}).items()}
    return find_policy("exclusive")(v.Snapshot(0.0, there, jobs, v.Cause.ENDED))


def brief(target: v.Target) -> dict[str, dict[str, int]]:
    return {name: dict(grant.alloc) for name, grant in target.grants.items()}


def running(order: int, alloc: dict[str, int], **more: Any) -> v.Job:
    known: dict[str, Any] = {"state": v.State.RUNNING, "run": v.Run(registered=True)}
    return job(order, **{**known, "goal": alloc, "held": alloc, **more})


def test_one_job_at_a_time_with_all_gpus() -> None:
    target = ask(job(1), job(2), job(3))
    assert brief(target) == {"1": {"n": 6}}
    assert target.grants["1"].role is v.Role.PRIMARY
    assert target.waits == {"2": "waits for a whole node", "3": BEHIND}


def test_a_small_job_has_the_node_to_itself_too() -> None:
    assert brief(ask(running(1, {"n": 2}, sizes=(1, 2)), job(2))) == {"1": {"n": 2}}


def test_a_job_of_several_nodes_has_them_to_itself() -> None:
    nodes = {"a": 4, "b": 6, "c": 6}
    target = ask(job(1, nodes=(2, 2)), job(2, nodes=(2, 3)), job(3), nodes=nodes)
    assert brief(target) == {"1": {"a": 4, "b": 4}}
    assert target.waits == {"2": "waits for 2 whole nodes", "3": BEHIND}


def test_each_node_takes_one_job_in_the_order_of_the_queue() -> None:
    nodes = {"a": 4, "b": 8}
    target = ask(job(1, (6,)), job(2, (2, 4)), job(3), nodes=nodes)
    assert brief(target) == {"1": {"b": 6}, "2": {"a": 4}}


def test_a_job_that_fits_nowhere_keeps_those_behind_it_waiting() -> None:
    target = ask(job(1, (8,)), job(2))
    assert brief(target) == {}
    assert target.waits == {"1": "waits for a whole node", "2": BEHIND}


def test_a_job_whose_needs_are_not_met_is_passed_over() -> None:
    assert brief(ask(job(1, ready=False), job(2))) == {"2": {"n": 6}}


def test_resize() -> None:
    assert brief(ask(running(1, {"n": 6}, sizes=(2,)))) == {"1": {"n": 2}}
    # Not where work would be lost, and not to what the node does not have.
    assert brief(ask(running(1, {"n": 6}, sizes=(2,), run=v.Run(registered=False)))) == {
        "1": {"n": 6}
    }
    assert brief(ask(running(1, {"n": 6}, sizes=(9,)))) == {"1": {"n": 6}}
    # Nor before it has answered the last change of its size.
    assert brief(ask(running(1, {"n": 6}, sizes=(2,), state=v.State.RESCALING))) == {"1": {"n": 6}}
