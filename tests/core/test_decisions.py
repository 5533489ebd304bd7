"""A decision that is a fact: late, stale, failed, or never there; replayed without a policy."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest
from chaos import Scenario, scenarios
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from observer import Observer

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.decisions import PATIENCE_S
from hpcext.core.engine import Engine, answer_of
from hpcext.core.saved import Saved
from hpcext.policies import find_policy
from hpcext.sim.replay.heap import Heap, drive

MARBLE = find_policy("marble")


def through_json(fact: f.Fact) -> f.Fact:
    return msgspec.json.decode(msgspec.json.encode(fact), type=f.Fact)


def a_job(number: int, **more: object) -> v.Job:
    known = {"sizes": (1, 2, 3, 4), "optimal": 2, **more}
    return v.Job(str(number), f"job{number}", number, **known)  # type: ignore[arg-type]


class Story:
    """An engine whose questions are answered when the test says so."""

    def __init__(self, *nodes: v.Node, jobs: int = 2) -> None:
        self.engine = Engine()
        self.log: list[tuple[float, f.Fact]] = []
        self.tell(0.0, *map(f.NodeJoined, nodes or (v.Node("n", 4),)))
        self.tell(0.0, *(f.Submitted(a_job(number)) for number in range(1, jobs + 1)))

    def tell(self, now_s: float, *facts: f.Fact) -> list[tuple[str, str]]:
        """What is to be done then."""
        actions, self.wake_s = self.engine.step(now_s, facts)
        self.wanted = self.engine.wants  # as whoever drives it looks at once
        return [(action.kind.value, action.job) for action in actions]

    def decide(self, now_s: float, said: v.Target | str | None = None) -> list[tuple[str, str]]:
        wanted = self.engine.wants
        assert wanted is not None
        decided = self.engine.answer(MARBLE(wanted.now) if said is None else said, terse=True)
        return self.tell(now_s, decided)

    def run(self, now_s: float, *, elastic: bool = False) -> None:
        """Have what is starting run, with a session."""
        for job in self.jobs.values():
            if job.state is v.State.STARTING:
                gpus = tuple(f"{n}:{i}" for n, count in job.held.items() for i in range(count))
                self.tell(now_s, f.Started(job.id, job.op, gpus))
                registered = f.Registered(job.id, job.op, 0, in_place=elastic, elastic=elastic)
                self.tell(now_s, registered)

    @property
    def jobs(self) -> dict[str, v.Job]:
        return self.engine.world.jobs


def grant(**gpus: int) -> v.Grant:
    return v.Grant(gpus, v.Role.PRIMARY, "because")


def test_nothing_starts_before_it_is_decided_and_then_it_does() -> None:
    story = Story()
    assert story.decide(0.0) == []  # the second question: jobs came after the node
    assert story.decide(0.3) == [("start", "1"), ("start", "2")]
    assert story.engine.wants is None
    assert story.wake_s is None


def test_facts_are_true_at_once_and_acted_on_after_a_moment() -> None:
    """What old goals ask for is done without the answer, but not before a quick one could come."""
    story = Story(jobs=1)
    story.decide(0.0)
    story.decide(0.0)
    story.run(1.0)
    story.tell(2.0, f.Submitted(a_job(2)))
    assert story.tell(2.5, f.Hold("1")) == []
    assert story.jobs["1"].on_hold
    assert story.wake_s == 2.0 + PATIENCE_S
    assert story.tell(3.0) == [("suspend", "1")]
    # And from then on without waiting.
    assert story.tell(3.1, f.Release("1")) == []
    story.tell(3.2, f.Ended("1", story.jobs["1"].op, f.Outcome.SUSPENDED))
    assert story.jobs["1"].state is v.State.PENDING


def test_a_kill_waits_for_no_answer() -> None:
    story = Story(jobs=1)
    story.decide(0.0)
    story.decide(0.0)
    story.run(1.0)
    story.tell(2.0, f.Submitted(a_job(2)))
    assert story.tell(2.1, f.Cancel("1")) == [("kill", "1")]


@pytest.mark.parametrize("must", [False, True])
def test_stopping_does_not_ask_the_policy(must: bool) -> None:
    story = Story(jobs=1)
    story.decide(0.0)
    story.decide(0.0)
    story.run(1.0)
    story.tell(2.0, f.Submitted(a_job(2)))
    asked = story.engine.wants
    assert asked is not None
    assert story.tell(2.1, f.Drain(suspend=True, must=must)) == [("suspend", "1")]
    assert story.engine.wants is None
    assert story.jobs["2"].why == "waits because the manager is draining"
    # An answer that comes all the same is to a question that nobody has any more.
    late = f.Decided(asked.number, {"2": f.Granted({"n": 2}, v.Role.PRIMARY, "late")})
    assert story.tell(2.2, late) == []
    assert story.jobs["2"].goal is None


def test_what_happens_meanwhile_is_asked_about_afterwards_once() -> None:
    story = Story(jobs=1)
    story.decide(0.0)
    story.tell(0.1, f.Submitted(a_job(2)), f.Submitted(a_job(3)))
    story.tell(0.2, f.NodeJoined(v.Node("m", 4)))
    assert story.engine.wants is not None
    before = story.engine.wants.number
    story.decide(0.3)
    assert story.engine.wants is not None
    assert story.engine.wants.number == before + 1
    causes = v.Cause.SUBMITTED | v.Cause.NODES
    assert story.engine.wants.now.cause & causes == causes
    assert [name for _, name in story.decide(0.4)] == ["1", "2", "3"]
    assert story.engine.wants is None


def test_of_a_stale_target_what_is_impossible_now_is_left_out() -> None:
    """Else no answer of a slow policy would be followed where nodes come and go all the time."""
    story = Story(v.Node("n", 4), v.Node("m", 4), v.Node("k", 4), jobs=3)
    story.decide(0.0)
    target = v.Target({"1": grant(n=2), "2": grant(m=2), "3": grant(k=4)}, {}, memo={"had": 1})
    story.tell(1.5, f.NodeLost("m"), f.NodeJoined(v.Node("k", 2)), f.Submitted(a_job(4)))
    assert story.decide(9.0, target) == [("start", "1")]
    assert story.engine.refusal == ""
    assert story.engine.world.memo == {"had": 1}
    assert [story.jobs[name].goal for name in "1234"] == [{"n": 2}, None, None, None]
    # The rest is asked about again.
    assert story.engine.wants is not None
    assert story.decide(9.1) == [("start", "2"), ("start", "3")]


def test_what_does_not_fit_for_another_reason_is_refused_as_a_whole() -> None:
    story = Story(jobs=2)
    story.decide(0.0)
    story.decide(0.0, v.Target({"1": grant(n=3), "2": grant(n=3)}))
    assert "grants 3 GPUs on node n" in story.engine.refusal
    assert [job.goal for job in story.jobs.values()] == [None, None]


def test_without_an_answer_all_stays_and_the_world_says_why() -> None:
    story = Story(jobs=1)
    story.decide(0.0)
    story.decide(0.0)
    story.run(1.0)
    goal = dict(story.jobs["1"].goal or {})
    story.tell(2.0, f.Submitted(a_job(2)))
    assert story.decide(62.0, "did not answer within 60 s") == []
    assert (story.jobs["1"].goal, story.jobs["1"].state) == (goal, v.State.RUNNING)
    assert story.engine.refusal == "did not answer within 60 s"
    story.tell(70.0, f.NodeJoined(v.Node("m", 4)))
    assert story.decide(70.1) == [("start", "2")]
    assert story.engine.refusal == ""


def test_an_elastic_job_goes_on_with_its_remaining_nodes_before_a_decision() -> None:
    """A policy that takes longer than the grace costs no training that could go on."""
    story = Story(v.Node("n", 2), v.Node("m", 2), jobs=1)
    story.decide(0.0)
    story.tell(0.0, f.NodeJoined(v.Node("n", 2)))
    story.engine.world.put(msgspec.structs.replace(story.jobs["1"], nodes=(1, 2), sizes=(2,)))
    story.decide(0.0, v.Target({"1": grant(n=2, m=2)}))
    story.run(1.0, elastic=True)
    story.tell(2.0, f.Submitted(a_job(2)))
    assert story.tell(4.0, f.NodeJoined(v.Node("m", 0))) == [("rescale", "1")]
    job = story.jobs["1"]
    assert job.run.resize_to == {"n": 2}
    story.tell(4.5, f.Rescaled("1", job.op, job.run.resize, ("n:0", "n:1")))
    assert story.tell(5.0) == []
    assert story.jobs["1"].state is v.State.RUNNING


def test_a_quick_answer_comes_before_actions_for_old_goals() -> None:
    """The job moves to its new node in one change of size, not in a suspension and a start."""
    story = Story(v.Node("n", 2), v.Node("m", 2), v.Node("k", 2), jobs=1)
    story.engine.world.put(msgspec.structs.replace(story.jobs["1"], nodes=(1, 2), sizes=(2,)))
    story.decide(0.0)
    story.decide(0.0, v.Target({"1": grant(n=2, m=2)}))
    story.run(1.0, elastic=True)
    assert story.tell(2.0, f.NodeJoined(v.Node("m", 0))) == []
    assert story.decide(2.2, v.Target({"1": grant(n=2, k=2)})) == [("rescale", "1")]


def test_only_changes_are_recorded() -> None:
    story = Story(jobs=1000)
    story.decide(0.0)
    story.decide(0.0)
    story.run(1.0)
    story.tell(2.0, f.Ended("1", story.jobs["1"].op, f.Outcome.COMPLETED, 0))
    wanted = story.engine.wants
    assert wanted is not None
    decided = story.engine.answer(MARBLE(wanted.now), terse=True)
    assert decided.jobs.keys() == {"3"}
    assert len(msgspec.json.encode(decided)) < 500


@dataclasses.dataclass
class Late(Observer):
    """Watches an engine whose questions are answered after a while, sometimes not at all."""

    heap: Heap = dataclasses.field(default_factory=Heap)
    seed: int = 0
    slow: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine = Engine()
        self.random = random.Random(self.seed)
        self.asked = 0

    def watch(self, now_s: float, facts: tuple[f.Fact, ...], actions: tuple[v.Action, ...]) -> None:
        super().watch(now_s, facts, actions)
        wanted = self.engine.wants
        if wanted is None or wanted.number == self.asked:
            return
        self.asked = wanted.number
        said = "has no answer" if self.random.random() < 0.1 else answer_of(self.decide, wanted.now)
        # At no instant at which something else happens: an answer is a step of its own.
        delay_s = self.random.choice(self.slow) + self.random.uniform(1e-6, 1e-3)

        def answered() -> tuple[f.Fact, ...]:
            asked = self.engine.world.open_question
            if asked is None or asked.number != wanted.number:
                return ()
            decided = self.engine.answer(said, terse=True)
            if decided.failed:
                decided = msgspec.structs.replace(decided, wake_s=self.heap.now_s + 30.0)
            return (through_json(decided),)

        self.heap.after(delay_s, answered)

    def _check_deadlines(self, now_s: float) -> None:
        super()._check_deadlines(now_s - 2 * PATIENCE_S)

    def _check_decision(self) -> None:
        """What is granted fits the nodes that there are."""
        used: dict[str, int] = {}
        jobs = self.engine.world.jobs.values()
        # While draining, those may start that had been granted something before.
        self.granted = {job.id: dict(job.goal) for job in jobs if job.goal}
        for goal in self.granted.values():
            for node, gpus in goal.items():
                used[node] = used.get(node, 0) + gpus
        assert all(gpus <= self.nodes.get(node, 0) for node, gpus in used.items())

    def _check_nothing_new(self, now_s: float) -> None:
        """A step without facts is none of the journal's: see the other observer for it."""


