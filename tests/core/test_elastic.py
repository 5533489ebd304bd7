"""Jobs that change their nodes while they train, and a queue that may be long; by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from test_rescale import Bench, gpus

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.rescaling import bereft, can_rescale, part
from hpcext.policies import find_policy


class Elastic(Bench):
    """Jobs on one to four nodes, with two GPUs on each."""

    def begin_elastic(self, *jobs: str, elastic: bool = True) -> None:
        """As :meth:`begin`; of a session that can change its nodes."""
        for name in jobs:
            self.step(0, f.Submitted(v.Job(name, f"j{name}", int(name), (2,), 2, nodes=(1, 4))))
            self.step(0, self.started(name), self.registered(name, elastic=elastic))

    def started(self, name: str) -> f.Started:
        now = self.job(name)
        return f.Started(name, now.op, gpus(**now.held))

    def registered(self, name: str, *, elastic: bool = True, step: int = 0) -> f.Registered:
        return f.Registered(name, self.job(name).op, step, elastic, elastic)


NODES = tuple(v.Node(name, 2) for name in "abcd")


@pytest.fixture
def bench() -> Elastic:
    """Job 1 on two nodes of four."""
    bench = Elastic(*NODES)
    bench.goals = {"1": {"a": 2, "b": 2}}
    bench.begin_elastic("1")
    return bench


def test_it_grows_onto_another_node_and_shrinks_from_one_without_a_stop(bench: Elastic) -> None:
    assert bench.want(5, j1={"a": 2, "b": 2, "c": 2}) == ["rescale 1 a:2 b:2 c:2"]
    assert bench.job("1").held == {"a": 2, "b": 2, "c": 2}
    assert bench.step(6, bench.answer("1", *gpus(a=2, b=2, c=2), stall_s=1.0)) == []
    assert bench.want(7, j1={"c": 2}) == ["rescale 1 c:2"]
    # Until it has answered, it may be on all three.
    assert bench.job("1").held == {"a": 2, "b": 2, "c": 2}
    assert bench.step(8, bench.answer("1", *gpus(c=2), stall_s=0.5)) == []
    job = bench.job("1")
    assert (job.state, job.held, job.attempt) == (v.State.RUNNING, {"c": 2}, 1)
    assert (job.estimate.up_s, job.estimate.down_s) == (1.0, 0.5)
    assert [len(each.gpus) for each in bench.record("1").segments] == [4, 6, 2]


def test_a_job_that_keeps_no_node_is_suspended(bench: Elastic) -> None:
    assert bench.want(5, j1={"c": 2, "d": 2}) == ["suspend 1"]
    assert bench.step(6, bench.end("1")) == ["start 1 c:2 d:2"]


def test_one_that_is_not_elastic_is_suspended_for_another_node() -> None:
    bench = Elastic(*NODES)
    bench.goals = {"1": {"a": 2}}
    bench.begin_elastic("1", elastic=False)
    assert bench.want(5, j1={"a": 2, "b": 2}) == ["suspend 1"]


def test_an_elastic_job_goes_on_without_a_lost_node(bench: Elastic) -> None:
    bench.goals = {"1": {"b": 2}}
    assert bench.step(5, f.NodeLost("a")) == ["rescale 1 b:2"]
    job = bench.job("1")
    assert (job.state, job.held, job.gpus) == (v.State.RESCALING, {"b": 2}, gpus(b=2))
    assert (job.attempt, job.run.degraded, job.failures) == (1, True, 0)
    assert bench.step(6, bench.answer("1", *gpus(b=2), stall_s=2.0)) == []
    job = bench.job("1")
    assert (job.state, job.run.degraded, job.attempt) == (v.State.RUNNING, False, 1)


def test_it_may_get_another_node_in_the_same_breath(bench: Elastic) -> None:
    bench.goals = {"1": {"b": 2, "c": 2}}
    assert bench.step(5, f.NodeLost("a")) == ["rescale 1 b:2 c:2"]
    assert bench.job("1").held == {"b": 2, "c": 2}


def test_one_that_has_lost_a_node_does_not_wait_for_what_it_is_to_get(bench: Elastic) -> None:
    """It stands still until it is told; the rest comes when it is free."""
    bench.goals["2"] = {"c": 2}
    bench.begin_elastic("2", elastic=False)
    bench.goals = {"1": {"b": 2, "c": 2}}
    assert bench.step(5, f.NodeLost("a")) == ["suspend 2", "rescale 1 b:2"]
    assert bench.job("1").run.resize_to == {"b": 2}
    assert bench.step(6, bench.answer("1", *gpus(b=2))) == []
    assert bench.step(7, bench.end("2")) == ["rescale 1 b:2 c:2"]


def test_a_change_that_was_under_way_comes_to_nothing_with_the_node(bench: Elastic) -> None:
    bench.want(5, j1={"a": 2, "b": 2, "c": 2})
    stale = bench.answer("1", *gpus(a=2, b=2, c=2))
    bench.goals = {"1": {"b": 2, "c": 2}}
    assert bench.step(6, f.NodeLost("a")) == ["rescale 1 b:2 c:2"]
    assert bench.job("1").run.resize == 2
    # What the ranks say that were asked before is about a group that is no more.
    bench.step(7, stale)
    assert (bench.job("1").state, bench.job("1").run.degraded) == (v.State.RESCALING, True)
    bench.step(8, bench.answer("1", *gpus(b=2, c=2)))
    assert bench.job("1").held == {"b": 2, "c": 2}
    assert not bench.job("1").run.degraded


def test_who_loses_the_last_node_goes_back_to_its_checkpoint(bench: Elastic) -> None:
    bench.goals = {"1": {"c": 2}}
    # Nothing that it did: that is no failure, and it waits for nothing.
    assert bench.step(5, f.NodeLost("a"), f.NodeLost("b")) == ["start 1 c:2"]
    assert (bench.job("1").failures, bench.job("1").run.degraded) == (0, False)


def test_a_launch_that_loses_a_node_does_not_go_on() -> None:
    """It has no session yet that could: what is left of it is killed."""
    bench = Elastic(*NODES)
    bench.goals = {"1": {"a": 2, "b": 2}}
    bench.step(0, f.Submitted(v.Job("1", "j1", 1, (2,), 2, nodes=(1, 4))))
    bench.goals = {}
    assert bench.step(1, f.NodeLost("a")) == ["kill 1"]
    assert bench.job("1").held == {"b": 2}


def test_one_that_saves_and_loses_a_node_is_killed(bench: Elastic) -> None:
    assert bench.step(5, f.Hold("1")) == ["suspend 1"]
    assert bench.step(6, f.NodeLost("a")) == ["kill 1"]


def test_nothing_is_left_to_it_and_it_is_suspended(bench: Elastic) -> None:
    """The policy wants its node for somebody else."""
    bench.goals = {}
    assert bench.step(5, f.NodeLost("a")) == ["suspend 1"]


def test_a_change_that_fails_is_not_tried_again_in_this_attempt(bench: Elastic) -> None:
    bench.want(5, j1={"a": 2, "b": 2, "c": 2})
    failed = bench.answer("1", *gpus(a=2, b=2), ok=False, why="a rank did not come up")
    assert bench.step(6, failed) == ["suspend 1"]
    assert (bench.job("1").run.elastic, bench.job("1").run.in_place) == (False, False)
    # In the next one it is, if its session says so.
    bench.step(7, bench.end("1"))
    bench.step(8, bench.started("1"), bench.registered("1"))
    assert bench.job("1").run.elastic


def test_a_second_manager_asks_again_for_what_a_degraded_job_was_told(bench: Elastic) -> None:
    bench.goals = {"1": {"b": 2}}
    bench.step(5, f.NodeLost("a"))
    again = Engine(bench.policy, bench.engine.world.save())
    op = bench.job("1").op
    assert again.outstanding() == (
        v.Action(v.Kind.START, "1", op, 1, alloc={"b": 2}),
        v.Action(v.Kind.RESCALE, "1", op, 1, alloc={"b": 2}, resize=1),
    )


RUNNING = v.Job(
    "1", "j1", 1, (2,), 2, nodes=(1, 3), state=v.State.RUNNING,
    run=v.Run(elastic=True, in_place=True),
    goal={"a": 2, "b": 2}, held={"a": 2, "b": 2}, gpus=gpus(a=2, b=2),
)  # fmt: skip


def test_who_goes_on_without_a_node_and_who_does_not() -> None:
    changes = bereft(RUNNING, "a")
    assert changes is not None
    assert (changes["held"], changes["gpus"], changes["goal"]) == ({"b": 2}, gpus(b=2), {"b": 2})
    # With fewer nodes than it can be on it has no goal that it could keep.
    changes = bereft(replace(RUNNING, nodes=(2, 3)), "a")
    assert changes is not None
    assert changes["goal"] is None
    for wrong in (
        {"run": v.Run(elastic=False, in_place=True)},
        {"state": v.State.STOPPING},
        {"state": v.State.STARTING},
        {"held": {"a": 2}, "gpus": gpus(a=2)},
    ):
        assert bereft(replace(RUNNING, **wrong), "a") is None, wrong


def test_the_part_of_its_goal_that_a_job_holds() -> None:
    for goal, held, both in (
        ({"a": 2, "c": 2}, {"a": 2, "b": 2}, {"a": 2}),
        ({"a": 1}, {"a": 2}, {"a": 1}),
        ({"a": 4}, {"a": 2}, {"a": 2}),
        ({"c": 2}, {"a": 2}, {}),
        (None, {"a": 2}, {}),
    ):
        assert part(replace(RUNNING, goal=goal, held=held)) == both


@pytest.mark.parametrize(
    ("elastic", "goal", "can"),
    [
        (True, {"a": 2}, True),
        (True, {"a": 2, "c": 2}, True),
        (True, {"c": 2, "d": 2}, False),
        (False, {"a": 2}, False),
        (False, {"a": 1, "b": 1}, True),
        (True, None, False),
    ],
)
def test_the_ways_that_can_be_made_in_place(
    elastic: bool, goal: dict[str, int] | None, can: bool
) -> None:
    assert (
        can_rescale(replace(RUNNING, run=v.Run(elastic=elastic, in_place=True), goal=goal)) is can
    )


def test_the_policy_is_asked_again_only_where_somebody_was_not_settled() -> None:
    """That a session is up is news to who could not be given another size before."""
    asked: list[float] = []
    bench = Elastic(*NODES)
    policy = bench.policy

    def count(now: v.Snapshot) -> v.Target:
        asked.append(now.now_s)
        return policy(now)

    bench.engine = Engine(count)
    bench.goals = {"1": {"a": 2}, "2": {"b": 2}}
    bench.step(0, *map(f.NodeJoined, NODES))
    for name in "12":
        bench.step(1, f.Submitted(v.Job(name, f"j{name}", int(name), (2,), 2, nodes=(1, 4))))
    assert asked == [0, 1, 1]
    assert bench.engine.world.unsettled  # job 1 was starting when job 2 came
    bench.step(2, bench.started("1"), bench.registered("1"))
    bench.step(3, bench.started("2"), bench.registered("2"))
    # At 2 s job 2 had no session yet; at 3 s all were settled at last.
    assert asked == [0, 1, 1, 2, 3]
    assert not bench.engine.world.unsettled
    # A change that is made as it was wanted is none; the world is saved with what was so.
    assert bench.want(4, j1={"a": 2, "c": 2}) == ["rescale 1 a:2 c:2"]
    bench.step(5, bench.answer("1", *gpus(a=2, c=2)))
    assert asked == [0, 1, 1, 2, 3, 4]
    # One that is asked for something while another changes is heard of afterwards.
    bench.want(6, j2={"b": 2, "d": 2})
    bench.step(7, f.Submitted(v.Job("3", "j3", 3, (2,), 2)))
    assert Engine(count, bench.engine.world.save()).world.unsettled
    bench.step(8, bench.answer("2", *gpus(b=2, d=2)))
    assert asked[-2:] == [7, 8]


# The queue.


def answers(waiting: int) -> list[tuple[float, list[str], float | None]]:
    """What an engine says to the same events, with so many more jobs behind those it is about."""
    engine = Engine(find_policy("marble"))
    told: list[tuple[float, list[str], float | None]] = []

    def step(now_s: float, *facts: f.Fact) -> None:
        actions, wake_s = engine.step(now_s, facts)
        words = [f"{a.kind.value} {a.job} {dict(a.alloc)}" for a in actions if int(a.job) < 100]
        told.append((now_s, words, wake_s))
        for action in actions:
            gpus_ = tuple(f"n:{number}" for number in range(sum(action.alloc.values())))
            if action.kind is v.Kind.START:
                engine.step(now_s, [f.Started(action.job, action.op, gpus_)])
                engine.step(now_s, [f.Registered(action.job, action.op, 0)])

    def end(name: str, outcome: f.Outcome, code: int) -> f.Ended:
        return f.Ended(name, engine.world.jobs[name].op, outcome, code)

    def job(number: int, **more: object) -> v.Job:
        return replace(v.Job(str(number), f"j{number}", number, (4,), 4), **more)

    first = [job(1, retries=3), job(2), job(3, after=("1",)), job(4, priority=5.0)]
    step(0, f.NodeJoined(v.Node("n", 4)), *map(f.Submitted, first))
    step(1, *(f.Submitted(job(100 + number)) for number in range(waiting)))
    step(2, f.Hold("2"))
    step(3, end("4", f.Outcome.COMPLETED, 0))
    step(4, end("1", f.Outcome.FAILED, 1))
    step(5, f.Release("2"))
    step(6, f.Cancel("3"))
    assert len(engine.world.queue) == len(engine.world.unfinished())
    ids = [each.id for each in engine.world.unfinished()]
    keys = [(-each.priority, each.order) for each in engine.world.unfinished()]
    assert keys == sorted(keys)
    assert set(ids) == {name for name, each in engine.world.jobs.items() if not each.state.final}
    return told


def test_answers_do_not_depend_on_how_long_the_queue_is() -> None:
    few, many = answers(3), answers(3000)
    assert few == many
    starts = [word for _, words, _ in few for word in words if word.startswith("start")]
    assert starts[:2] == ["start 4 {'n': 4}", "start 1 {'n': 4}"]


def test_a_job_behind_a_long_queue_is_explained_once_and_again_when_it_changes() -> None:
    engine = Engine(find_policy("marble"))
    jobs = [v.Job(str(n), f"j{n}", n, (1,), 1) for n in range(50)]
    engine.step(0, [f.NodeJoined(v.Node("n", 1)), *map(f.Submitted, jobs)])
    last = engine.world.jobs["49"]
    assert last.why
    engine.step(1, [f.Hold("49")])
    assert "suspended by its user" in engine.world.jobs["49"].why
    engine.step(2, [f.Release("49")])
    assert engine.world.jobs["49"].why == last.why
    engine.step(3, [f.Drain()])
    assert "draining" in engine.world.jobs["49"].why


def test_a_wait_after_a_failure_is_over_in_time_however_long_the_queue_is() -> None:
    engine = Engine(find_policy("marble"))
    jobs = [v.Job(str(n), f"j{n}", n, (1,), 1) for n in range(1, 30)]
    hold = [f.Hold(job.id) for job in jobs[1:]]
    engine.step(0, [f.NodeJoined(v.Node("n", 1)), *map(f.Submitted, jobs), *hold])
    op = engine.world.jobs["1"].op
    _, wake_s = engine.step(10, [f.Ended("1", op, f.Outcome.FAILED, 1)])
    again_s = engine.world.jobs["1"].not_before_s
    assert wake_s == again_s > 10
    assert engine.step(again_s - 0.5, []) == ((), again_s)
    (action,), _ = engine.step(again_s, [])
    assert (action.kind, action.job) == (v.Kind.START, "1")


def finished(engine: Engine, now_s: float, name: str) -> None:
    op = engine.world.jobs[name].op
    engine.step(now_s, [f.Started(name, op, ("n:0",))])
    engine.step(now_s, [f.Ended(name, op, f.Outcome.COMPLETED, 0)])


def test_a_job_is_forgotten_when_it_is_no_longer_needed() -> None:
    engine = Engine(find_policy("marble"))
    world = engine.world
    jobs = [
        v.Job("1", "a", 1, (1,), 1),
        v.Job("2", "b", 2, (1,), 1, after=("1",)),
        v.Job("3", "c", 3, (1,), 1),
    ]
    engine.step(0, [f.NodeJoined(v.Node("n", 1)), *map(f.Submitted, jobs)])
    world.forget("1")  # it runs
    assert set(world.jobs) == {"1", "2", "3"}
    finished(engine, 1, "1")
    world.forget("1")  # job 2 has to see that it completed
    assert set(world.jobs) == set(world.records) == {"1", "2", "3"}
    finished(engine, 2, "2")
    world.forget("2")
    world.forget("1")
    assert set(world.jobs) == set(world.records) == {"3"}
    # What is late about a job that is forgotten changes nothing.
    before = world.save()
    engine.step(2, [f.Progressed("1", 1, 5), f.Ended("2", 2, f.Outcome.FAILED, 1), f.Hold("1")])
    assert world.save() == before
    finished(engine, 3, "3")
    assert world.jobs["3"].state is v.State.COMPLETED
    assert not len(world.queue)
