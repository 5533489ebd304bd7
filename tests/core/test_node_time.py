"""What the time of nodes went into: each node-second in one place, by what happened."""

from __future__ import annotations

import math

import msgspec
import pytest
from chaos import Scenario, scenarios
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.history.node_time import Cost, Meter, NodeTime, Use
from hpcext.sim.replay.heap import drive

ONE = v.Job("1", "one", 1, (2,), 2)
WIDE = v.Job("1", "wide", 1, (2,), 2, nodes=(1, 2))


class Story:
    """An engine that does what it is told, and what is noted of it."""

    def __init__(self, *jobs: v.Job) -> None:
        self.target: dict[str, dict[str, int]] = {}
        self.engine = Engine(self._policy)
        self.time = NodeTime()
        self.meter = Meter(self.engine.world, self.time)
        self(0, *(f.Submitted(job) for job in jobs))

    def _policy(self, now: v.Snapshot) -> v.Target:
        grants = {
            job.id: v.Grant(self.target[job.id], v.Role.PRIMARY, "")
            for job in now.jobs
            if job.ready and self.target.get(job.id, {"": 0}).keys() <= now.nodes.keys()
        }
        return v.Target(grants)

    def __call__(self, now_s: float, *facts: f.Fact) -> None:
        self.engine.step(now_s, facts)
        self.meter.watch(now_s, facts)

    def op(self, job: str = "1") -> int:
        return self.engine.world.jobs[job].op

    def trains(self, now_s: float, first_s: float, *, step: int = 0, elastic: bool = False) -> None:
        """What was started runs, and does its first step at a later instant."""
        job = self.engine.world.jobs["1"]
        gpus = tuple(f"{node}:{i}" for node, count in job.held.items() for i in range(count))
        self(now_s, f.Started("1", job.op, gpus))
        self(now_s, f.Registered("1", job.op, step, in_place=elastic, elastic=elastic))
        self(first_s, f.Progressed("1", job.op, step + 1, step, resume_s={"first_step_s": 1.0}))

    def spent(self) -> dict[str, float]:
        found = {use.value: seconds for use, seconds in self.time.spent.items() if seconds}
        assert math.fsum(found.values()) == pytest.approx(self.time.held_s)
        self._check_jobs(found)
        return found

    def _check_jobs(self, found: dict[str, float]) -> None:
        """All but what no job had is the jobs'; of it all but training has a cost."""
        waited_s = found.get("waiting", 0.0)
        tallies = self.time.jobs.values()
        of_jobs = math.fsum(seconds for each in tallies for seconds in each.spent.values())
        costs = math.fsum(seconds for each in tallies for seconds in each.cost.values())
        trained_s = found.get("training", 0.0)
        assert of_jobs == pytest.approx(self.time.held_s - waited_s)
        assert costs == pytest.approx(of_jobs - trained_s)
        assert math.fsum(each.node_s for each in tallies) == pytest.approx(of_jobs)


def begun(job: v.Job = ONE, **nodes: int) -> Story:
    """Nodes from 0 on, and a job that has all of them and trains from 10 on."""
    story = Story(job)
    story.target["1"] = dict.fromkeys(nodes, 2)
    story(0, *(f.NodeJoined(v.Node(name, gpus)) for name, gpus in nodes.items()))
    story.trains(5, 10, elastic=job is WIDE)
    return story


def test_work_that_a_command_of_its_own_means_loses_is_moved_out_of_training() -> None:
    story = Story(ONE)
    story.target["1"] = {"n": 2}
    story(0, f.NodeJoined(v.Node("n", 2)))
    story(0, f.Started("1", story.op(), ("n:0", "n:1")))
    story(0, f.Registered("1", story.op(), 0, native=True))
    story(100, f.Hold("1"))
    story(100, f.Ended("1", story.op(), f.Outcome.SUSPENDED, lost_s=20.0))
    spent = story.spent()
    assert spent[Use.TRAINING.value] == pytest.approx(80.0)


