"""Changes of size in place, by hand: facts in, actions out."""

from __future__ import annotations

from typing import Any

import pytest

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine

SIZES = (1, 2, 3, 4, 5, 6)

Goals = dict[str, dict[str, int]]


class Bench:
    """An engine whose policy says what it is told to say, and jobs that answer by hand."""

    def __init__(self, *nodes: v.Node) -> None:
        self.goals: Goals = {}
        self.engine = Engine(self.policy)
        self.engine.step(0, [f.NodeJoined(node) for node in nodes or (v.Node("n", 6),)])

    def policy(self, now: v.Snapshot) -> v.Target:
        wanted = {job.id: self.goals.get(job.id) for job in now.jobs if job.ready}
        grants = {
            name: v.Grant(goal, v.Role.PRIMARY, self.job(name).why or "as told")
            for name, goal in wanted.items()
            if goal
        }
        return v.Target(grants)

    def job(self, name: str) -> v.Job:
        return self.engine.world.jobs[name]

    def record(self, name: str) -> v.Record:
        return self.engine.world.records[name]

    def step(self, now_s: float, *facts: f.Fact) -> list[str]:
        """What came of it: the kind, the job, and the GPUs per node."""
        actions, _ = self.engine.step(now_s, facts)
        assert not self.engine.refusal
        return [
            " ".join([a.kind.value, a.job, *(f"{n}:{g}" for n, g in a.alloc.items())])
            for a in actions
        ]

    def want(self, now_s: float, **goals: dict[str, int]) -> list[str]:
        """Other goals, and something that makes the policy be asked."""
        self.goals |= {name.removeprefix("j"): goal for name, goal in goals.items()}
        return self.step(now_s, f.NodeJoined(v.Node("other", round(now_s) + 1)))

    def begin(self, *jobs: str, in_place: bool = True, **more: Any) -> None:
        """Jobs that run from 0 s on, on their goals."""
        for name in jobs:
            spec = v.Job(name, f"j{name}", int(name), SIZES, 6, **more)
            self.step(0, f.Submitted(spec))
            now = self.job(name)
            self.step(0, f.Started(name, now.op, gpus(**now.held)))
            self.step(0, f.Registered(name, now.op, 0, in_place))

    def answer(self, name: str, *held: str, **more: Any) -> f.Rescaled:
        now = self.job(name)
        return f.Rescaled(name, now.op, now.run.resize, held, **more)

    def end(self, name: str, outcome: f.Outcome = f.Outcome.SUSPENDED, code: int = 85) -> f.Ended:
        return f.Ended(name, self.job(name).op, outcome, code)


def gpus(first: int = 0, **alloc: int) -> tuple[str, ...]:
    return tuple(f"{node}:{i}" for node, count in alloc.items() for i in range(first, count))


@pytest.fixture
def bench() -> Bench:
    """Job 1 on three GPUs of six, in place."""
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.begin("1")
    return bench


def test_growth_takes_free_gpus_at_once_and_has_them_when_it_says_so(bench: Bench) -> None:
    assert bench.want(5, j1={"n": 5}) == ["rescale 1 n:5"]
    job = bench.job("1")
    assert (job.state, job.run.resize, job.run.resize_to) == (v.State.RESCALING, 1, {"n": 5})
    assert (job.held, len(job.gpus), job.deadline_s) == ({"n": 5}, 3, 65)
    assert bench.step(7, bench.answer("1", *gpus(n=5), stall_s=0.25)) == []
    job = bench.job("1")
    assert (job.state, job.held, job.gpus) == (v.State.RUNNING, {"n": 5}, gpus(n=5))
    assert (job.deadline_s, job.estimate.up_s, job.estimate.down_s) == (None, 0.25, None)


def test_an_answer_among_reports_is_looked_at_at_once(bench: Bench) -> None:
    """Steps of nothing but progress are cut short, and this is none."""
    bench.want(5, j1={"n": 5})
    step = f.Progressed("1", bench.job("1").op, 1)
    answer = bench.answer("1", *gpus(n=5), stall_s=0.25)
    assert bench.engine.step(7, [step, answer]) == bench.engine.step(7, []) == ((), None)


