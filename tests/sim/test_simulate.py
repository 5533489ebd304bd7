"""The simulated executor against arithmetic done by hand."""

from __future__ import annotations

from typing import Any

import pytest
from played import Played, play

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine, Policy
from hpcext.core.estimate import Estimate
from hpcext.policies import find_policy
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.heap import Heap, drive
from hpcext.sim.replay.physics import Faults, Physics, Where

EXCLUSIVE = find_policy("exclusive")
MARBLE = find_policy("marble")
NODE = v.Node("n", 4)


def job(order: int, sizes: tuple[int, ...] = (1, 2, 3, 4), optimal: int = 4) -> v.Job:
    return v.Job(str(order), f"j{order}", order, sizes, optimal)


def promoted(policy: Policy = MARBLE, report_s: float | None = None, **costs: float) -> Played:
    """Job 1 for 10 s on 3 GPUs; job 2 on the last one from 0 s on, then on 3."""
    jobs = [job(1, optimal=3), job(2, optimal=3)]
    physics = {
        "1": Physics({3: 10.0}, work=100),
        "2": Physics({1: 4.0, 3: 10.0}, work=100, **costs),
    }
    return play(jobs, [NODE], policy, physics, report_s=report_s)


def test_one_job_takes_launch_resume_and_training() -> None:
    physics = {"1": Physics({4: 5.0}, work=100, launch_s=1, resume_s=2)}
    result = play([job(1)], [NODE], EXCLUSIVE, physics)
    assert result.run.finished
    assert result.run.end_s == pytest.approx(1 + 2 + 100 / 5)
    # The GPUs count as busy from the moment that the attempt is known to run.
    assert result.gpu_busy_fraction == pytest.approx(22 / 23)
    (segment,) = result.records["1"].segments
    assert (segment.start_s, segment.steps) == (1, 100)
    assert segment.end_s == pytest.approx(23)
    assert segment.gpus == ("n:0", "n:1", "n:2", "n:3")


def test_a_suspension_costs_its_time_and_loses_nothing() -> None:
    result = promoted(suspend_s=1.5, resume_s=0.5)
    # Job 2 restores for 0.5 s, trains to 10 s (38 of 100), saves for 1.5 s, restores again.
    assert result.run.end_s == pytest.approx(10 + 1.5 + 0.5 + (100 - 4 * 9.5) / 10)
    record = result.records["2"]
    assert [part.steps for part in record.segments] == [38, 62]
    assert [part.role for part in record.segments] == [v.Role.SECONDARY, v.Role.PRIMARY]
    assert (record.suspends, record.lost_steps) == (1, 0)
    assert [part.suspend_s for part in record.segments] == [{"write_s": 1.5}, None]
    assert record.segments[0].resume_s == {"restore_s": 0.5}


def test_jobs_arrive_when_they_are_submitted() -> None:
    late = v.Job("1", "late", 1, (1,), 1, submitted_s=30.0)
    result = play([late], [NODE], MARBLE, {"1": Physics({1: 1.0}, work=5)})
    assert [when_s for when_s, _ in result.actions] == [30.0]
    assert result.run.end_s == pytest.approx(35)


def test_a_failure_goes_back_to_the_last_checkpoint() -> None:
    """A lost node takes the job back to the checkpoint of its 20th second."""
    physics = {"1": Physics({1: 1.0}, work=60, checkpoint_s=10)}
    inputs: list[tuple[float, f.Fact]] = [(25.0, f.NodeLost("n")), (40.0, f.NodeJoined(NODE))]
    result = play([job(1, (1,), 1)], [NODE], MARBLE, physics, inputs=inputs, report_s=5)
    assert result.run.end_s == pytest.approx(40 + (60 - 20))
    # Offered: 25 s and 40 s of four GPUs; used: one of them.
    assert result.gpu_busy_fraction == pytest.approx(1 / 4)
    # What was reported last before the loss was step 20 or 25: steps 20 to 25 are run again.
    assert result.records["1"].lost_steps in {0, 5}


