"""What must hold whatever happens, on random worlds under the heap driver."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from chaos import FIFO, Scenario, scenarios
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from observer import Observer

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.saved import Saved
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.heap import drive

quick = settings(
    max_examples=150,
    # Not `explain`: it takes minutes here.
    phases=[Phase.generate, Phase.shrink],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
worlds = st.one_of(scenarios(), scenarios(("restless", "wild", "marble"), supple=True))
exhaustive = settings(quick, max_examples=6000, derandomize=False)


def watched(scenario: Scenario, executor: SimulatedExecutor) -> Observer:
    """What checks every step."""
    fifo = scenario.policy in FIFO
    return Observer(scenario.make_policy(), not scenario.made_up, fifo, executor)


def run(scenario: Scenario) -> Observer:
    """Drive a scenario to its end, watched."""
    heap, executor = scenario.begin()
    observer = watched(scenario, executor)
    drive(observer.engine, heap, executor, observe=observer.watch)
    return observer


def check(scenario: Scenario, cut: float) -> None:
    observer = run(scenario)
    check_ended(observer, scenario)
    check_replay(observer, scenario, int(cut * len(observer.log)))
    jobs = observer.engine.world.jobs.values()
    event(f"{scenario.policy}, some target refused: {observer.refused > 0}")
    event(f"some job suspended: {any(r.suspends for r in observer.engine.world.records.values())}")
    event(f"some job rescaled in place: {observer.rescaled > 0}")
    event(f"some job completed: {any(job.state is v.State.COMPLETED for job in jobs)}")


def check_ended(observer: Observer, scenario: Scenario) -> None:
    """Faults stopped, so every job ended, nothing is held, and no step was counted twice."""
    world = observer.engine.world
    assert [job.id for job in world.jobs.values() if not job.state.final] == []
    assert set(world.jobs) == {job.id for job in scenario.jobs}
    assert not observer.holders
    assert not observer.executor.occupied()
    for job in world.jobs.values():
        record = world.records[job.id]
        assert all(
            part.end_s is not None and part.end_s >= part.start_s for part in record.segments
        )
        starts = [part.start_s for part in record.segments]
        assert starts == sorted(starts)
        if job.state is v.State.COMPLETED:
            assert job.step == scenario.physics[job.id].work
            net = sum(part.steps for part in record.segments) - record.lost_steps
            assert net <= job.step


def check_replay(observer: Observer, scenario: Scenario, cut: int) -> None:
    """A new engine that is told the same does the same, even if saved and restored on the way."""
    engine = Engine(scenario.make_policy())
    for number, (now_s, facts, actions) in enumerate(observer.log):
        if number == cut:
            saved = engine.world.save()
            engine = Engine(scenario.make_policy(), through_json(saved))
            assert engine.world.save() == saved
        told = [msgspec.json.decode(msgspec.json.encode(fact), type=f.Fact) for fact in facts]
        assert engine.step(now_s, told) == (actions, observer.wakes[number])
    assert engine.world.save() == observer.engine.world.save()


def through_json(saved: Saved) -> Saved:
    return msgspec.json.decode(msgspec.json.encode(saved), type=Saved)


@quick
@given(worlds, st.floats(0, 1))
def test_whatever_happens(scenario: Scenario, cut: float) -> None:
    check(scenario, cut)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@exhaustive
@given(worlds, st.floats(0, 1))
def test_whatever_happens_thousands_of_times(scenario: Scenario, cut: float) -> None:
    check(scenario, cut)


@settings(quick, max_examples=60)
@given(scenarios(policies=("marble", "exclusive"), quiet=True))
def test_fifo(scenario: Scenario) -> None:
    """Where nothing goes wrong, jobs start for the first time in the order of the queue.

    No job starts while one before it has never started although its dependencies are complete.
    """
    observer = run(scenario)
    started: set[str] = set()
    ended: set[str] = set()
    here: dict[str, v.Job] = {}
    for _, facts, actions in observer.log:
        ended |= {fact.job for fact in facts if isinstance(fact, f.Ended) and not fact.exit_code}
        here |= {fact.job.id: fact.job for fact in facts if isinstance(fact, f.Submitted)}
        for action in actions:
            if action.kind is not v.Kind.START or action.job in started:
                continue
            order = here[action.job].order
            passed = [
                job.id
                for job in here.values()
                if job.order < order and set(job.after) <= ended and job.id not in started
            ]
            assert passed == []
            started.add(action.job)
    assert started == set(here)


class Died(Exception):
    """The manager was killed."""


@dataclasses.dataclass
class Mortal:
    """Hands actions on to an executor, until its manager dies between two of them.

    Each life lasts for so many actions of some kinds.
    """

    executor: SimulatedExecutor
    lives: list[int]
    kinds: frozenset[v.Kind]

    def perform(self, action: v.Action) -> None:
        if self.lives and action.kind in self.kinds:
            self.lives[0] -= 1
            if self.lives[0] < 0:
                del self.lives[0]
                raise Died
        self.executor.perform(action)

    def look(self) -> None:
        self.executor.look()

    def close(self) -> None:
        self.executor.close()


@settings(quick, max_examples=80)
@given(
    worlds,
    st.lists(st.integers(0, 12), max_size=8),
    st.sampled_from([frozenset(v.Kind), frozenset({v.Kind.RESCALE, v.Kind.SUSPEND})]),
)
def test_a_manager_that_dies_between_record_and_action_loses_nothing(
    scenario: Scenario, lives: list[int], kinds: frozenset[v.Kind]
) -> None:
    """The next one knows what was recorded, and gives the unanswered actions again."""
    heap, simulated = scenario.begin()
    observer = watched(scenario, simulated)
    executor = Mortal(simulated, lives, kinds)
    while True:
        try:
            drive(observer.engine, heap, executor, observe=observer.watch)
            break
        except Died:
            observer.engine = Engine(observer.policy, through_json(observer.engine.world.save()))
    check_ended(observer, scenario)