def test_a_shrink_keeps_its_gpus_until_it_is_made(bench: Bench) -> None:
    assert bench.want(5, j1={"n": 1}) == ["rescale 1 n:1"]
    bench.goals["2"] = {"n": 5}
    assert bench.step(6, f.Submitted(v.Job("2", "j2", 2, SIZES, 6))) == []
    assert bench.job("1").held == {"n": 3}
    assert bench.step(7, bench.answer("1", "n:2", stall_s=0.5)) == ["start 2 n:5"]
    assert (bench.job("1").held, bench.job("1").gpus) == ({"n": 1}, ("n:2",))
    assert bench.job("1").estimate.down_s == 0.5


def test_growth_waits_for_its_gpus_while_it_trains_on(bench: Bench) -> None:
    bench.goals["2"] = {"n": 3}
    bench.begin("2", in_place=False)
    bench.goals["2"] = {"n": 1}
    assert bench.want(5, j1={"n": 5}) == ["suspend 2"]
    assert bench.job("1").state is v.State.RUNNING
    assert bench.step(9, bench.end("2")) == ["rescale 1 n:5", "start 2 n:1"]


@pytest.mark.parametrize(("priority", "first"), [(0.0, "rescale 1 n:5"), (1.0, "start 2 n:2")])
def test_growth_and_starts_take_what_is_free_in_the_order_of_the_queue(
    priority: float, first: str
) -> None:
    """Of eight GPUs one is free, jobs 8 and 9 give back two each; then there is enough for one."""
    bench = Bench(v.Node("n", 8))
    bench.goals = {"1": {"n": 3}, "8": {"n": 2}, "9": {"n": 2}}
    bench.begin("1", "8", "9")
    bench.step(2, f.Hold("8"), f.Hold("9"))
    bench.goals = {"1": {"n": 5}, "2": {"n": 2}}
    late = v.Job("2", "j2", 2, SIZES, 6, priority=priority)
    assert bench.step(3, f.Submitted(late)) == []
    assert bench.step(4, bench.end("8")) == [first]


@pytest.mark.parametrize("goal", [{"m": 3}, {"n": 2, "m": 1}, None], ids=str)
def test_other_nodes_or_none_take_a_suspension(goal: dict[str, int] | None) -> None:
    bench = Bench(v.Node("n", 6), v.Node("m", 6))
    bench.goals = {"1": {"n": 3}}
    bench.begin("1")
    assert bench.want(5, j1=goal or {}) == ["suspend 1"]


def test_on_several_nodes_the_larger_count_of_each_is_held() -> None:
    bench = Bench(v.Node("n", 6), v.Node("m", 6))
    bench.goals = {"1": {"n": 4, "m": 1}}
    bench.begin("1")
    assert bench.want(5, j1={"n": 2, "m": 4}) == ["rescale 1 n:2 m:4"]
    assert bench.job("1").held == {"n": 4, "m": 4}
    bench.step(6, bench.answer("1", *gpus(n=2, m=4)))
    assert bench.job("1").held == {"n": 2, "m": 4}


def test_two_jobs_that_change_places_do_not_wait_for_each_other() -> None:
    bench = Bench(v.Node("n", 4), v.Node("m", 4))
    bench.goals = {"1": {"n": 3, "m": 1}, "2": {"n": 1, "m": 3}}
    bench.begin("1", "2")
    swapped = {"j1": {"n": 1, "m": 3}, "j2": {"n": 3, "m": 1}}
    assert bench.want(5, **swapped) == ["suspend 1", "suspend 2"]
    assert bench.step(6, bench.end("1"), bench.end("2")) == ["start 1 n:1 m:3", "start 2 n:3 m:1"]


def test_a_change_that_failed_is_made_by_a_suspension_and_says_why(bench: Bench) -> None:
    bench.want(5, j1={"n": 5})
    refused = bench.answer("1", *gpus(n=3), ok=False, why="rank 3 did not come up")
    assert bench.step(6, refused) == ["suspend 1"]
    why = "as told; could not be resized in place: rank 3 did not come up"
    assert (bench.job("1").held, bench.job("1").run.in_place) == ({"n": 3}, False)
    assert bench.job("1").why == why
    assert bench.step(7, bench.end("1")) == ["start 1 n:5"]
    assert bench.job("1").why == why
    assert (bench.record("1").rescales, len(bench.record("1").segments)) == (0, 1)
    # The next attempt is asked anew.
    op = bench.job("1").op
    bench.step(8, f.Started("1", op, gpus(n=5)), f.Registered("1", op, 0, True))
    assert bench.want(9, j1={"n": 4}) == ["rescale 1 n:4"]
    assert bench.job("1").run.resize == 1


