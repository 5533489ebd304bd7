"""Trials of a sweep: which are ended at a rung, by hand and on random worlds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from chaos import POLICIES, Scenario, scenarios
from hypothesis import event, given, settings
from hypothesis import strategies as st
from observer import Observer
from test_properties import check_ended, check_replay, exhaustive, quick, watched

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.saved import Saved
from hpcext.core.trials import Trial
from hpcext.policies import find_policy
from hpcext.sim.replay.heap import drive
from hpcext.sim.replay.physics import SelfReport, Stretch, Where

RULES = Trial("sweep", metric="loss", first=10, factor=2)


class Run:
    """An engine with trials that all run."""

    def __init__(self, trials: int = 6, rules: Trial = RULES, **more: Any) -> None:
        self.engine = Engine(find_policy("marble"))
        self.now_s = 0.0
        names = [str(number) for number in range(1, trials + 1)]
        jobs = [v.Job(name, f"j{name}", int(name), (1,), 1, trial=rules, **more) for name in names]
        self.step(f.NodeJoined(v.Node("n", trials)), *map(f.Submitted, jobs))
        for name in names:
            self.step(f.Started(name, self.op(name), (f"n:{name}",)), self.fact(f.Registered, name))

    def job(self, name: str) -> v.Job:
        return self.engine.world.jobs[name]

    def op(self, name: str) -> int:
        return self.job(name).op

    def fact(self, kind: Any, name: str, **more: Any) -> Any:
        if kind is f.Registered:
            more = {"step": 0, **more}
        return kind(name, self.op(name), **more)

    def step(self, *facts: f.Fact) -> list[str]:
        self.now_s += 1
        actions, _ = self.engine.step(self.now_s, facts)
        return [f"{action.kind.value} {action.job}" for action in actions]

    def reports(self, name: str, step: int, loss: float | None = None, **more: Any) -> list[str]:
        metrics = {} if loss is None else {"loss": loss}
        return self.step(self.fact(f.Progressed, name, step=step, metrics=metrics, **more))

    def ends(self, name: str, outcome: f.Outcome = f.Outcome.FAILED) -> None:
        self.step(self.fact(f.Ended, name, outcome=outcome))


def test_the_best_of_those_that_came_so_far_go_on() -> None:
    run = Run()
    assert run.reports("1", 9, 9.0) == []
    assert run.reports("1", 10, 0.5) == []
    assert run.reports("2", 11, 0.6) == ["kill 2"]
    assert (
        run.job("2").why
        == "behind at step 10 of its sweep: loss 0.6; of 2 trials there the best had 0.5"
    )
    # Of three the best two go on, with what is equal to the second.
    assert run.reports("3", 10, 0.6) == []
    assert run.reports("4", 10, 0.4) == []
    assert run.reports("5", 10, 0.55) == []
    assert run.reports("6", 10, 0.58) == ["kill 6"]
    assert "of 6 trials there the best 3 had 0.4 to 0.55" in run.job("6").why
    # It is compared once, and then at the next rung, which is its own list.
    assert run.reports("1", 19, 99.0) == []
    assert run.reports("1", 20, 99.0) == []
    assert run.engine.world.records["1"].rungs == {10: 0.5, 20: 99.0}
    run.ends("2")
    assert (run.job("2").state, run.job("2").done) == (v.State.CANCELLED, True)


def test_more_may_be_better() -> None:
    run = Run(rules=msgspec.structs.replace(RULES, goal="max"))
    assert run.reports("1", 10, 0.5) == []
    assert run.reports("2", 10, 0.4) == ["kill 2"]
    assert "loss 0.4; of 2 trials there the best had 0.5" in run.job("2").why
    assert run.reports("3", 10, 0.7) == []


def test_a_metric_that_is_not_a_number_is_never_among_the_best() -> None:
    run = Run()
    assert run.reports("1", 10, diverged=("loss",)) == ["kill 1"]
    assert run.job("1").why == "behind at step 10 of its sweep: loss is not a number"
    assert run.reports("2", 10, 1e300) == []
    assert run.reports("3", 10, diverged=("loss",)) == ["kill 3"]
    run.reports("2", 20, diverged=("loss",))
    assert run.engine.world.records["2"].metrics == {}


def test_the_last_one_is_not_ended() -> None:
    run = Run(3, retries=0)
    assert run.reports("1", 10, 0.1) == []
    assert run.reports("2", 10, 0.2) == ["kill 2"]
    run.ends("1")
    assert run.job("1").state is v.State.FAILED
    # Of those that were better one has failed and the other is ended.
    assert run.reports("3", 10, 0.3) == []
    assert run.reports("3", 20, diverged=("loss",)) == []
    assert run.job("3").verdict == ""


def test_one_that_its_user_cancels_is_not_left() -> None:
    run = Run(2)
    run.reports("1", 10, 0.1)
    assert run.step(f.Cancel("1")) == ["kill 1"]
    assert run.reports("2", 10, 0.2) == []
    assert run.reports("1", 20, 0.9) == []
    assert run.job("1").verdict == ""
    run.ends("1")
    assert (run.job("1").why, run.job("1").done) == ("cancelled by its user", False)


def test_a_complete_one_is_left() -> None:
    run = Run(2)
    run.reports("1", 10, 0.1)
    run.ends("1", f.Outcome.COMPLETED)
    assert run.reports("2", 10, 0.2) == ["kill 2"]


def test_a_trial_that_ended_by_itself_is_complete() -> None:
    run = Run(2)
    run.reports("1", 10, 0.1)
    run.reports("2", 10, 0.2)
    run.ends("2", f.Outcome.COMPLETED)
    assert run.job("2").state is v.State.COMPLETED


def test_suspended_at_the_rung() -> None:
    """It is ended all the same, whichever answer is first; its last checkpoint is that of there."""
    run = Run(2)
    run.reports("1", 10, 0.1)
    assert run.step(f.Hold("2")) == ["suspend 2"]
    assert run.reports("2", 10, 0.2) == ["kill 2"]
    run.ends("2", f.Outcome.SUSPENDED)
    assert (run.job("2").state, run.job("2").done) == (v.State.CANCELLED, True)


def test_a_trial_that_goes_back_is_not_counted_again() -> None:
    run = Run(2)
    run.reports("1", 10, 0.1)
    run.ends("1")
    assert run.step() == ["start 1"]
    run.step(f.Started("1", run.op("1"), ("n:1",)), run.fact(f.Registered, "1"))
    assert run.reports("1", 10, 0.9) == []
    assert run.engine.world.records["1"].rungs == {10: 0.1}
    assert run.reports("2", 10, 0.2) == ["kill 2"]


def test_a_report_that_passes_rungs_counts_at_the_last_one() -> None:
    run = Run()
    assert run.reports("1", 10, 0.5) == []
    assert run.reports("2", 45, 0.9) == []
    assert run.engine.world.records["2"].rungs == {40: 0.9}
    # Unless it says what it had there; what it says of other steps does not count.
    had: Mapping[int, Mapping[str, float | None]]
    had = {10: {"loss": 0.4}, 20: {"other": 1.0}, 33: {"loss": 0.0}, 80: {"loss": 0.0}}
    assert run.reports("3", 45, 0.95, rungs=had) == ["kill 3"]
    assert run.engine.world.records["3"].rungs == {10: 0.4, 40: 0.95}
    assert run.job("3").why.startswith("behind at step 40 ")


def test_without_the_metric_no_trial_is_ended() -> None:
    run = Run(2)
    run.reports("1", 10, 0.1)
    assert run.reports("2", 15, rungs={10: {"other": 3.0}}) == []
    assert run.engine.world.records["2"].rungs == {}
    # The first report that has it counts.
    assert run.reports("2", 17, 0.2) == ["kill 2"]
    assert run.engine.world.records["2"].rungs == {10: 0.2}


def test_sweeps_with_other_rules_are_not_compared() -> None:
    run = Run(1)
    other = msgspec.structs.replace(RULES, first=20)
    run.step(f.NodeJoined(v.Node("n", 2)), f.Submitted(v.Job("2", "j2", 2, (1,), 1, trial=other)))
    run.step(f.Started("2", run.op("2"), ("n:2",)))
    run.reports("1", 20, 0.1)
    assert run.reports("2", 20, 0.2) == []


def test_what_waits_for_ended_trials_begins() -> None:
    run = Run(2)
    run.step(f.Submitted(v.Job("3", "best", 3, (1,), 1, after=("1", "2"))))
    run.reports("1", 10, 0.1)
    run.reports("2", 10, 0.2)
    run.ends("2")
    assert run.job("3").state is v.State.PENDING
    run.step(f.Submitted(v.Job("4", "late", 4, (1,), 1, after=("2",))))
    assert run.job("4").state is not v.State.CANCELLED
    run.ends("1", f.Outcome.COMPLETED)
    assert run.job("3").state is v.State.STARTING


def test_a_world_that_was_saved_decides_alike() -> None:
    run = Run(3)
    run.reports("1", 10, 0.1)
    run.reports("2", 10, diverged=("loss",))
    saved = msgspec.json.encode(run.engine.world.save())
    run.engine = Engine(find_policy("marble"), msgspec.json.decode(saved, type=Saved))
    assert run.reports("3", 10, 0.2) == []
    run.reports("1", 20, 0.1)
    saved = msgspec.json.encode(run.engine.world.save())
    run.engine = Engine(find_policy("marble"), msgspec.json.decode(saved, type=Saved))
    assert run.reports("3", 20, 0.2) == ["kill 3"]


# On random worlds.


@dataclasses.dataclass(frozen=True)
class Learner:
    """A training whose loss is what it is, whoever else trains."""

    losses: tuple[float, ...]
    mute: bool

    def stretch(self, where: Where, done: float) -> Stretch:
        return Stretch(rate=float(where.total))

    def said(self, where: Where, done: float) -> SelfReport:
        place = min(int(done) // 10, len(self.losses) - 1)
        return SelfReport(loss=None if self.mute else self.losses[place])

    def alone_s(self, gpus: float, per_node: int) -> float:
        raise NotImplementedError


losses = st.one_of(st.sampled_from([0.0, 0.5, 1.0, math.nan]), st.floats(-1e6, 1e6))


@st.composite
def sweeps(draw: st.DrawFn) -> Scenario:
    """A random scenario of which most jobs are trials, of one sweep or of two."""
    scenario = draw(scenarios(POLICIES))
    kinds = [
        Trial(
            name, metric="loss", goal=draw(st.sampled_from(["min", "max"])), first=first, factor=n
        )
        for name, first, n in (("a", draw(st.integers(1, 40)), 2), ("b", 10, 3))
    ]
    trials = [draw(st.sampled_from([kinds[0], kinds[0], kinds[1], None])) for _ in scenario.jobs]
    jobs = tuple(
        msgspec.structs.replace(job, trial=trial)
        for job, trial in zip(scenario.jobs, trials, strict=True)
    )
    physics = {
        name: msgspec.structs.replace(
            each,
            speed=Learner(
                tuple(draw(st.lists(losses, min_size=1, max_size=6))),
                draw(st.sampled_from([False, False, False, True])),
            ),
        )
        for name, each in scenario.physics.items()
    }
    report_s = draw(st.sampled_from([1.0, 7.0]))
    return dataclasses.replace(scenario, jobs=jobs, physics=physics, report_s=report_s)


@dataclasses.dataclass
class Judge:
    """Keeps lists of his own of who came to which rung, and compares by sorting them anew."""

    observer: Observer
    rungs: dict[tuple[Any, ...], list[float]] = dataclasses.field(default_factory=dict)
    seen: dict[str, dict[int, float | None]] = dataclasses.field(default_factory=dict)
    ended: int = 0

    def watch(self, now_s: float, facts: tuple[f.Fact, ...], actions: tuple[v.Action, ...]) -> None:
        world = self.observer.engine.world
        # Whom his sweep ends is treated as who is cancelled; whether rightly, is seen below.
        ended = [job for job in world.jobs.values() if job.verdict]
        self.observer.cancelled |= {job.id for job in ended}
        self.observer.completed |= {job.id for job in ended if job.done}
        self.observer.watch(now_s, facts, actions)
        told = [fact.job for fact in facts if isinstance(fact, f.Progressed)]
        for name in dict.fromkeys(told):
            if name in world.jobs and world.jobs[name].trial:
                self._check(world.jobs[name], dict(world.records[name].rungs))

    def _check(self, job: v.Job, rungs: dict[int, float | None]) -> None:
        trial, before = job.trial, self.seen.get(job.id, {})
        assert trial is not None
        assert {rung: rungs[rung] for rung in before} == before, "what was reported stays"
        self.seen[job.id] = rungs
        for rung in sorted(rungs.keys() - before.keys()):
            assert rung > max(before, default=0)
            value = rungs[rung]
            assert rung in {trial.first * trial.factor**power for power in range(20) if trial.first}
            sign = 1 if trial.goal == "min" else -1
            score = math.inf if value is None else sign * value
            here = self.rungs.setdefault((trial.rules, rung), [])
            here.append(score)
            better = len([each for each in here if each < score])
            among = better < math.ceil(len(here) / trial.factor) and score < math.inf
            if among:
                assert f"at step {rung} " not in job.verdict
            elif not job.verdict and not job.cancelling:
                assert not self._others(job), "it was behind, and goes on"
            elif f"at step {rung} " in job.verdict:
                self.ended += 1

    def _others(self, job: v.Job) -> list[str]:
        """Trials of its sweep that may yet be the best, or are."""
        return [
            other.id
            for other in self.observer.engine.world.jobs.values()
            if other.trial == job.trial and other.id != job.id
            if other.state is v.State.COMPLETED or not (other.state.final or other.cancelling)
        ]


@settings(quick, max_examples=60)
@given(sweeps(), st.floats(0, 1))
def test_whatever_happens_trials_are_ended_by_the_rule(scenario: Scenario, cut: float) -> None:
    check(scenario, cut)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(exhaustive, max_examples=2000)
@given(sweeps(), st.floats(0, 1))
def test_whatever_happens_to_trials_thousands_of_times(scenario: Scenario, cut: float) -> None:
    check(scenario, cut)


def check(scenario: Scenario, cut: float) -> None:
    """Drive a scenario to its end, watched and judged; and once more from what was written."""
    heap, executor = scenario.begin()
    observer = watched(scenario, executor)
    judge = Judge(observer)
    drive(observer.engine, heap, executor, observe=judge.watch)
    check_ended(observer, scenario)
    check_replay(observer, scenario, int(cut * len(observer.log)))
    world = observer.engine.world
    for job in world.jobs.values():
        if job.verdict:
            assert job.trial
            assert world.records[job.id].rungs
            assert job.state in {v.State.CANCELLED, v.State.COMPLETED}
            same = [other for other in world.jobs.values() if other.trial == job.trial]
            # Not all were ended: the last one went on until it was complete, failed or cancelled.
            assert [
                other for other in same if not other.verdict or other.state is v.State.COMPLETED
            ]
        elif job.state is v.State.CANCELLED and job.after:
            needs = [world.jobs[need] for need in job.after]
            assert (
                job.cancelling
                or "cancelled by its user" in job.why
                or not all(need.done for need in needs)
            )
    event(f"some trial was ended: {judge.ended > 0}")


@pytest.mark.parametrize("metric", [True, False])
def test_a_sweep_without_rungs_ends_no_trial(metric: bool) -> None:
    run = Run(2, Trial("sweep", metric="loss" if metric else ""))
    run.reports("1", 10**6, 0.1)
    assert run.reports("2", 10**6, 0.9) == []
    assert run.engine.world.records["2"].rungs == {}
    curve = [point.loss for point in run.engine.world.records["2"].curve]
    assert curve == ([0.9] if metric else [])
