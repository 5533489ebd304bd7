"""A training that does no step for long: when it is looked at, and what becomes of it."""

from __future__ import annotations

import msgspec
import pytest
from test_rescale import Bench, gpus

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.reasons import reason
from hpcext.core.saved import Saved
from hpcext.core.world import World


def reached(bench: Bench, step: int, *step_s: float, saved: int = 0) -> f.Progressed:
    times = (step_s[0], step_s[1]) if step_s else None
    return f.Progressed("1", bench.job("1").op, step, saved, step_s=times)


def silent(bench: Bench) -> f.Silent:
    return f.Silent("1", bench.job("1").op)


@pytest.fixture
def bench() -> Bench:
    """Job 1 on three GPUs, at step 30 at second 1, whose steps take a second and at most two."""
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.begin("1", in_place=False)
    assert bench.step(1, reached(bench, 30, 1.0, 2.0, saved=20)) == []
    return bench


@pytest.mark.parametrize(
    ("step_s", "limit_s"),
    [((0.1, 0.2), 60), ((10, 12), 200), ((0.1, 100), 300), ((3, 3), 60)],
)
def test_it_is_looked_at_after_a_silence_by_its_own_steps(
    step_s: tuple[float, float], limit_s: float
) -> None:
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.begin("1", in_place=False)
    bench.step(1, reached(bench, 30, *step_s))
    assert bench.engine.step(2, []) == ((), 1 + limit_s)
    assert bench.step(limit_s) == []
    assert bench.step(1 + limit_s) == ["inspect 1"]
    # It does something else: no answer. It is looked at again after as long.
    assert bench.step(2 + limit_s) == []
    assert bench.step(1 + 2 * limit_s) == ["inspect 1"]


def test_nothing_is_looked_at_that_does_steps_or_says_nothing_of_them(bench: Bench) -> None:
    for now_s in range(2, 200, 40):
        assert bench.step(now_s, reached(bench, 30 + now_s, 1.0, 2.0)) == []
    bench.step(200, reached(bench, 300))  # of an attempt that has done too few
    assert bench.step(10_000) == []


def test_it_is_said_and_withdrawn_when_it_goes_on(bench: Bench) -> None:
    assert bench.step(61) == ["inspect 1"]
    assert bench.step(62, silent(bench)) == []
    job = bench.job("1")
    assert (job.state, job.run.silence) == (v.State.RUNNING, v.Silence(1, 30, 60, 1.0))
    assert reason(job).startswith("seems to hang: no step for 60 s after step 30, and 99 % of its")
    # It is looked at no more, and what is no step changes nothing.
    assert bench.step(1000, reached(bench, 30, 1.0, 2.0)) == []
    assert bench.job("1").run.silence
    assert bench.step(1001, reached(bench, 31, 1.0, 2.0)) == []
    assert (bench.job("1").run.silence, bench.record("1").hangs) == (None, 1)
    assert bench.step(1061) == ["inspect 1"]


def test_what_was_heard_meanwhile_counts(bench: Bench) -> None:
    bench.step(61)
    assert bench.step(61, reached(bench, 31, 1.0, 2.0), silent(bench)) == []
    assert (bench.job("1").run.silence, bench.record("1").hangs) == (None, 0)


def test_a_manager_that_was_away_listens_first(bench: Bench) -> None:
    assert bench.step(5000, f.Began()) == []
    assert bench.step(5059) == []
    assert bench.step(5060) == ["inspect 1"]


def wants(bench: Bench, hang: str) -> None:
    bench.engine.world.change(bench.job("1"), hang=hang)


def test_it_is_restarted_if_its_user_wants_that(bench: Bench) -> None:
    wants(bench, "restart")
    bench.step(61)
    assert bench.step(62, silent(bench)) == ["kill 1"]
    bench.step(63, bench.end("1", f.Outcome.FAILED))
    job = bench.job("1")
    assert (job.state, job.failures, job.suspendable) == (v.State.PENDING, 1, True)
    assert job.why.startswith("retried in 1 s after: it hung: no step for 60 s after step 30")
    loss = bench.record("1").loss
    assert loss
    assert (loss.steps, loss.from_step) == (10, 20)
    assert loss.why.startswith("it hung: ")
    assert bench.step(65) == ["start 1 n:3"]
    assert not reason(bench.job("1")).startswith("seems to hang")


def test_one_that_hangs_where_it_was_started_fails_in_the_end(bench: Bench) -> None:
    wants(bench, "restart")
    now_s = 1.0
    for failures in (1, 2, 3):
        assert bench.step(now_s + 60) == ["inspect 1"]
        assert bench.step(now_s + 62, silent(bench)) == ["kill 1"]
        bench.step(now_s + 63, bench.end("1", f.Outcome.FAILED))
        assert bench.job("1").failures == failures
        if bench.job("1").state.final:
            break
        now_s += 100
        assert bench.step(now_s) == ["start 1 n:3"]
        op = bench.job("1").op
        bench.step(now_s, f.Started("1", op, gpus(n=3)), f.Registered("1", op, 0))
        bench.step(now_s, reached(bench, 30, 1.0, 2.0))
    assert bench.job("1").state is v.State.FAILED
    assert "failed 3 times in a row" in bench.job("1").why


def test_one_that_is_suspended_and_does_not_answer_is_not_blamed(bench: Bench) -> None:
    bench.step(61)
    bench.step(62, silent(bench))
    assert bench.step(70, f.Hold("1")) == ["suspend 1"]
    assert bench.step(130) == ["kill 1"]
    bench.step(131, bench.end("1", f.Outcome.FAILED))
    job = bench.job("1")
    assert (job.state, job.suspendable) == (v.State.PENDING, True)
    assert bench.record("1").loss.why.startswith("it hung: ")  # type: ignore[union-attr]


def test_ignored_is_ignored(bench: Bench) -> None:
    wants(bench, "ignore")
    assert bench.step(10_000) == []


def test_it_survives_a_journal_that_is_compacted(bench: Bench) -> None:
    bench.step(61)
    bench.step(62, silent(bench))
    saved = msgspec.json.decode(msgspec.json.encode(bench.engine.world.save()), type=Saved)
    world = World.restore(saved)
    assert world.jobs["1"].run == bench.job("1").run
    assert world.records["1"].hangs == 1