def test_a_node_waits_then_a_job_starts_and_trains_on_half_of_it() -> None:
    story = Story(ONE)
    story(100, f.NodeJoined(v.Node("a", 4)))
    story.target["1"] = {"a": 2}
    story(110, f.NodeJoined(v.Node("a", 4, "h200")))
    story.trains(112, 130)
    story(150, f.Ended("1", story.op(), f.Outcome.COMPLETED, 0))
    story(160)
    assert story.spent() == {"waiting": 10 + 20 + 10, "starting": 10, "training": 10}
    assert story.time.jobs["1"].node_s == 20


def test_a_node_that_leaves_costs_the_pause_and_nothing_else() -> None:
    """Of two nodes one is wanted back; on the other the job stops, and starts again."""
    story = begun(WIDE, a=2, b=2)
    world = story.engine.world
    world.change_run(world.jobs["1"], in_place=False, elastic=False)
    story.target["1"] = {"a": 2}
    story(50, f.NodeJoined(v.Node("b", 0)))
    story(53, f.Ended("1", story.op(), f.Outcome.SUSPENDED, 85, suspend_s={"write_s": 2.0}))
    story(54, f.NodeLost("b"))
    story.trains(54, 60, step=40)
    story(70)
    assert story.spent() == {
        "starting": 20, "training": 2 * 40 + 10, "preemption": 3 + 7,
    }  # fmt: skip


def test_a_policy_that_moves_a_job_pays_for_it() -> None:
    story = begun(a=2)
    story.target["1"] = {"b": 2}
    story(30, f.NodeJoined(v.Node("b", 2)))
    assert story.engine.world.jobs["1"].state is v.State.STOPPING
    story(34, f.Ended("1", story.op(), f.Outcome.SUSPENDED, 85))
    story.trains(34, 40, step=1)
    found = story.spent()
    assert found == {"starting": 10, "training": 20, "rescaling": 4 + 6, "waiting": 4 + 6}


def test_training_whose_checkpoint_is_gone_is_lost_work() -> None:
    """Of 40 steps the last 10 have to be made again."""
    story = begun(a=2)
    story(50, f.Progressed("1", story.op(), 40, 40))
    story(50, f.Hold("1"))
    story(52, f.Ended("1", story.op(), f.Outcome.SUSPENDED, 85))
    story(60, f.Release("1"))
    story.trains(60, 65, step=30)
    found = story.spent()
    assert found == {"starting": 10, "training": 30, "other": 2 + 10 + 5, "waiting": 8}
    assert story.time.jobs["1"].cost[Cost.LOST] == 10


def test_a_user_who_suspends_a_job_pays_for_it() -> None:
    story = begun(a=2)
    story(20, f.Hold("1"))
    story(23, f.Ended("1", story.op(), f.Outcome.SUSPENDED, 85))
    story(30, f.Release("1"))
    story.trains(30, 35, step=9)
    assert story.spent() == {"starting": 10, "training": 10, "other": 3 + 5, "waiting": 7}


@pytest.mark.parametrize(
    ("saved", "lost_s"), [(0, 40), (20, 30), (40, 20)], ids=["nothing", "half", "all"]
)
def test_what_was_not_saved_is_lost_with_its_node(saved: int, lost_s: float) -> None:
    """At 30 it had done 40 steps; what came after nobody knows."""
    story = begun(a=2)
    story(30, f.Progressed("1", story.op(), 40, saved))
    story(50, f.NodeLost("a"))
    assert story.spent() == {
        key: value
        for key, value in {
            "starting": 10, "training": 40 - lost_s, "preemption": lost_s,
        }.items() if value
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "use"),
    [
        (f.Outcome.EVICTED, "preemption"),
        (f.Outcome.LOST, "preemption"),
        (f.Outcome.FAILED, "other"),
    ],
)
def test_how_an_attempt_ended_says_whose_fault_it_was(outcome: f.Outcome, use: str) -> None:
    story = begun(a=2)
    story(30, f.Ended("1", story.op(), outcome, 1))
    story(40)
    story.trains(41, 45)
    assert story.spent() == {"starting": 10, use: 20 + 5, "waiting": 10}