quick = settings(
    max_examples=100,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
worlds = st.one_of(scenarios(), scenarios(("restless", "wild", "marble"), supple=True))
delays = st.lists(st.sampled_from([0.0, 0.3, 2.0, 15.0, 40.0]), min_size=1, max_size=4)


@quick
@given(worlds, delays, st.floats(0, 1), st.integers(0, 1 << 16))
def test_a_replay_without_a_policy_leads_to_the_same(
    scenario: Scenario, slow: list[float], cut: float, seed: int
) -> None:
    """However late the answers were, and wherever the journal was compacted."""
    heap, executor = scenario.begin()
    observer = Late(
        scenario.make_policy(), False, False, executor, heap=heap, seed=seed, slow=tuple(slow)
    )
    drive(observer.engine, heap, executor, observe=observer.watch)
    world = observer.engine.world
    assert [job.id for job in world.jobs.values() if not job.state.final] == []
    assert not executor.occupied()
    again = Engine()
    for number, (now_s, facts, actions) in enumerate(observer.log):
        if number == int(cut * len(observer.log)):
            saved = msgspec.json.decode(msgspec.json.encode(again.world.save()), type=Saved)
            again = Engine(saved=saved)
        assert again.step(now_s, map(through_json, facts))[0] == actions
    assert again.world.save() == world.save()
