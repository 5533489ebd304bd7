"""The engine by hand: facts in, actions out."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate, GoodputReport
from hpcext.policies import find_policy

NODE = v.Node("n", 6)
SIZES = tuple(range(1, 7))


def job(order: int, sizes: tuple[int, ...] = SIZES, optimal: int = 6, **more: Any) -> f.Submitted:
    return f.Submitted(v.Job(str(order), f"j{order}", order, sizes, optimal, **more))


@pytest.fixture
def engine() -> Engine:
    engine = Engine(find_policy("marble"))
    engine.step(0, [f.NodeJoined(NODE)])
    return engine


def run(engine: Engine, now_s: float, *facts: f.Fact) -> list[str]:
    """Step, and say what came of it: the kind, the job, and how many GPUs."""
    actions, _ = engine.step(now_s, facts)
    assert not engine.refusal
    return [f"{a.kind.value} {a.job} {v.total(a.alloc) or ''}".strip() for a in actions]


def begin(engine: Engine, now_s: float, *jobs: str, register: bool = True) -> None:
    """Acknowledge the start of jobs, and register their sessions."""
    for name in jobs:
        now = engine.world.jobs[name]
        run(engine, now_s, f.Started(name, now.op, tuple(f"n:{i}" for i in range(2))))
        if register:
            run(engine, now_s, f.Registered(name, now.op, now.saved_step))


def end(engine: Engine, name: str, outcome: f.Outcome, code: int | None = 0) -> f.Ended:
    return f.Ended(name, engine.world.jobs[name].op, outcome, code)


def state(engine: Engine, name: str) -> v.State:
    return engine.world.jobs[name].state


def test_stale_acknowledgement_frees_nothing(engine: Engine) -> None:
    run(engine, 1, job(1, (6,)), job(2, (6,)))
    stale = end(engine, "1", f.Outcome.FAILED, 1)
    assert run(engine, 2, stale) == ["start 2 6"]
    assert run(engine, 4, end(engine, "2", f.Outcome.COMPLETED)) == ["start 1 6"]
    assert run(engine, 5, stale) == []
    assert state(engine, "1") is v.State.STARTING


def test_nothing_starts_before_the_release_is_acknowledged(engine: Engine) -> None:
    run(engine, 1, job(1), job(2))
    begin(engine, 2, "1")
    assert run(engine, 3, f.Hold("1")) == ["suspend 1"]
    assert engine.world.jobs["2"].goal == {"n": 6}
    assert run(engine, 4) == []
    assert run(engine, 5, end(engine, "1", f.Outcome.SUSPENDED, 85)) == ["start 2 6"]


def test_an_unanswered_suspension_is_followed_by_harder_and_harder_kills(engine: Engine) -> None:
    run(engine, 0, job(1, suspend_timeout_s=10))
    begin(engine, 0, "1")
    run(engine, 5, f.Hold("1"))
    assert engine.step(14.9, ()) == ((), 15)
    assert run(engine, 15) == ["kill 1"]
    (second,), wake_s = engine.step(30, ())
    assert (second.kind, second.force, wake_s) == (v.Kind.KILL, True, 45)
    run(engine, 31, end(engine, "1", f.Outcome.FAILED, -9))
    assert state(engine, "1") is v.State.PENDING
    assert not engine.world.jobs["1"].suspendable


def test_a_failure_is_tried_again_as_often_as_the_job_says(engine: Engine) -> None:
    run(engine, 0, job(1, retries=1))
    begin(engine, 0, "1")
    actions, wake_s = engine.step(1, [end(engine, "1", f.Outcome.FAILED, 1)])
    assert (actions, wake_s) == ((), 2)
    assert run(engine, 2) == ["start 1 6"]
    begin(engine, 3, "1")
    run(engine, 4, end(engine, "1", f.Outcome.FAILED, 1))
    assert state(engine, "1") is v.State.FAILED


def test_a_checkpoint_in_between_forgives_earlier_failures(engine: Engine) -> None:
    run(engine, 0, job(1, retries=1))
    for attempt in range(1, 6):
        now_s = attempt * 10
        begin(engine, now_s, "1")
        op = engine.world.jobs["1"].op
        run(engine, now_s, f.Progressed("1", op, attempt * 100 + 7, attempt * 100))
        run(engine, now_s, end(engine, "1", f.Outcome.FAILED, 1))
        assert run(engine, now_s + 1) == ["start 1 6"]
    # Each time the 7 steps after the checkpoint were lost, but for the last, not yet resumed.
    assert engine.world.records["1"].lost_steps == 4 * 7


def test_what_needs_a_failed_job_is_cancelled_with_all_that_needs_it(engine: Engine) -> None:
    run(engine, 0, job(1, retries=0), job(2, after=("1",)), job(3, after=("2",)))
    run(engine, 1, end(engine, "1", f.Outcome.FAILED, 1))
    assert [state(engine, name) for name in "23"] == [v.State.CANCELLED, v.State.CANCELLED]
    assert engine.world.jobs["2"].why == "needs j1, which failed"
    assert engine.world.jobs["3"].why == "needs j2, which was cancelled"
    assert engine.finished


def test_a_job_that_waited_for_one_submitted_too_late_is_cancelled_with_it(
    engine: Engine,
) -> None:
    """3 waits for 2, which comes when 1, that it needs, has failed already."""
    run(engine, 0, job(1, retries=0), job(3, after=("2",)))
    run(engine, 1, end(engine, "1", f.Outcome.FAILED, 1))
    assert state(engine, "3") is v.State.PENDING
    run(engine, 2, job(2, after=("1",)))
    assert [state(engine, name) for name in "23"] == [v.State.CANCELLED, v.State.CANCELLED]


def test_a_lost_node_takes_back_what_was_promised_on_it(engine: Engine) -> None:
    """Job 2 was promised the GPUs that job 1 is giving back when their node is lost."""
    run(engine, 0, job(1, (6,)), job(2, (6,)))
    begin(engine, 0, "1")
    run(engine, 1, f.Hold("1"))
    assert engine.world.jobs["2"].goal == {"n": 6}
    assert run(engine, 2, f.NodeLost("n")) == []
    assert [job.goal for job in engine.world.unfinished()] == [None, None]
    assert run(engine, 3, f.NodeJoined(v.Node("m", 6))) == ["start 2 6"]


def test_a_node_that_comes_again_smaller_keeps_what_fits_it(engine: Engine) -> None:
    run(engine, 0, job(1, (3,), 3), job(2, (3,), 3))
    begin(engine, 0, "1", "2")
    assert run(engine, 1, f.NodeJoined(v.Node("n", 4))) == ["suspend 2"]
    assert run(engine, 2, end(engine, "2", f.Outcome.SUSPENDED, 85)) == []
    assert engine.world.jobs["2"].why == (
        "next in the queue; waits for 3 GPUs on one node, and 1 is free; with a gpus.min of 1 "
        "it could start now"
    )
    assert run(engine, 3, end(engine, "1", f.Outcome.COMPLETED)) == ["start 2 3"]


@pytest.mark.parametrize("policy", ["marble", "bftrainer", "bftrainer-lifetime", "pollux"])
def test_a_node_that_is_wanted_back_is_left_in_order(policy: str) -> None:
    """It offers nothing more: its job is suspended, goes on elsewhere, and nothing is killed."""
    engine = Engine(find_policy(policy))
    run(engine, 0, f.NodeJoined(NODE), job(1, (6,)))
    begin(engine, 0, "1")
    assert run(engine, 1, f.NodeJoined(v.Node("n", 0))) == ["suspend 1"]
    assert run(engine, 2, f.NodeJoined(v.Node("m", 6))) == []
    assert run(engine, 3, end(engine, "1", f.Outcome.SUSPENDED, 85)) == ["start 1 6"]
    assert engine.world.jobs["1"].held == {"m": 6}
    assert run(engine, 4, f.NodeLost("n")) == []
    assert engine.world.jobs["1"].failures == 0


@pytest.mark.parametrize(
    ("grant", "what"),
    [
        ({"9": {"n": 1}}, "job 9, which is unknown"),
        ({"3": {"n": 1}}, "job 3, which is not ready"),
        ({"1": {"n": 5}}, r"grants 5 GPUs to job 1, which takes \(1, 2, 4\)"),
        ({"1": {"m": 1}}, "node m, which does not exist"),
        ({"1": {"n": 4}, "2": {"n": 3}}, "grants 3 GPUs on node n, which has 2 left"),
        ({"1": {"n": 4, "m": 0}}, "node m"),
        ({"1": {}}, "grants 0 GPUs"),
    ],
)
def test_a_target_that_cannot_be_is_refused_and_the_old_goal_kept(
    grant: dict[str, dict[str, int]], what: str
) -> None:
    target = v.Target({"1": v.Grant({"n": 2}, v.Role.PRIMARY, "")})
    engine = Engine(lambda now: target)
    sizes = (1, 2, 4)
    jobs = [job(1, sizes), job(2, (1, 3)), job(3, sizes, after=("2",))]
    assert run(engine, 0, f.NodeJoined(NODE), *jobs) == ["start 1 2"]
    target = v.Target(
        {name: v.Grant(alloc, v.Role.PRIMARY, "") for name, alloc in grant.items()},
        wake_s=5.0,
        memo={"new": True},
    )
    assert engine.step(1, [f.Resize("2", 3)]) == ((), None)
    assert re.search(what, engine.refusal)
    assert engine.world.jobs["1"].goal == {"n": 2}
    assert engine.world.memo is None


def test_a_policy_that_fails_costs_a_decision_and_nothing_else() -> None:
    answers: list[v.Target | None] = [v.Target({"1": v.Grant({"n": 2}, v.Role.PRIMARY, "")}), None]

    def policy(now: v.Snapshot) -> v.Target:
        answer = answers.pop(0)
        if answer is None:
            raise ZeroDivisionError("of a user's own")
        return answer

    engine = Engine(policy)
    assert run(engine, 0, f.NodeJoined(NODE), job(1, (1, 2))) == ["start 1 2"]
    begin(engine, 1, "1", register=False)
    engine.step(2, [f.NodeJoined(v.Node("other", 1))])
    assert engine.refusal == "failed with ZeroDivisionError: of a user's own"
    assert (engine.world.jobs["1"].goal, state(engine, "1")) == ({"n": 2}, v.State.RUNNING)


def test_progress_alone_does_not_ask_the_policy() -> None:
    asked: list[v.Cause] = []

    def policy(now: v.Snapshot) -> v.Target:
        asked.append(now.cause)
        return find_policy("marble")(now)

    engine = Engine(policy)
    run(engine, 0, f.NodeJoined(NODE), job(1))
    begin(engine, 1, "1")
    before = len(asked)
    run(engine, 2, f.Progressed("1", engine.world.jobs["1"].op, 10, 0, 10.0, 2.5))
    assert len(asked) == before
    assert engine.world.jobs["1"].estimate.measured == {6: 2.5}
    run(engine, 3, f.Hold("1"))
    assert asked[before:] == [v.Cause.REQUEST | v.Cause.TIME]


def test_the_last_goodput_that_was_reported_is_kept(engine: Engine) -> None:
    run(engine, 0, job(1))
    begin(engine, 1, "1")
    op = engine.world.jobs["1"].op
    for now_s, goodput in ((2, GoodputReport(10.0, 32)), (3, GoodputReport(20.0, 32)), (4, None)):
        run(engine, now_s, f.Progressed("1", op, now_s, goodput=goodput))
    assert engine.world.jobs["1"].estimate.goodput == GoodputReport(20.0, 32)
    # By the next attempt too, until it reports another one.
    run(engine, 5, end(engine, "1", f.Outcome.FAILED, 1))
    assert engine.world.jobs["1"].estimate.goodput == GoodputReport(20.0, 32)


def test_a_speed_is_that_of_a_kind_of_gpus() -> None:
    engine = Engine(find_policy("marble"))
    run(engine, 0, f.NodeJoined(msgspec.structs.replace(NODE, kind="v100")), job(1))
    begin(engine, 1, "1")
    run(engine, 2, f.Progressed("1", engine.world.jobs["1"].op, 10, 0, 10.0, 2.5))
    run(engine, 3, f.NodeJoined(msgspec.structs.replace(NODE, kind="a100")))
    run(engine, 4, f.Progressed("1", engine.world.jobs["1"].op, 20, 0, 20.0, 7.5))
    known = engine.world.jobs["1"].estimate
    assert [(each.kind, each.rate) for each in known.observed] == [("a100", 7.5), ("v100", 2.5)]
    assert known.measured == {6: 7.5}


def test_what_older_releases_wrote_has_no_kind() -> None:
    assert msgspec.json.decode(b'{"name": "n", "gpus": 6}', type=v.Node) == NODE
    seen = b'{"observed": [{"gpus": 1, "nodes": 1, "rate": 2.0}], "stated": {"1": 3.0}}'
    known = msgspec.json.decode(seen, type=Estimate)
    assert (known.observed[0].kind, known.by_kind) == ("", {})


def test_a_policy_is_woken_once_when_it_asked_to_be() -> None:
    asked: list[float] = []

    def policy(now: v.Snapshot) -> v.Target:
        asked.append(now.now_s)
        return v.Target(wake_s=10.0 if now.now_s < 10 else 3.0)

    engine = Engine(policy)
    assert engine.step(1, [f.NodeJoined(NODE)]) == ((), 10)
    assert engine.step(9, ()) == ((), 10)
    assert engine.step(10, ()) == ((), None)  # 3 s has been: it is not asked for ever
    assert engine.step(11, ()) == ((), None)
    assert asked == [1, 10]


def test_draining_lets_finish_what_runs_and_starts_nothing(engine: Engine) -> None:
    run(engine, 0, job(1, optimal=3), job(2, optimal=4), job(3))
    begin(engine, 1, "1", "2")
    run(engine, 2, f.Drain())
    # Job 2 runs on three of the four GPUs that are best: it is promoted still.
    assert run(engine, 3, end(engine, "1", f.Outcome.COMPLETED)) == ["suspend 2"]
    assert run(engine, 4, end(engine, "2", f.Outcome.SUSPENDED, 85)) == ["start 2 4"]
    assert engine.world.jobs["3"].why == "waits because the manager is draining"
    assert not engine.finished
    run(engine, 5, end(engine, "2", f.Outcome.COMPLETED))
    assert engine.finished
    assert run(engine, 6, f.Began()) == ["start 3 6"]


def test_a_drain_that_stops_suspends_what_runs(engine: Engine) -> None:
    run(engine, 0, job(1, optimal=3), job(2, optimal=3), job(3))
    begin(engine, 1, "1", "2")
    assert run(engine, 2, f.Drain(suspend=True)) == ["suspend 1", "suspend 2"]
    run(engine, 3, *(end(engine, name, f.Outcome.SUSPENDED, 85) for name in "12"))
    assert engine.finished
    assert {state(engine, name) for name in "123"} == {v.State.PENDING}


def test_a_starting_job_is_suspended_when_it_has_a_session(engine: Engine) -> None:
    run(engine, 0, job(1))
    assert run(engine, 1, f.Hold("1")) == []
    op = engine.world.jobs["1"].op
    assert run(engine, 2, f.Started("1", op, ("n:0",))) == []
    assert run(engine, 3, f.Registered("1", op, 0)) == ["suspend 1"]


def test_gpus_that_become_known_later_are_those_of_the_same_segment(engine: Engine) -> None:
    """Slurm chooses them; the supervisor of a step says which they are."""
    run(engine, 0, job(1))
    op = engine.world.jobs["1"].op
    run(engine, 1, f.Started("1", op, ()))
    run(engine, 2, f.Started("1", op, ("n:0", "n:3")))
    run(engine, 3, end(engine, "1", f.Outcome.COMPLETED))
    (segment,) = engine.world.records["1"].segments
    assert (segment.start_s, segment.end_s, segment.gpus) == (1, 3, ("n:0", "n:3"))


def test_what_never_began_has_no_time(engine: Engine) -> None:
    """Slurm began no step for it; then it waits, and begins."""
    run(engine, 0, job(1, retries=0))
    run(engine, 1, f.Started("1", engine.world.jobs["1"].op, ()))
    run(engine, 121, end(engine, "1", f.Outcome.LOST, None))
    assert engine.world.records["1"].segments == ()
    assert run(engine, 4000) == ["start 1 6"]
    begin(engine, 4001, "1")
    run(engine, 4010, end(engine, "1", f.Outcome.COMPLETED))
    (segment,) = engine.world.records["1"].segments
    assert (segment.start_s, segment.end_s) == (4001, 4010)


def test_what_ran_on_gpus_that_have_no_names_has_its_time(engine: Engine) -> None:
    """Slots that Slurm does not know."""
    run(engine, 0, job(1))
    for began_s, outcome in ((1, f.Outcome.SUSPENDED), (11, f.Outcome.COMPLETED)):
        run(engine, began_s, f.Started("1", engine.world.jobs["1"].op, ()))
        run(engine, began_s + 3, end(engine, "1", outcome))
    times = [(each.start_s, each.end_s) for each in engine.world.records["1"].segments]
    assert times == [(1, 4), (11, 14)]


def test_what_was_not_begun_is_no_failure_and_is_tried_elsewhere(engine: Engine) -> None:
    run(engine, 0, job(1, retries=0))
    begin(engine, 1, "1", register=False)
    ended = end(engine, "1", f.Outcome.EVICTED, None)
    run(engine, 2, msgspec.structs.replace(ended, never_ran=True, why="no process"))
    one = engine.world.jobs["1"]
    assert (one.state, one.failures, one.failed_on) == (v.State.PENDING, 0, ("n",))
    assert one.why == "retried in 5 s after: no process"


def test_a_job_whose_directory_is_away_for_a_moment_is_tried_again(engine: Engine) -> None:
    """A file system may be away; one that stays away is a failure in the end."""
    run(engine, 0, job(1, retries=0))
    now_s, waits = 1.0, []
    while state(engine, "1") is not v.State.FAILED:
        begin(engine, now_s, "1", register=False)
        ended = end(engine, "1", f.Outcome.FAILED, 126)
        run(engine, now_s, msgspec.structs.replace(ended, never_ran=True, why="no directory"))
        waits.append(engine.world.jobs["1"].not_before_s - now_s)
        now_s = engine.world.jobs["1"].not_before_s
        run(engine, now_s)
    assert waits[:-1] == [5, 10, 20, 40, 60, 60]


def test_unanswered_actions_are_given_again_to_a_new_manager(engine: Engine) -> None:
    run(engine, 0, *(job(order, optimal=2) for order in (1, 2, 3)))
    begin(engine, 1, "1", "2", "3")
    run(engine, 2, f.Hold("2"), f.Cancel("3"))
    again = Engine(find_policy("marble"), engine.world.save()).outstanding()
    assert [(action.kind.value, action.job) for action in again] == [
        ("start", "1"), ("start", "2"), ("suspend", "2"), ("start", "3"), ("kill", "3"),
    ]  # fmt: skip
    ops = {job.id: job.op for job in engine.world.jobs.values()}
    assert all(action.op == ops[action.job] and action.attempt == 1 for action in again)


def test_a_job_that_was_completed_while_it_was_cancelled_is_completed(engine: Engine) -> None:
    run(engine, 0, job(1))
    begin(engine, 0, "1")
    assert run(engine, 1, f.Cancel("1")) == ["kill 1"]
    run(engine, 2, end(engine, "1", f.Outcome.COMPLETED))
    assert state(engine, "1") is v.State.COMPLETED


def test_to_be_told_to_end_by_the_batch_system_is_not_the_jobs_failure(engine: Engine) -> None:
    run(engine, 0, job(1, retries=0))
    for at in (1, 11, 21):
        begin(engine, at, "1", register=False)
        assert run(engine, at + 1, end(engine, "1", f.Outcome.EVICTED, -15)) == []
        assert state(engine, "1") is v.State.PENDING
        assert run(engine, at + 6) == ["start 1 6"]


def test_a_lost_node_is_not_the_jobs_failure(engine: Engine) -> None:
    run(engine, 1, job(1, (1, 2), 2, retries=0))
    begin(engine, 2, "1")
    assert run(engine, 3, f.NodeLost("n")) == []
    assert engine.world.jobs["1"].state is v.State.PENDING
    # There is nothing to wait for: whatever it was, the node has it.
    assert run(engine, 4, f.NodeJoined(v.Node("m", 6))) == ["start 1 2"]


def test_what_is_left_of_a_job_that_lost_a_node_is_killed_and_it_starts_again() -> None:
    both = {"n": 2, "m": 2}

    def policy(now: v.Snapshot) -> v.Target:
        fits = set(both) <= set(now.nodes)
        grant = v.Grant(both, v.Role.PRIMARY, "")
        return v.Target({one.id: grant for one in now.jobs if one.ready and fits})

    engine = Engine(policy)
    nodes = [f.NodeJoined(v.Node(name, 2)) for name in both]
    assert run(engine, 1, *nodes, job(1, (4,), 4, retries=0)) == ["start 1 4"]
    begin(engine, 2, "1")
    assert run(engine, 3, f.NodeLost("m")) == ["kill 1"]
    run(engine, 4, end(engine, "1", f.Outcome.FAILED, -15))
    left = engine.world.jobs["1"]
    assert (left.state, left.failures, left.suspendable) == (v.State.PENDING, 0, True)
    assert run(engine, 20, f.NodeJoined(v.Node("m", 2))) == ["start 1 4"]
