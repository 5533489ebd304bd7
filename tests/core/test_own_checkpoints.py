"""Jobs whose commands save by their own means: what an engine makes of them, and what is said."""

from __future__ import annotations

import msgspec
import pytest
from test_rescale import Bench, gpus

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.saving import loss_sentence, lost


@pytest.fixture
def bench() -> Bench:
    """Job 1 on three GPUs of six, whose command saves by its own means."""
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.step(0, f.Submitted(v.Job("1", "j1", 1, (1, 2, 3, 4, 5, 6), 6, retries=1)))
    begin(bench, 0)
    return bench


def begin(bench: Bench, now_s: float) -> None:
    job = bench.job("1")
    bench.step(now_s, f.Started("1", job.op, gpus(**job.held)))
    bench.step(now_s, f.Registered("1", job.op, 0, native=True))


def lose_node(bench: Bench, now_s: float) -> None:
    bench.goals = {}
    bench.step(now_s, f.NodeLost("n"))


def ended(bench: Bench, outcome: f.Outcome, **more: object) -> f.Ended:
    return msgspec.structs.replace(bench.end("1", outcome, 0), **more)


def test_it_can_be_suspended_by_its_user_and_goes_on(bench: Bench) -> None:
    assert bench.step(10, f.Hold("1")) == ["suspend 1"]
    bench.step(11, ended(bench, f.Outcome.SUSPENDED, lost_s=0.0, saved=True))
    job, record = bench.job("1"), bench.record("1")
    assert (job.state, job.on_hold, record.suspends) == (v.State.PENDING, True, 1)
    assert record.loss is None
    assert lost(record) == "0"
    assert bench.step(12, f.Release("1")) == ["start 1 n:3"]


def test_a_loss_counts_although_the_attempt_ended_before_it_was_heard_of() -> None:
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.step(0, f.Submitted(v.Job("1", "j1", 1, (1, 2, 3, 4, 5, 6), 6, retries=1)))
    bench.step(1, f.Started("1", bench.job("1").op, gpus(**bench.job("1").held)))
    bench.step(9, ended(bench, f.Outcome.EVICTED, lost_s=7.5))
    assert lost(bench.record("1")) == "7.5 s"


def test_what_is_heard_after_its_node_was_lost_counts(bench: Bench) -> None:
    op = bench.job("1").op
    lose_node(bench, 40)
    late = f.Ended("1", op, f.Outcome.SUSPENDED, lost_s=2.5, saved=True)
    for now_s in (41, 42):  # and once only
        bench.step(now_s, late)
        record = bench.record("1")
        assert (lost(record), record.suspends, record.own_saves) == ("2.5 s", 1, 1)
    assert record.loss is not None
    assert "suspended between two of its own checkpoints" in record.loss.why


def test_it_replaces_what_was_taken_to_be_lost() -> None:
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.step(0, f.Submitted(v.Job("1", "j1", 1, (1, 2, 3, 4, 5, 6), 6, retries=1)))
    op = bench.job("1").op
    bench.step(1, f.Started("1", op, gpus(**bench.job("1").held)))
    lose_node(bench, 31)
    assert lost(bench.record("1")) == "at most 30.0 s"
    bench.step(32, f.Ended("1", op, f.Outcome.SUSPENDED, lost_s=0.25, saved=True))
    record = bench.record("1")
    assert (lost(record), record.loss) == ("0.2 s", None)


def one_that_lost_its_node(bench: Bench) -> f.Ended:
    """A command that had completed when it lost its node, which is yet to be heard."""
    bench.goals = {"1": {"n": 3}}
    bench.step(0, f.Submitted(v.Job("1", "j1", 1, (1, 2, 3, 4, 5, 6), 6, retries=1)))
    bench.step(1, f.Submitted(v.Job("2", "j2", 1, (1,), 1, after=("1",))))
    op = bench.job("1").op
    bench.step(1, f.Started("1", op, gpus(**bench.job("1").held)))
    lose_node(bench, 31)
    assert lost(bench.record("1")) == "at most 30.0 s"
    return f.Ended("1", op, f.Outcome.COMPLETED, exit_code=0, lost_s=0.0, saved=True)


@pytest.mark.parametrize("says", ["of its checkpoints", "nothing"])
def test_what_completed_as_its_node_was_lost_is_complete(says: str) -> None:
    bench = Bench()
    late = one_that_lost_its_node(bench)
    if says == "nothing":
        late = f.Ended("1", late.op, f.Outcome.COMPLETED, exit_code=0)
    for now_s in (32, 33):  # and it is heard twice
        bench.step(now_s, late)
        job, record = bench.job("1"), bench.record("1")
        assert (job.state, job.op, job.held) == (v.State.COMPLETED, 0, {})
        assert (lost(record), record.loss, record.exit_code) == ("0", None, 0)
        assert job.since_s == 32
    bench.goals = {"2": {"n": 1}}
    assert bench.step(40, f.NodeJoined(v.Node("n", 6))) == ["start 2 n:1"]