def test_who_says_yes_and_has_other_gpus_than_asked_is_not_believed(bench: Bench) -> None:
    bench.want(5, j1={"n": 5})
    assert bench.step(6, bench.answer("1", *gpus(n=4))) == ["suspend 1"]
    assert bench.job("1").held == {"n": 4}


@pytest.mark.parametrize(
    "wrong", [{"op": 77}, {"resize": 0}, {"resize": 2}, {"gpus": ()}, {"gpus": gpus(n=6)},
              {"gpus": ("m:0",)}, {"job": "nobody"}], ids=str,
)  # fmt: skip
def test_an_answer_that_cannot_be_the_one_changes_nothing(
    bench: Bench, wrong: dict[str, Any]
) -> None:
    bench.want(5, j1={"n": 5})
    now = bench.job("1")
    right: dict[str, Any] = {"job": "1", "op": now.op, "resize": 1, "gpus": gpus(n=5)}
    assert bench.step(6, f.Rescaled(**{**right, **wrong})) == []
    assert bench.job("1") == now


def test_the_same_answer_again_changes_nothing(bench: Bench) -> None:
    bench.want(5, j1={"n": 5})
    answer = bench.answer("1", *gpus(n=5), stall_s=1.0)
    bench.step(6, answer)
    before = bench.engine.world.save()
    bench.step(7, answer)
    assert bench.engine.world.save() == before
    # Nor when the next change is under way.
    assert bench.want(8, j1={"n": 2}) == ["rescale 1 n:2"]
    bench.step(9, answer)
    assert (bench.job("1").state, bench.job("1").run.resize) == (v.State.RESCALING, 2)


def test_the_next_goal_waits_for_the_answer(bench: Bench) -> None:
    bench.want(5, j1={"n": 5})
    assert bench.want(6, j1={"n": 2}) == []
    assert bench.job("1").run.resize_to == {"n": 5}
    assert bench.step(7, bench.answer("1", *gpus(n=5))) == ["rescale 1 n:2"]
    assert bench.job("1").run.resize == 2


def test_no_answer_is_followed_by_a_suspension_then_by_a_kill(bench: Bench) -> None:
    bench.want(5, j1={"n": 5})
    assert bench.engine.step(64.9, ()) == ((), 65)
    assert bench.step(65) == ["suspend 1"]
    assert bench.job("1").why.endswith(
        "could not be resized in place: it did not answer within 60 s"
    )
    # Late now: it is suspending, and whatever it had until then is free when it is gone.
    assert bench.step(66, bench.answer("1", *gpus(n=5))) == []
    assert (bench.job("1").state, bench.job("1").held) == (v.State.STOPPING, {"n": 5})
    assert bench.step(125) == ["kill 1"]


@pytest.mark.parametrize(
    ("request_", "action"),
    [(f.Hold("1"), "suspend 1"), (f.Drain(suspend=True), "suspend 1"), (f.Cancel("1"), "kill 1")],
    ids=str,
)
@pytest.mark.parametrize("goal", [1, 5])
def test_a_suspension_and_a_kill_do_not_wait_for_the_answer(
    bench: Bench, request_: f.Fact, action: str, goal: int
) -> None:
    bench.want(5, j1={"n": goal})
    assert bench.step(6, request_) == [action]
    # What it has or was to have is held until it is gone, whatever it says.
    for facts in ([], [bench.answer("1", *gpus(n=goal))]):
        bench.step(7, *facts)
        assert bench.job("1").held == {"n": max(3, goal)}
    bench.step(8, bench.end("1"))
    assert bench.job("1").held == {}


def test_a_lost_node_takes_a_job_that_changes_its_size_with_it() -> None:
    bench = Bench(v.Node("n", 6), v.Node("m", 6))
    bench.goals = {"1": {"n": 3}, "2": {"n": 1, "m": 1}}
    bench.begin("1", "2")
    bench.want(5, j1={"n": 4}, j2={"n": 2, "m": 1})
    bench.goals = {}
    assert bench.step(6, f.NodeLost("n")) == ["kill 2"]
    assert (bench.job("1").state, bench.job("1").held) == (v.State.PENDING, {})
    assert bench.job("2").held == {"m": 1}


def test_a_job_may_end_during_a_change(bench: Bench) -> None:
    bench.want(5, j1={"n": 5})
    bench.step(6, bench.end("1", f.Outcome.COMPLETED, 0))
    assert (bench.job("1").state, bench.job("1").held) == (v.State.COMPLETED, {})