def test_progress_teaches_the_estimate_and_physics_stays_hidden() -> None:
    seen: list[Estimate] = []

    def spy(now: v.Snapshot) -> v.Target:
        seen.extend(job.estimate for job in now.jobs)
        return MARBLE(now)

    result = promoted(spy, report_s=3)
    assert seen[0] == Estimate()
    assert any(known.measured == {1: 4.0} and known.done == 36.0 for known in seen)
    assert result.jobs["2"].estimate.measured == {1: 4.0, 3: pytest.approx(10)}
    assert result.jobs["2"].estimate.done == pytest.approx(100)


def test_an_unresponsive_job_is_killed_after_its_timeout_and_loses_what_it_had_not_saved() -> None:
    jobs = [job(1, (4,), 4), v.Job("2", "other", 2, (4,), 4)]
    physics = {name: Physics({4: 1.0}, work=200) for name in "12"}
    inputs: list[tuple[float, f.Fact]] = [(40.0, f.Hold("1")), (300.0, f.Release("1"))]
    result = play(
        jobs, [NODE], MARBLE, physics, inputs=inputs, faults=Faults(unresponsive=1, until_s=0)
    )
    kinds = [(when_s, action.kind, action.force) for when_s, action in result.actions]
    # 60 s is the job's suspend_timeout_s; the start at 0 s is the one with the fault.
    assert (40.0, v.Kind.SUSPEND, False) in kinds
    assert (100.0, v.Kind.KILL, False) in kinds
    assert result.run.finished
    # SIGTERM takes half a second; then job 2 runs, and job 1 from its beginning.
    assert [result.jobs[name].since_s for name in "21"] == [300.5, 500.5]


def test_the_same_seed_gives_the_same_run_and_another_a_different_one() -> None:
    def once(seed: int) -> Played:
        jobs = [job(order, optimal=3) for order in range(1, 6)]
        physics = {str(n): Physics({1: 1, 3: 2}, work=90, checkpoint_s=7) for n in range(1, 6)}
        faults = Faults(fail_s=40, unresponsive=0.3, late_s=5, repeat=0.5, until_s=200)
        return play(jobs, [NODE], MARBLE, physics, seed, faults=faults)

    assert once(1) == once(1)
    assert once(1).actions != once(2).actions


def test_a_job_that_fits_nowhere_leaves_the_run_unfinished() -> None:
    result = play([job(1, (8,), 8)], [NODE], MARBLE, {"1": Physics({8: 1.0}, work=1)})
    assert not result.run.finished
    assert result.actions == ()


def test_physics_must_make_sense() -> None:
    changes: list[dict[str, Any]] = [
        {"speed": {}}, {"speed": {1: 0.0}}, {"work": 0}, {"suspend_s": -1}, {"join_s": -1},
    ]  # fmt: skip
    for wrong in changes:
        with pytest.raises(ValueError, match=r"zero|negative"):
            Physics(**{"speed": {1: 1.0}, "work": 1.0, **wrong})
    with pytest.raises(ValueError, match="checkpoint_s"):
        Physics({1: 1.0}, work=1, checkpoint_s=-1)


def test_speed_between_the_points() -> None:
    physics = Physics({2: 4.0, 4: 6.0}, work=1)
    rates = [physics.stretch(Where((gpus,)), 0.0).rate for gpus in (1, 2, 3, 4, 9)]
    assert rates == [2.0, 4.0, 5.0, 6.0, 6.0]


def test_the_executor_refuses_to_overcommit() -> None:
    heap = Heap()
    executor = SimulatedExecutor(heap, [NODE], {"1": Physics({1: 1.0}, work=1)})
    executor.perform(v.Action(v.Kind.START, "1", 1, 1, alloc={"n": 3}))
    with pytest.raises(RuntimeError, match="2 GPUs of n, 1 free"):
        executor.perform(v.Action(v.Kind.START, "1", 2, 2, alloc={"n": 2}))


def test_an_action_is_carried_out_once_however_often_it_is_given() -> None:
    heap = Heap()
    executor = SimulatedExecutor(heap, [NODE], {"1": Physics({2: 1.0}, work=10)})
    start = v.Action(v.Kind.START, "1", 1, 1, alloc={"n": 2})
    executor.perform(start)
    executor.perform(start)
    assert len(executor.occupied()) == 2
    facts: list[f.Fact] = []
    while heap.next_s < float("inf"):
        facts += heap.advance(heap.next_s)
    executor.perform(start)
    assert [type(fact) for fact in facts].count(f.Ended) == 1
    assert heap.next_s == float("inf")