def test_a_start_that_a_preemption_cut_short_was_in_vain() -> None:
    story = Story(ONE)
    story.target["1"] = {"a": 2}
    story(0, f.NodeJoined(v.Node("a", 2)))
    story(3, f.Started("1", story.op(), ("a:0", "a:1")))
    story(9, f.NodeLost("a"))
    assert story.spent() == {"preemption": 9}


def test_a_job_that_reports_nothing_trained_if_it_completed() -> None:
    story = Story(ONE)
    story.target["1"] = {"a": 2}
    story(0, f.NodeJoined(v.Node("a", 2)))
    story(3, f.Started("1", story.op(), ("a:0", "a:1")))
    assert story.time.spent == {Use.STARTING: 3}
    story(60, f.Ended("1", story.op(), f.Outcome.COMPLETED, 0))
    assert story.spent() == {"training": 60}


@pytest.mark.parametrize("leaves", [False, True])
def test_a_change_in_place_costs_its_stall_and_what_waits_for_it(leaves: bool) -> None:
    """It grows by a node for 4 s, and stalls for 1; or it lost one, and stalls for 1."""
    story = begun(WIDE, a=2, b=2) if leaves else begun(WIDE, a=2)
    if leaves:
        story.target["1"] = {"a": 2}
        story(20, f.NodeJoined(v.Node("b", 0)))
    else:
        story.target["1"] = {"a": 2, "b": 2}
        story(20, f.NodeJoined(v.Node("b", 2)))
    job = story.engine.world.jobs["1"]
    assert job.state is v.State.RESCALING
    gpus = tuple(f"{node}:{index}" for node in job.run.resize_to for index in (0, 1))
    story(24, f.Rescaled("1", job.op, job.run.resize, gpus, stall_s=1.0))
    story(30)
    found = story.spent()
    if leaves:
        assert found == {"starting": 20, "training": 20 + 3 + 6, "preemption": 1}
    else:
        assert found == {"starting": 10, "training": 10 + 4 - 2 + 12, "rescaling": 4 + 2}


def test_nothing_is_said_of_the_time_without_a_manager() -> None:
    story = begun(a=2)
    story(30)
    story(1000, f.Began())
    story(1010)
    assert story.spent() == {"starting": 10, "training": 30}
    assert story.time.away_s == 970


quick = settings(
    max_examples=150,
    phases=[Phase.generate, Phase.shrink],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@quick
@given(st.one_of(scenarios(), scenarios(("restless", "marble"), supple=True)), st.floats(0, 1))
def test_it_adds_up_whatever_happens(scenario: Scenario, cut: float) -> None:
    """On a random journal, compacted somewhere: no node-second is missing, none counts twice."""
    heap, executor = scenario.begin()
    log: list[tuple[float, tuple[f.Fact, ...]]] = []
    engine = Engine(scenario.make_policy())
    drive(engine, heap, executor, observe=lambda now_s, facts, _: log.append((now_s, facts)))

    engine, time = Engine(scenario.make_policy()), NodeTime()
    meter = Meter(engine.world, time)
    there: dict[str, v.Node] = {}
    offered_s = last_s = 0.0
    for number, (now_s, facts) in enumerate(log):
        if number == int(cut * len(log)):
            engine = Engine(scenario.make_policy(), engine.world.save())
            time = msgspec.json.decode(msgspec.json.encode(time), type=NodeTime)
            meter = Meter(engine.world, time)
        if not any(isinstance(fact, f.Began) for fact in facts):
            offered_s += (now_s - last_s) * sum(1 for node in there.values() if node.gpus)
        last_s = now_s
        engine.step(now_s, facts)
        meter.watch(now_s, facts)
        for fact in facts:
            if isinstance(fact, f.NodeJoined):
                there[fact.node.name] = fact.node
            elif isinstance(fact, f.NodeLost):
                there.pop(fact.name, None)
    near = pytest.approx
    assert time.held_s == near(offered_s)
    assert math.fsum(time.spent.values()) == near(offered_s, abs=1e-6)
    assert min(time.spent.values(), default=0.0) >= -1e-6
    used = math.fsum(tally.node_s for tally in time.jobs.values())
    assert used == near(offered_s - time.spent.get(Use.WAITING, 0.0), abs=1e-6)
