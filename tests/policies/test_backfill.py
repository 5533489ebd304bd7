"""EASY and conservative backfill of rigid jobs, by what jobs state and not by what is true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from played import Played, play

from hpcext.core.facts import Fact, NodeLost
from hpcext.core.values import Cause, Job, Node, Run, Snapshot, State, Target
from hpcext.policies import find_policy
from hpcext.policies.common import BEHIND
from hpcext.sim.replay.mainqueue import MainQueue, Start
from hpcext.sim.replay.physics import Physics
from hpcext.sim.traces.swf import SwfJob

GPUS = 4
BOTH = ("easy", "conservative")


def job(order: int, nodes: int, walltime_s: float | None, gpus: int = GPUS, **more: Any) -> Job:
    return Job(
        str(order), f"j{order}", order, (gpus,), gpus, nodes=(nodes, nodes),
        walltime_s=walltime_s, **more,
    )  # fmt: skip


def running(order: int, alloc: dict[str, int], walltime_s: float | None, **more: Any) -> Job:
    known: dict[str, Any] = {"state": State.RUNNING, "run": Run(registered=True)}
    gpus = min(alloc.values())
    return job(order, len(alloc), walltime_s, gpus, **{**known, "goal": alloc, **more})


def asked(
    policy: str, *jobs: Job, now_s: float = 0.0, nodes: dict[str, int] | None = None,
    kinds: dict[str, str] | None = None, memo: dict[str, Any] | None = None,
    cause: Cause = Cause.ENDED,
) -> Target:  # fmt: skip
    widths = nodes or dict.fromkeys("abcd", GPUS)
    there = {name: Node(name, gpus, (kinds or {}).get(name, "")) for name, gpus in widths.items()}
    return find_policy(policy)(Snapshot(now_s, there, jobs, cause, memo))


def started(target: Target, *jobs: Job) -> dict[str, dict[str, int]]:
    had = {each.id for each in jobs if each.goal}
    return {name: dict(each.alloc) for name, each in target.grants.items() if name not in had}


# By hand.


def test_easy_delays_the_second_waiting_job_and_conservative_delays_none() -> None:
    jobs = (running(1, dict.fromkeys("abc", 4), 10), job(2, 2, 10), job(3, 4, 10), job(4, 1, 100))
    easy, conservative = (asked(policy, *jobs) for policy in BOTH)
    # 2 starts at 10 s beside 4; 3 needs all four nodes, and has no reservation under EASY.
    assert started(easy, *jobs) == {"4": {"d": 4}}
    assert started(conservative, *jobs) == {}
    assert conservative.memo == {"starts": {"2": 10.0, "3": 20.0, "4": 30.0}}
    assert easy.waits == {
        "2": "next in the queue; waits for 4 GPUs on each of 2 nodes", "3": BEHIND,
    }  # fmt: skip


@pytest.mark.parametrize("policy", BOTH)
def test_a_job_that_ends_in_time_overtakes(policy: str) -> None:
    first = (running(1, dict.fromkeys("abc", 4), 10, since_s=5.0), job(2, 4, 10))
    assert started(asked(policy, *first, job(3, 1, 8), now_s=7), *first) == {"3": {"d": 4}}
    assert started(asked(policy, *first, job(3, 1, 9), now_s=7), *first) == {}
    assert started(asked(f"{policy}:depth=0", *first, job(3, 1, 8), now_s=7), *first) == {}


@pytest.mark.parametrize("policy", BOTH)
def test_a_job_that_states_no_end_may_take_what_the_first_leaves(policy: str) -> None:
    jobs = (running(1, dict.fromkeys("abc", 4), 10), job(2, 3, 10), job(3, 1, None), job(4, 1, 1))
    assert started(asked(policy, *jobs), *jobs) == {"3": {"d": 4}}


@pytest.mark.parametrize("policy", BOTH)
def test_nothing_starts_behind_a_job_that_needs_an_end_that_nobody_states(policy: str) -> None:
    jobs = (running(1, dict.fromkeys("abc", 4), None), job(2, 2, 10), job(3, 1, 1))
    assert started(asked(policy, *jobs), *jobs) == {}
    # But it does on nodes that the first one cannot use.
    nodes, kinds = {**dict.fromkeys("abcd", 4), "e": 2}, {"e": "old"}
    narrow = job(4, 1, 1, 2)
    assert started(asked(policy, *jobs, narrow, nodes=nodes, kinds=kinds), *jobs) == {"4": {"e": 2}}


@pytest.mark.parametrize("policy", BOTH)
def test_a_job_for_which_the_machine_is_too_small_holds_nobody_up(policy: str) -> None:
    target = asked(policy, job(1, 5, 10), job(2, 4, 10))
    assert set(target.grants) == {"2"}
    assert target.waits == {"1": "next in the queue; too few nodes are large enough for it"}


@pytest.mark.parametrize("policy", BOTH)
def test_a_job_that_outlasts_its_statement_may_end_at_any_moment(policy: str) -> None:
    jobs = (running(1, dict.fromkeys("abc", 4), 10), job(2, 4, 10), job(3, 1, 1))
    assert started(asked(policy, *jobs, now_s=50.0), *jobs) == {}
    jobs = (running(1, dict.fromkeys("abc", 4), 10), job(2, 3, 10), job(3, 1, 1))
    assert started(asked(policy, *jobs, now_s=50.0), *jobs) == {"3": {"d": 4}}


@pytest.mark.parametrize("policy", BOTH)
def test_jobs_share_nodes_by_their_gpus(policy: str) -> None:
    nodes = {"a": 4, "b": 4}
    jobs = (running(1, {"a": 3}, 10), job(2, 1, 10, 2), job(3, 2, 10, 1), job(4, 1, 5, 4))
    target = asked(policy, *jobs, nodes=nodes)
    # 2 goes to b, where it has room; 3 fills a and has its other GPU there; 4 waits for one to end.
    assert started(target, *jobs) == {"2": {"b": 2}, "3": {"a": 1, "b": 1}}
    behind = job(5, 1, 11, 1)
    # 4 is to start on a or b at 10 s. One that ends later may have the last GPU of the other node.
    assert started(asked(policy, *jobs, behind, nodes=nodes), *jobs) == {
        "2": {"b": 2}, "3": {"a": 1, "b": 1}, "5": {"b": 1},
    }  # fmt: skip
    # Where it needs both of them, nobody may.
    both = (running(1, {"a": 3, "b": 3}, 10), job(4, 2, 5, 4), behind)
    assert started(asked(policy, *both, nodes=nodes), *both) == {}


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("gpus", [1, 4])
def test_nodes_of_the_last_failure_come_last(policy: str, gpus: int) -> None:
    once = job(1, 1, 10, gpus, failed_on=("a",))
    assert started(asked(policy, once)) == {"1": {"b": gpus}}
    assert started(asked(policy, once, nodes={"a": 4})) == {"1": {"a": gpus}}


@pytest.mark.parametrize("policy", BOTH)
def test_a_job_has_nodes_of_one_kind(policy: str) -> None:
    kinds = {"a": "old", "b": "new", "c": "old", "d": "new"}
    jobs = (running(1, {"a": 4}, 10), job(2, 2, 10), job(3, 2, 10), job(4, 1, 10), job(5, 1, 11))
    target = asked(policy, *jobs, kinds=kinds)
    # 3 waits for a and c; what ends by then may run on c.
    assert started(target, *jobs) == {"2": {"b": 4, "d": 4}, "4": {"c": 4}}


def test_a_wide_node_takes_a_narrow_job_last() -> None:
    nodes = {"wide": 8, "narrow": 5, "other": 5}
    two = job(1, 2, 10, 5)
    assert started(asked("easy", two, job(2, 1, 10, 8), nodes=nodes)) == {
        "1": {"narrow": 5, "other": 5}, "2": {"wide": 8},
    }  # fmt: skip
    assert started(asked("conservative", job(1, 3, 10, 5), nodes=nodes)) == {
        "1": dict.fromkeys(nodes, 5)
    }


@pytest.mark.parametrize("policy", BOTH)
def test_a_size_that_its_user_asked_for(policy: str) -> None:
    bigger = Job(
        "1", "j1", 1, (3,), 3, nodes=(1, 1), stated=(1, 2, 3, 4), goal={"a": 2},
        state=State.RUNNING, run=Run(registered=True), why="runs on 2 GPUs, a fixed size",
    )  # fmt: skip
    target = asked(policy, bigger, nodes={"a": 4})
    assert dict(target.grants["1"].alloc) == {"a": 3}


def test_a_reservation_stays_where_it_was_promised() -> None:
    jobs = (running(1, {"a": 4, "b": 4, "c": 4}, 10), job(2, 4, 10), job(3, 2, 10))
    kept = {"starts": {"2": 10.0, "3": 25.0}}
    # Nothing has come free: 3 stays although there is a better time, which nobody looks for.
    same = asked("conservative", *jobs, memo=kept, cause=Cause.SUBMITTED)
    assert same.memo == kept
    moved = asked("conservative", *jobs, memo=kept)
    assert moved.memo == {"starts": {"2": 10.0, "3": 20.0}}
    # A promise that time has passed by is none.
    late = asked("conservative", *jobs, memo=kept, now_s=30, cause=Cause.SUBMITTED)
    assert late.memo is not None
    assert min(late.memo["starts"].values()) > 30


def test_a_job_of_higher_priority_does_not_delay_what_is_promised() -> None:
    wide, urgent = job(2, 4, 10), job(9, 4, 10, priority=1.0)
    jobs = (running(1, {"a": 4}, 10), urgent, wide)
    target = asked("conservative", *jobs, memo={"starts": {"2": 10.0}}, cause=Cause.SUBMITTED)
    assert target.memo == {"starts": {"2": 10.0, "9": 20.0}}


# Whole runs.

NODES = 8
rows = st.lists(
    st.tuples(
        st.integers(0, 12), st.integers(1, 20), st.integers(1, NODES), st.integers(0, 15)
    ),
    min_size=1,
    max_size=14,
)  # fmt: skip


def log(drawn: Sequence[tuple[int, int, int, int]], *, exact: bool = False) -> list[SwfJob]:
    """Jobs whose requested time is as long as they run, or longer."""
    found, at_s = [], 0
    for number, (gap_s, run_s, nodes, more_s) in enumerate(drawn, 1):
        at_s += gap_s if number > 1 else 0
        limit_s = run_s + (0 if exact else more_s)
        found.append(SwfJob(number, at_s, -1, run_s, nodes, nodes, limit_s))
    return found


def run(
    policy: str, jobs: Sequence[SwfJob], plans: list[Target] | None = None,
    inputs: Sequence[tuple[float, Fact]] = (),
) -> Played:  # fmt: skip
    known = find_policy(policy)

    def noted(now: Snapshot) -> Target:
        target = known(now)
        if plans is not None:
            plans.append(target)
        return target

    rigid = [
        job(each.number, each.procs, each.walltime_s if each.walltime_s > 0 else None,
            submitted_s=each.submit_s)
        for each in jobs
    ]  # fmt: skip
    machine = [Node(f"n{number}", GPUS) for number in range(NODES)]
    physics = {str(each.number): Physics({GPUS * each.procs: 1.0}, each.run_s) for each in jobs}
    return play(rigid, machine, noted, physics, inputs=inputs)


def starts(result: Played) -> dict[int, float]:
    return {int(name): each.segments[0].start_s for name, each in result.records.items()}


def of_main_queue(jobs: Sequence[SwfJob], depth: int) -> dict[int, float]:
    found: list[Start] = []
    list(MainQueue(NODES, depth=depth, observe=found.append).changes(jobs, drain=True))
    return {each.job.number: each.start_s for each in found}


@settings(max_examples=60, deadline=None)
# A job that starts does not count among those that are considered.
@example(drawn=[(0, 1, 1, 0)] * 3 + [(0, 1, 6, 0)] + [(0, 1, 1, 0)] * 2, depth=1)
@given(rows, st.sampled_from([0, 1, 500]))
def test_easy_starts_jobs_when_the_main_queue_does(
    drawn: list[tuple[int, int, int, int]], depth: int
) -> None:
    jobs = log(drawn)
    assert starts(run(f"easy:depth={depth}", jobs)) == of_main_queue(jobs, depth)


def plainly(jobs: Sequence[SwfJob]) -> dict[int, float]:
    """Conservative backfill in the plainest way, if all statements are true."""
    used: list[tuple[float, float, int]] = []
    found = {}
    for each in jobs:
        times = sorted({each.submit_s, *(end for _, end, _ in used if end > each.submit_s)})
        for start_s in times:
            inside = [start_s, *(at for at, _, _ in used if start_s < at < start_s + each.run_s)]
            if all(
                sum(n for begin, end, n in used if begin <= at < end) + each.procs <= NODES
                for at in inside
            ):
                break
        used.append((start_s, start_s + each.run_s, each.procs))
        found[each.number] = start_s
    return found


@settings(max_examples=60, deadline=None)
@given(rows)
def test_conservative_starts_each_job_as_early_as_those_before_it_allow(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    jobs = log(drawn, exact=True)
    assert starts(run("conservative", jobs)) == plainly(jobs)


@settings(max_examples=60, deadline=None)
@given(rows)
def test_no_job_starts_later_than_conservative_has_promised(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    jobs, plans = log(drawn), list[Target]()
    began = starts(run("conservative", jobs, plans))
    promised: dict[str, float] = {}
    for plan in plans:
        for name, start_s in ((plan.memo or {}).get("starts", {})).items():
            assert start_s <= promised.get(name, math.inf)
            promised[name] = start_s
    assert all(began[int(name)] <= start_s for name, start_s in promised.items())


@settings(max_examples=40, deadline=None)
@given(rows, st.sampled_from(BOTH))
def test_all_jobs_end_whatever_they_state(
    drawn: list[tuple[int, int, int, int]], policy: str
) -> None:
    """Some state nothing, some too little, and a node leaves."""
    jobs = [
        each._replace(
            walltime_s=(-1, 1, each.walltime_s)[each.number % 3], procs=min(each.procs, 4)
        )
        for each in log(drawn)
    ]
    result = run(policy, jobs, inputs=[(7.0, NodeLost("n0"))])
    assert all(each.state is State.COMPLETED for each in result.jobs.values())


@pytest.mark.parametrize("policy", BOTH)
def test_what_runs_longer_than_stated_is_not_known_before(policy: str) -> None:
    """A policy that saw true times would not start 3 beside 1, nor leave 2 waiting for it."""
    truth = [SwfJob(1, 0, -1, 50, 4, 4, 10), SwfJob(2, 1, -1, 10, 8, 8, 10)]
    short = SwfJob(3, 2, -1, 30, 4, 4, 8)
    # By its statement 3 ends before 1 does; in truth it does not, and 2 waits for both.
    assert starts(run(policy, [*truth, short])) == {1: 0, 2: 50, 3: 2}
    long = short._replace(run_s=8, walltime_s=9)
    assert starts(run(policy, [*truth, long])) == {1: 0, 2: 50, 3: 60}
