"""The main queue: as a plain one does it, and what must hold of it whatever the jobs."""

from __future__ import annotations

import math
import tracemalloc
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core.errors import InputError
from hpcext.sim.replay.mainqueue import BACKFILLS, DEPTH, MainQueue, Start
from hpcext.sim.traces.idle import NodeChange
from hpcext.sim.traces.swf import SwfJob


def job(number: int, submit_s: float, run_s: float, nodes: int, walltime_s: float = -1) -> SwfJob:
    return SwfJob(number, submit_s, -1, run_s, nodes, nodes, walltime_s)


def starts(
    nodes: int, jobs: Sequence[SwfJob], depth: int = DEPTH, backfill: str = "easy"
) -> dict[int, float]:
    found: list[Start] = []
    queue = MainQueue(nodes, depth=depth, backfill=backfill, observe=found.append)
    list(queue.changes(jobs, drain=True))
    return {each.job.number: each.start_s for each in found}


def plain(nodes: int, jobs: Sequence[SwfJob], depth: int) -> dict[int, float]:
    """EASY backfill in the plainest way: all is looked at again at every instant."""
    waiting: list[SwfJob] = []
    running: list[tuple[float, float, int]] = []  # ends, at the latest, nodes
    began: dict[int, float] = {}
    limit = {each.number: max(each.walltime_s, each.run_s) for each in jobs}
    while len(began) < len(jobs):
        coming = [
            each.submit_s for each in jobs if each not in waiting and each.number not in began
        ]
        now_s = min([*coming, *(ends for ends, _, _ in running)])
        running = [each for each in running if each[0] > now_s]
        waiting += [each for each in jobs if each.submit_s == now_s]
        while True:
            free = nodes - sum(each[2] for each in running)
            chosen = None
            if waiting and waiting[0].wanted <= free:
                chosen = waiting[0]
            elif waiting:
                shadow_s, spare = plan(free, running, waiting[0].wanted)
                for each in waiting[1 : 1 + depth]:
                    before = now_s + limit[each.number] <= shadow_s
                    if each.wanted <= free and (before or each.wanted <= spare):
                        chosen = each
                        break
            if chosen is None:
                break
            waiting.remove(chosen)
            began[chosen.number] = now_s
            running.append((now_s + chosen.run_s, now_s + limit[chosen.number], chosen.wanted))
    return began


def plan(free: int, running: Sequence[tuple[float, float, int]], need: int) -> tuple[float, int]:
    """When so many nodes are free at the latest, and how many more than that."""
    for when_s in sorted({each[1] for each in running}):
        then = free + sum(each[2] for each in running if each[1] <= when_s)
        if then >= need:
            return when_s, then - need
    raise AssertionError("a job that never fits")


NODES = 8
workloads = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 20), st.integers(1, NODES), st.integers(-1, 30)),
    min_size=1,
    max_size=25,
).map(
    lambda rows: [
        job(number, submit_s, run_s, nodes, walltime_s)
        for number, (submit_s, run_s, nodes, walltime_s) in enumerate(
            ((sum(row[0] for row in rows[: at + 1]), *row[1:]) for at, row in enumerate(rows)), 1
        )
    ]
)


def conservatively(nodes: int, jobs: Sequence[SwfJob]) -> dict[int, float]:
    """Each job as early as those before it allow, by true statements, in the plainest way."""
    used: list[tuple[float, float, int]] = []
    found = {}
    for each in jobs:
        ends = {end_s for _, end_s, _ in used if end_s > each.submit_s}
        start_s = next(
            at_s
            for at_s in sorted({each.submit_s, *ends})
            if all(
                sum(need for begin, end, need in used if begin <= when < end) + each.wanted <= nodes
                for when in (at_s, *(b for b, _, _ in used if at_s < b < at_s + each.run_s))
            )
        )
        used.append((start_s, start_s + each.run_s, each.wanted))
        found[each.number] = start_s
    return found


def from_zero(jobs: Sequence[SwfJob]) -> list[SwfJob]:
    return [each._replace(submit_s=each.submit_s - jobs[0].submit_s) for each in jobs]


@settings(max_examples=300, deadline=None)
@given(workloads, st.sampled_from([0, 1, 3, DEPTH]))
def test_it_starts_what_a_plain_one_starts(jobs: list[SwfJob], depth: int) -> None:
    assert starts(NODES, jobs, depth) == plain(NODES, from_zero(jobs), depth)


@settings(max_examples=200, deadline=None)
@given(workloads)
def test_conservative_backfill_is_that_of_a_plain_one(jobs: list[SwfJob]) -> None:
    exact = [each._replace(walltime_s=each.run_s) for each in jobs]
    found: list[Start] = []
    queue = MainQueue(NODES, backfill="conservative", observe=found.append)
    list(queue.changes(exact, drain=True))
    began = {each.job.number: each.start_s for each in found}
    assert began == conservatively(NODES, from_zero(exact))


def test_easy_delays_a_job_without_a_reservation_and_conservative_does_not() -> None:
    jobs = [
        job(1, 0, 10, 3, 10), job(2, 1, 9, 2, 9), job(3, 2, 10, 4, 10), job(4, 3, 99, 1, 99),
    ]  # fmt: skip
    assert starts(4, jobs) == {1: 0, 4: 3, 2: 10, 3: 102}
    assert starts(4, jobs, backfill="conservative") == {1: 0, 2: 10, 3: 19, 4: 29}
    assert starts(4, jobs, depth=0, backfill="conservative") == {1: 0, 2: 10, 3: 19, 4: 29}