def test_look_reports_what_trains() -> None:
    heap = Heap()
    executor = SimulatedExecutor(heap, [NODE], {"1": Physics({2: 3.0}, work=30)})
    executor.perform(v.Action(v.Kind.START, "1", 1, 1, alloc={"n": 2}))
    for _ in range(2):
        heap.advance(0)
    heap.advance(2.0)
    executor.look()
    (fact,) = heap.advance(2.0)
    assert fact == f.Progressed("1", 1, 6, 0, 6.0, 3.0, resume_s={"restore_s": 0.0})


def test_look_tells_how_far_came_who_does_not_train() -> None:
    heap = Heap()
    nodes = [v.Node(name, 1) for name in "ab"]
    physics = Physics(
        {1: 3.0, 2: 4.0}, work=900, checkpoint_s=0.0, elastic=True, rescale_down_s=5.0, resume_s=2.0
    )
    executor = SimulatedExecutor(heap, nodes, {"1": physics})

    def told(until_s: float) -> list[f.Fact]:
        facts: list[f.Fact] = []
        while heap.next_s <= until_s:
            facts += heap.advance(heap.next_s)
        heap.advance(until_s)
        return facts

    def look() -> list[f.Fact]:
        executor.look()
        return told(heap.now_s)

    executor.perform(v.Action(v.Kind.START, "1", 1, 1, alloc={"a": 1, "b": 1}))
    told(12.0)
    executor.happen(f.NodeLost("b"))
    # Ten seconds on two nodes. Its speed was that of others than it has now: it says nothing of it.
    assert look() == [f.Progressed("1", 1, 40, 40, 40.0)]
    executor.happen(f.NodeLost("a"))
    (late,) = look()
    assert isinstance(late, f.Progressed)
    assert (late.op, late.done) == (1, 40.0)
    assert look() == []
    # What a second attempt says comes after what the first one did not.
    executor.happen(*(f.NodeJoined(node) for node in nodes))
    for op in (2, 3):
        executor.perform(v.Action(v.Kind.START, "1", op, op, alloc={"a": 1}))
        told(heap.now_s + 7.0)
        if op == 2:
            executor.happen(f.NodeLost("a"), f.NodeJoined(nodes[0]))
    done = [(fact.op, fact.done) for fact in look() if isinstance(fact, f.Progressed)]
    assert done == [(2, 55.0), (3, 70.0)]


def test_a_second_manager_goes_on_where_the_first_one_stopped() -> None:
    """The engine is thrown away in mid-run, restored from what it saved, and adopts what runs."""
    physics = {name: Physics({1: 1.0, 3: 2.0, 4: 2.5}, work=50, suspend_s=2) for name in "12"}
    jobs = [job(1, optimal=3), job(2, optimal=3)]
    whole = play(jobs, [NODE], MARBLE, physics)

    heap = Heap()
    executor = SimulatedExecutor(heap, [NODE], physics)
    facts: list[f.Fact] = [f.NodeJoined(NODE), *(f.Submitted(job) for job in jobs)]
    heap.at(0.0, lambda: facts)
    engine = Engine(MARBLE)
    for until_s in (3.0, 26.0, float("inf")):  # at 26 s job 2 is saving
        drive(engine, heap, executor, until_s=until_s)
        engine = Engine(MARBLE, engine.world.save())
    assert engine.world.records == whole.records
    assert engine.world.jobs == whole.jobs


def test_events_of_one_instant_keep_their_order_and_the_clock_never_goes_back() -> None:
    heap = Heap()
    told = [f.Hold("a"), f.Hold("b"), f.Hold("c")]
    heap.at(5.0, lambda: told[:1])
    heap.at(5.0, lambda: told[1:2])
    heap.at(7.0, lambda: told[2:])
    assert heap.advance(5.0) == (told[0], told[1])
    heap.at(1.0, list)
    assert heap.next_s == 5.0
    assert heap.advance(3.0) == ()
    assert heap.now_s == 5.0