def test_what_runs_again_has_lost_what_it_does_again() -> None:
    bench = Bench()
    late = one_that_lost_its_node(bench)
    bench.goals = {"1": {"n": 3}}
    assert bench.step(32, f.NodeJoined(v.Node("n", 6))) == ["start 1 n:3"]
    bench.step(33, late)
    assert bench.job("1").state is v.State.STARTING
    assert lost(bench.record("1")) == "at most 30.0 s"


def test_what_its_user_has_cancelled_since_stays_cancelled() -> None:
    bench = Bench()
    late = one_that_lost_its_node(bench)
    bench.step(32, f.Cancel("1"))
    bench.step(33, late)
    assert bench.job("1").state is v.State.CANCELLED


def test_an_end_of_another_attempt_counts_no_more(bench: Bench) -> None:
    op = bench.job("1").op
    lose_node(bench, 40)
    bench.step(41, f.Ended("1", op + 7, f.Outcome.SUSPENDED, lost_s=2.5, saved=True))
    assert lost(bench.record("1")) == "0"


def test_losses_are_counted_in_seconds(bench: Bench) -> None:
    bench.step(100, f.Hold("1"))
    bench.step(101, ended(bench, f.Outcome.SUSPENDED, lost_s=12.5))
    record = bench.record("1")
    assert lost(record) == "12.5 s"
    assert record.loss is not None
    assert loss_sentence(record.loss) == (
        "12.5 s of work are lost (suspended between two of its own checkpoints): "
        "it goes on from its own newest checkpoint"
    )
    bench.step(102, f.Release("1"))
    begin(bench, 102)
    bench.step(150, f.Hold("1"))
    bench.step(151, ended(bench, f.Outcome.SUSPENDED, lost_s=49.0, lost_exact=False))
    record = bench.record("1")
    assert lost(record) == "at most 61.5 s"
    assert record.loss is not None
    assert "at most 49.0 s" in loss_sentence(record.loss)
    assert "are not known" in loss_sentence(record.loss)


def test_one_of_which_nothing_could_be_saved_is_said_to_begin_anew(bench: Bench) -> None:
    bench.step(10, f.Hold("1"))
    bench.step(20, ended(bench, f.Outcome.SUSPENDED, lost_s=20.0, anew=True))
    record = bench.record("1")
    assert lost(record) == "20.0 s"
    assert record.loss is not None
    assert loss_sentence(record.loss) == (
        "20.0 s of work are lost (it was suspended, and nothing of it could be saved): "
        "it begins anew"
    )


def test_one_that_could_not_be_suspended_runs_on_and_is_asked_again(bench: Bench) -> None:
    bench.step(10, f.Hold("1"))
    op = bench.job("1").op
    bench.step(11, f.NotSaved("1", op, "CRIU: a socket", 1))
    assert bench.job("1").state is v.State.RUNNING
    assert "suspend 1" in bench.step(20)


def test_one_that_does_not_save_in_time_is_killed_and_is_not_asked_again(bench: Bench) -> None:
    bench.step(10, f.Hold("1"))
    assert bench.step(70) == ["kill 1"]
    bench.step(71, ended(bench, f.Outcome.FAILED, lost_s=71.0, why="told to end: SIGTERM"))
    job, record = bench.job("1"), bench.record("1")
    assert (job.state, job.suspendable, job.failures) == (v.State.PENDING, False, 0)
    assert record.lost_s == 71.0
    assert record.loss is not None


def test_a_failure_after_a_checkpoint_of_its_own_is_the_first_in_a_row(bench: Bench) -> None:
    for now_s, saved, state in [
        (10, True, v.State.PENDING),
        (40, True, v.State.PENDING),
        (70, False, v.State.FAILED),
    ]:
        bench.step(now_s, ended(bench, f.Outcome.FAILED, exit_code=1, lost_s=1.0, saved=saved))
        assert bench.job("1").state is state
        if not state.final:
            bench.step(now_s + 5)
            begin(bench, now_s + 6)


def test_nothing_is_lost_of_what_completes(bench: Bench) -> None:
    bench.step(10, ended(bench, f.Outcome.COMPLETED, lost_s=9.0))
    assert bench.job("1").state is v.State.COMPLETED
    assert lost(bench.record("1")) == "0"


def test_a_session_that_registers_counts(bench: Bench) -> None:
    job = bench.job("1")
    bench.step(1, f.Registered("1", job.op, 0, in_place=True))
    run = bench.job("1").run
    assert (run.registered, run.native, run.in_place) == (True, False, True)
    # What a manager that has just begun says again changes nothing.
    bench.step(2, f.Registered("1", job.op, 0, native=True))
    assert not bench.job("1").run.native