@settings(max_examples=300, deadline=None)
@given(workloads, st.booleans(), st.sampled_from(BACKFILLS))
def test_what_must_hold(jobs: list[SwfJob], planned: bool, backfill: str) -> None:
    found: list[Start] = []
    queue = MainQueue(NODES, backfill=backfill, observe=found.append)
    changes = list(queue.changes(jobs, planned=planned, drain=True))
    assert len(found) == len(jobs)
    assert all(each.start_s >= each.job.submit_s >= 0 for each in found)
    assert all(len(each.nodes) == each.job.wanted for each in found)
    # Who had a reservation started when it was promised, or before.
    assert all(each.start_s <= each.promised_s for each in found)
    idle: set[int] = set()
    for at, change in enumerate(changes):
        idle = (idle - set(change.left)) | set(change.joined)
        assert list(change.joined) == sorted(change.joined)
        until_s = changes[at + 1].time_s if at + 1 < len(changes) else math.inf
        assert until_s > change.time_s
        busy = [
            int(node)
            for each in found
            if each.start_s <= change.time_s < each.start_s + each.job.run_s
            for node in each.nodes
        ]
        # Holes and jobs together are the machine, and no node has two jobs.
        assert sorted([*busy, *idle]) == list(range(NODES))
        assert set(change.planned) <= idle
        assert change.planned_s is None or change.planned_s > change.time_s
    assert queue.node_s == sum(each.wanted * each.run_s for each in jobs)


def test_first_come_first_served() -> None:
    jobs = [job(1, 0, 10, 3, 10), job(2, 1, 10, 4, 10), job(3, 2, 20, 1, 20), job(4, 3, 5, 1, 7)]
    # 2 waits for 1. 3 would delay it, on the node that is left, 4 ends by then.
    assert starts(4, jobs) == {1: 0, 2: 10, 4: 3, 3: 20}
    assert starts(4, jobs, depth=0) == {1: 0, 2: 10, 3: 20, 4: 20}
    assert starts(4, jobs, depth=1) == {1: 0, 2: 10, 3: 20, 4: 20}


def test_a_job_may_take_what_the_first_one_leaves() -> None:
    jobs = [job(1, 0, 10, 3, 10), job(2, 1, 10, 3, 10), job(3, 2, 99, 1, 99)]
    assert starts(4, jobs) == {1: 0, 2: 10, 3: 2}


def test_jobs_that_end_early_make_room_early() -> None:
    jobs = [job(1, 0, 4, 4, 50), job(2, 1, 9, 4, 9)]
    assert starts(4, jobs) == {1: 0, 2: 4}


def test_changes_and_plans() -> None:
    jobs = [job(1, 100, 10, 3, 12), job(2, 101, 10, 4, 10), job(3, 130, 1, 1)]
    assert list(MainQueue(5).changes(jobs)) == [
        NodeChange(0, (3, 4), ()),
        NodeChange(10, (), (3,)),
        NodeChange(20, (0, 1, 2, 3), ()),
        NodeChange(30, (), (0,)),
    ]
    told = list(MainQueue(5).changes(jobs, planned=True))
    assert told[:3] == [
        NodeChange(0, (3, 4), ()),
        # From second 1 on it is known: job 2 starts at 12 s at the latest, on nodes 0 to 3.
        NodeChange(1, (), (), 12, (3,)),
        NodeChange(10, (), (3,)),
    ]


def test_nodes_that_are_taken_at_once_make_no_hole() -> None:
    jobs = [job(1, 0, 10, 2), job(2, 1, 5, 2), job(3, 20, 1, 1)]
    assert [change.time_s for change in MainQueue(2).changes(jobs)] == [15, 20]


def test_processors() -> None:
    found: list[Start] = []
    jobs = [job(1, 0, 10, 65), SwfJob(2, 0, run_s=10, procs=64, procs_requested=-1)]
    list(MainQueue(4, procs_per_node=64, observe=found.append).changes(jobs))
    assert [each.nodes.tolist() for each in found] == [[0, 1], [2]]


def test_jobs_that_cannot_run_are_counted() -> None:
    jobs = [job(1, 0, 10, 5), job(2, 0, -1, 1), job(3, 0, 0, 1), job(4, 0, 10, -1), job(5, 3, 1, 4)]
    queue = MainQueue(4)
    list(queue.changes(jobs))
    assert (queue.jobs, queue.too_large, queue.most_needed) == (5, 1, 5)
    assert (queue.skipped, queue.started) == (3, 1)
    for nodes, procs, depth in ((0, 1, 1), (10**7, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(InputError):
            MainQueue(nodes, procs_per_node=procs, depth=depth)
    with pytest.raises(InputError, match=r"backfill 'most' \(valid: easy, conservative\)"):
        MainQueue(4, backfill="most")


def test_what_runs_longer_than_it_asked_for_is_planned_so() -> None:
    jobs = [job(1, 0, 20, 3, 10), job(2, 1, 10, 4, 10), job(3, 2, 15, 1, 15)]
    assert starts(4, jobs) == {1: 0, 3: 2, 2: 20}


def test_a_long_log_streams() -> None:
    jobs = (job(n, 3 * n, 1 + n % 60, 1 + n % 4, 60) for n in range(10_000))
    tracemalloc.start()
    queue = MainQueue(80)
    deque(queue.changes(jobs), maxlen=0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert queue.started == 10_000
    # So many jobs would be more than two megabytes.
    assert peak_bytes < 1e6
