"""MARBLE's Algorithm 1, case by case: a snapshot in, a target out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hpcext.core import values as v
from hpcext.core.estimate import Estimate, Observed
from hpcext.policies import find_policy
from hpcext.policies.common import BEHIND

SIZES = tuple(range(1, 7))


def job(order: int, optimal: int, sizes: tuple[int, ...] = SIZES, **more: Any) -> v.Job:
    return v.Job(str(order), f"j{order}", order, sizes, optimal, **more)


def running(order: int, optimal: int, gpus: int, node: str = "n", **more: Any) -> v.Job:
    """A job that runs on so many GPUs with a session that answers."""
    role = v.Role.PRIMARY if gpus == optimal else v.Role.SECONDARY
    known: dict[str, Any] = {
        "state": v.State.RUNNING,
        "run": v.Run(registered=True),
        "role": role,
        "op": 1,
    }
    alloc = {node: gpus}
    return job(order, optimal, **{**known, "goal": alloc, "held": alloc, **more})


def ask(*jobs: v.Job, nodes: dict[str, int] | None = None) -> v.Target:
    there = {name: v.Node(name, gpus) for name, gpus in (nodes or {"n": 6}).items()}
    return find_policy("marble")(v.Snapshot(0.0, there, jobs, v.Cause.ENDED))


def brief(target: v.Target) -> dict[str, str]:
    """Job → node, GPUs and role: ``n 4 primary``."""
    return {
        name: " ".join(f"{node} {gpus}" for node, gpus in grant.alloc.items())
        + f" {grant.role.value}"
        for name, grant in target.grants.items()
    }


def test_the_first_job_is_primary_the_next_gets_what_is_left() -> None:
    target = ask(job(1, 4), job(2, 3), job(3, 1))
    assert brief(target) == {"1": "n 4 primary", "2": "n 2 secondary"}
    assert target.grants["2"].why == "runs on 2 of 3 GPUs: no more were free on n"
    assert target.waits == {"3": "next in the queue; waits for a free GPU"}


def test_two_primaries_where_both_fit() -> None:
    """Line 16 asks for as many as are best, or more: exactly as many will do."""
    assert brief(ask(job(1, 3), job(2, 3))) == {"1": "n 3 primary", "2": "n 3 primary"}


def test_a_completion_promotes_the_secondary_before_the_queue_gets_anything() -> None:
    """Figure 5, the moment when job 1 ends: 3 GPUs are free and job 2 has 3 of 4."""
    assert brief(ask(running(2, 4, 3), job(3, 5))) == {"2": "n 4 primary", "3": "n 2 secondary"}


def test_a_secondary_is_not_promoted_by_halves() -> None:
    """Line 6: only if the best number is available; what is free goes to the next job."""
    target = ask(running(1, 2, 2), running(2, 5, 2), job(3, 4))
    assert brief(target) == {"1": "n 2 primary", "2": "n 2 secondary", "3": "n 2 secondary"}
    assert target.grants["2"].why == "runs on 2 of 5 GPUs: 3 more needed, 2 free"


def test_several_secondaries_are_promoted_in_the_order_of_the_queue() -> None:
    both = ask(running(1, 3, 2), running(2, 3, 1))
    assert brief(both) == {"1": "n 3 primary", "2": "n 3 primary"}
    first = ask(running(1, 4, 2), running(2, 3, 1))
    assert brief(first) == {"1": "n 4 primary", "2": "n 1 secondary"}
    # The first one cannot have enough, the second one can: nothing is kept back for the first.
    second = ask(running(1, 6, 2), running(2, 3, 1))
    assert brief(second) == {"1": "n 2 secondary", "2": "n 3 primary"}


def test_a_primary_is_left_alone() -> None:
    assert brief(ask(running(1, 2, 2))) == {"1": "n 2 primary"}


def test_a_job_whose_needs_are_not_met_is_passed_over() -> None:
    """The next job "which is marked as independent" is taken, section V-C."""
    target = ask(job(1, 3), job(2, 3, after=("1",), ready=False), job(3, 3))
    assert brief(target) == {"1": "n 3 primary", "3": "n 3 primary"}
    assert target.waits == {}


def test_a_job_that_does_not_fit_keeps_those_behind_it_waiting() -> None:
    target = ask(running(1, 4, 4), job(2, 4, sizes=(3, 4)), job(3, 1), job(4, 1))
    assert brief(target) == {"1": "n 4 primary"}
    assert target.waits == {
        "2": "next in the queue; waits for 3 GPUs on one node, and 2 are free; "
        "with a gpus.min of 2 it could start now",
        "3": BEHIND,
        "4": BEHIND,
    }


def test_the_order_of_the_snapshot_is_the_order_of_the_queue() -> None:
    """The engine has sorted the jobs by priority."""
    urgent = job(9, 4, priority=1.0)
    assert brief(ask(urgent, job(1, 4))) == {"9": "n 4 primary", "1": "n 2 secondary"}


def test_only_sizes_that_a_job_can_have() -> None:
    target = ask(job(1, 4, sizes=(1, 2, 4)), job(2, 4, sizes=(1, 4)))
    assert brief(target) == {"1": "n 4 primary", "2": "n 1 secondary"}
    # Its best size is more than the node has: what comes next is the best there.
    assert brief(ask(job(1, 8, sizes=(2, 4, 8)))) == {"1": "n 4 primary"}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"run": v.Run(registered=False)}, "stays on 2 of 6 GPUs: no session has registered"),
        ({"suspendable": False}, "stays on 2 of 6 GPUs: it ignored a suspension"),
        (
            {"state": v.State.STARTING, "run": v.Run(registered=False)},
            "stays on 2 of 6 GPUs: no session has registered",
        ),
        ({"state": v.State.RESCALING}, "stays on 2 of 6 GPUs: it is being resized"),
    ],
)
def test_a_job_that_would_lose_work_is_not_moved(state: dict[str, Any], why: str) -> None:
    """Its free GPUs go to the next in the queue meanwhile."""
    target = ask(running(1, 6, 2, **state), job(2, 2))
    assert brief(target) == {"1": "n 2 secondary", "2": "n 2 primary"}
    assert target.grants["1"].why == why


KNOWN = Estimate(
    stated={2: 1.0, 4: 2.0}, observed=(Observed(2, 1, 5.0),), work=200, done=100, up_s=9.0
)
"""On two GPUs 20 s are left; on four 10 s, as the job's stated speeds compare."""