def test_a_new_manager_asks_again_for_what_was_asked_not_for_the_goal(bench: Bench) -> None:
    bench.want(5, j1={"n": 5})
    bench.want(6, j1={"n": 1})
    again = Engine(bench.policy, bench.engine.world.save())
    op = bench.job("1").op
    assert again.outstanding() == (
        v.Action(v.Kind.START, "1", op, 1, alloc={"n": 5}),
        v.Action(v.Kind.RESCALE, "1", op, 1, alloc={"n": 5}, resize=1),
    )


def test_each_size_has_a_segment(bench: Bench) -> None:
    op = bench.job("1").op
    bench.step(1, f.Progressed("1", op, 10, rate=2.0, resume_s={"restore_s": 0.5}))
    bench.want(5, j1={"n": 5})
    # The speed on the way is that of no size.
    bench.step(6, f.Progressed("1", op, 20, 18, rate=1.0))
    assert bench.job("1").estimate.measured == {3: 2.0}
    bench.step(7, bench.answer("1", *gpus(n=5), stall_s=0.25))
    bench.step(9, f.Progressed("1", op, 50, 45, rate=3.0))
    assert bench.job("1").estimate.measured == {3: 2.0, 5: 3.0}
    bench.step(10, bench.end("1", f.Outcome.COMPLETED, 0))
    first, second = bench.record("1").segments
    assert (first.start_s, first.end_s, first.gpus, first.steps) == (0, 7, gpus(n=3), 20)
    assert (second.start_s, second.end_s, second.gpus, second.steps) == (7, 10, gpus(n=5), 30)
    assert (first.rescaled, first.stall_s) == (False, None)
    assert (second.rescaled, second.stall_s, second.resume_s) == (True, 0.25, None)
    assert (bench.record("1").rescales, bench.record("1").suspends) == (1, 0)


def test_a_checkpoint_from_before_the_change_counts_as_progress(bench: Bench) -> None:
    """Else its failures would add up although each attempt gets further."""
    op = bench.job("1").op
    bench.step(1, f.Progressed("1", op, 30, 20))
    bench.want(5, j1={"n": 5})
    bench.step(7, bench.answer("1", *gpus(n=5)))
    bench.step(8, bench.end("1", f.Outcome.FAILED, 1))
    assert bench.job("1").failures == 1
    bench.step(9)
    again = bench.job("1").op
    bench.step(9, f.Started("1", again, gpus(n=5)), f.Registered("1", again, 20, True))
    bench.step(10, f.Progressed("1", again, 40, 35))
    bench.want(11, j1={"n": 3})
    bench.step(12, bench.answer("1", *gpus(n=3)))
    bench.step(13, bench.end("1", f.Outcome.FAILED, 1))
    assert bench.job("1").failures == 1


def test_that_it_can_change_its_size_may_become_known_later_but_not_after_it_failed() -> None:
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.begin("1", in_place=False)
    op = bench.job("1").op
    bench.step(1, f.Progressed("1", op, 9, 9))
    again = f.Registered("1", op, 0, True)
    assert bench.step(1, again) == []
    assert (bench.job("1").run.in_place, bench.job("1").step) == (True, 9)
    assert bench.want(2, j1={"n": 5}) == ["rescale 1 n:5"]
    failed = bench.answer("1", *gpus(n=3), ok=False)
    assert bench.step(3, failed, again) == ["suspend 1"]
    assert not bench.job("1").run.in_place


def test_what_a_suspension_costs_is_learned_at_another_size() -> None:
    bench = Bench()
    bench.goals = {"1": {"n": 2}}
    bench.begin("1", in_place=False)
    told = []
    for now_s, size in ((10, 4), (20, 4), (30, 1)):
        bench.goals = {"1": {"n": size}}
        assert bench.step(now_s, f.Hold("1")) == ["suspend 1"]
        parts = {"write_s": now_s / 10, "teardown_s": 0.5}
        ended = f.Ended("1", bench.job("1").op, f.Outcome.SUSPENDED, 85, suspend_s=parts)
        bench.step(now_s + 1, ended, f.Release("1"))
        op = bench.job("1").op
        bench.step(now_s + 5, f.Started("1", op, gpus(n=size)), f.Registered("1", op, 0))
        bench.step(now_s + 6, f.Progressed("1", op, 1, resume_s={"start_s": 2.0}))
        told.append((bench.job("1").estimate.up_s, bench.job("1").estimate.down_s))
    # At the same size it says nothing; and the wait between the two does not count.
    assert told == [(3.5, None), (3.5, None), (3.5, 5.5)]