def test_a_secondary_that_would_end_no_sooner_is_not_promoted() -> None:
    """What is free goes to the next job of the queue instead."""
    assert brief(ask(running(1, 4, 2, estimate=KNOWN))) == {"1": "n 4 primary"}
    dear = replace(KNOWN, up_s=10.0)
    target = ask(running(1, 4, 2, estimate=dear), job(2, 4))
    assert brief(target) == {"1": "n 2 secondary", "2": "n 4 primary"}
    assert target.grants["1"].why == (
        "stays on 2 of 4 GPUs: it will end in 20 s as it is, and growing takes 10 s"
    )
    # Measured goes before stated.
    slow = replace(KNOWN, observed=(*KNOWN.observed, Observed(4, 1, 9.0)))
    assert brief(ask(running(1, 4, 2, estimate=slow))) == {"1": "n 2 secondary"}


def test_speeds_are_those_of_all_nodes_together() -> None:
    """Two GPUs on each of two nodes, and what is stated and was measured is that of four."""
    wide = replace(KNOWN, stated={4: 1.0, 8: 2.0}, observed=(Observed(4, 2, 5.0),))
    nodes = {name: v.Node(name, 4) for name in ("a", "b")}
    job_ = running(1, 4, 2, nodes=(2, 2), estimate=wide)
    held = {"a": 2, "b": 2}
    for up_s, gets in ((9.0, 4), (10.0, 2)):
        known = replace(wide, up_s=up_s)
        now = v.Snapshot(
            0.0, nodes, (replace(job_, goal=held, held=held, estimate=known),), v.Cause.TIME
        )
        assert dict(find_policy("marble")(now).grants["1"].alloc) == {"a": gets, "b": gets}


@pytest.mark.parametrize(
    "change",
    [{"up_s": None}, {"work": None}, {"observed": ()}, {"observed": (Observed(4, 1, 10.0),)},
     {"stated": {}}, {"stated": {4: 2.0}}, {"stated": {2: 1.0}}],
    ids=str,
)  # fmt: skip
def test_a_secondary_is_promoted_where_its_end_or_the_cost_is_not_known(
    change: dict[str, Any],
) -> None:
    unknown = replace(KNOWN, **{"up_s": 1000.0, **change})
    assert brief(ask(running(1, 4, 2, estimate=unknown))) == {"1": "n 4 primary"}


def test_the_cost_does_not_count_where_nothing_runs_or_the_user_asked() -> None:
    dear = replace(KNOWN, up_s=1000.0)
    for state in (v.State.PENDING, v.State.STOPPING):
        assert brief(ask(running(1, 4, 2, estimate=dear, state=state))) == {"1": "n 4 primary"}
    asked = running(1, 4, 2, sizes=(4,), estimate=dear)
    assert brief(ask(asked)) == {"1": "n 4 primary"}


def test_a_secondary_that_has_not_started_yet_is_promoted_on_paper() -> None:
    waiting = running(1, 4, 2, state=v.State.PENDING, held={}, run=v.Run(registered=False))
    assert brief(ask(waiting)) == {"1": "n 4 primary"}


def test_a_primary_goes_where_it_fits_most_tightly() -> None:
    nodes = {"a": 6, "b": 4, "c": 5}
    assert brief(ask(job(1, 4), nodes=nodes)) == {"1": "b 4 primary"}


def test_a_secondary_goes_where_most_is_left() -> None:
    jobs = (running(1, 3, 3, "a"), running(2, 4, 4, "b"), job(3, 5))
    assert brief(ask(*jobs, nodes={"a": 6, "b": 6}))["3"] == "a 3 secondary"


def test_a_secondary_is_promoted_on_its_own_node_only() -> None:
    jobs = (running(1, 3, 3, "a"), running(2, 4, 3, "a"), job(3, 6))
    target = ask(*jobs, nodes={"a": 6, "b": 6})
    assert brief(target) == {"1": "a 3 primary", "2": "a 3 secondary", "3": "b 6 primary"}


TWO = {"a": 6, "b": 6}


def test_a_job_of_several_nodes_has_as_many_gpus_on_each() -> None:
    """As a primary where its best size is free on enough of them, and on no more than it takes."""
    target = ask(job(1, 4, nodes=(2, 2)), job(2, 3), nodes={**TWO, "c": 6})
    assert brief(target) == {"1": "a 4 b 4 primary", "2": "c 3 primary"}
    assert target.grants["1"].why == "runs on 4 GPUs on each of 2 nodes, its best size"
    assert brief(ask(job(1, 4, nodes=(1, 3)), nodes={**TWO, "c": 2})) == {"1": "a 4 b 4 primary"}


def test_a_job_of_several_nodes_is_secondary_on_the_least_that_is_left() -> None:
    busy = running(1, 5, 5, node="a")
    target = ask(busy, job(2, 4, nodes=(2, 2)), job(3, 1), nodes=TWO)
    assert brief(target) == {"1": "a 5 primary", "2": "a 1 b 1 secondary", "3": "b 1 primary"}
    assert target.grants["2"].why == "runs on 1 of 4 GPUs: no more were free on a"


def test_a_job_of_more_nodes_than_are_free_waits() -> None:
    busy = running(1, 6, 6, node="a")
    target = ask(busy, job(2, 4, nodes=(2, 2)), job(3, 1), nodes=TWO)
    assert brief(target) == {"1": "a 6 primary"}
    assert target.waits == {
        "2": "next in the queue; needs 1 GPU on each of 2 nodes",
        "3": BEHIND,
    }


def test_a_job_of_several_nodes_is_promoted_on_all_of_them_or_on_none() -> None:
    held = {"a": 2, "b": 2}
    wide = running(1, 6, 2, goal=held, held=held, nodes=(2, 2))
    assert brief(ask(wide, nodes=TWO)) == {"1": "a 6 b 6 primary"}
    short = ask(wide, running(2, 1, 1, node="b"), nodes=TWO)
    assert short.grants["1"].alloc == held
    assert short.grants["1"].why == "runs on 2 of 6 GPUs: 4 more needed, 3 free"


def test_resize_moves_a_primary_up_or_down() -> None:
    up = running(1, 5, 2, sizes=(5,), role=v.Role.PRIMARY)
    assert brief(ask(up)) == {"1": "n 5 primary"}
    assert ask(up).grants["1"].why == "resized from 2 to 5 GPUs, its best size"
    down = running(1, 1, 4, sizes=(1,), role=v.Role.PRIMARY)
    assert brief(ask(down, job(2, 5))) == {"1": "n 1 primary", "2": "n 5 primary"}


def test_resize_waits_for_its_gpus_and_a_session_that_answers() -> None:
    asked = running(1, 5, 2, sizes=(5,), role=v.Role.PRIMARY)
    target = ask(asked, running(2, 3, 3))
    assert brief(target)["1"] == "n 2 primary"
    assert target.grants["1"].why == "runs on 2 of 5 GPUs: 3 more needed, 1 free"
    deaf = running(1, 5, 2, sizes=(5,), role=v.Role.PRIMARY, suspendable=False)
    assert brief(ask(deaf)) == {"1": "n 2 primary"}


def test_resize_to_more_than_the_node_has_changes_nothing() -> None:
    target = ask(running(1, 8, 2, sizes=(8,)), job(2, 2))
    assert brief(target) == {"1": "n 2 secondary", "2": "n 2 primary"}
    assert target.grants["1"].why == ("stays on 2 GPUs: n is too small for the requested size")


def test_no_nodes_no_grants() -> None:
    target = find_policy("marble")(v.Snapshot(0.0, {}, (job(1, 2),), v.Cause.NODES))
    assert target.grants == {}
    assert target.waits == {"1": "next in the queue; waits for a free GPU"}


def test_what_is_wanted_is_said_in_words_for_each_job_that_waits() -> None:
    jobs = [job(order, 6) for order in range(1, 50)]
    target = ask(*jobs)
    assert set(target.grants) | set(target.waits) == {job.id for job in jobs}
    assert all(target.waits.values())
