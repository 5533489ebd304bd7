"""A job that cannot save: what it is to do, what becomes of it, and what is said of it."""

from __future__ import annotations

import msgspec
import pytest
from test_rescale import Bench, gpus

from hpcext.cli import view
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.reasons import reason
from hpcext.core.saved import Saved
from hpcext.core.saving import PAUSE_MAX_S, PAUSE_S, answer_by, loss_sentence, lost
from hpcext.core.world import World
from hpcext.manager.views.report import display_state

FULL = "disk full"


def says(bench: Bench, declined: int = 0, why: str = FULL, *, waits: bool = False) -> f.NotSaved:
    return f.NotSaved("1", bench.job("1").op, why, declined, waits)


def reached(bench: Bench, step: int, saved: int) -> f.Progressed:
    return f.Progressed("1", bench.job("1").op, step, saved)


@pytest.fixture
def bench() -> Bench:
    """Job 1 on three GPUs, at step 30, with a checkpoint of step 20."""
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.begin("1", in_place=False)
    bench.step(1, reached(bench, 30, 20))
    return bench


def test_a_suspension_that_cannot_be_saved_is_requested_again_later_and_later(bench: Bench) -> None:
    assert bench.step(10, f.Hold("1")) == ["suspend 1"]
    now_s, pause_s = 11.0, PAUSE_S
    for answer in range(1, 8):
        assert bench.step(now_s, says(bench, answer)) == []
        job = bench.job("1")
        assert (job.state, job.held, job.deadline_s) == (v.State.RUNNING, {"n": 3}, None)
        assert job.run.suspend_again_s == now_s + pause_s
        # Its reports and the same answer once more change nothing.
        assert bench.step(now_s + 1, reached(bench, 30 + answer, 20), says(bench, answer)) == []
        actions, wake_s = bench.engine.step(now_s + 2, [])
        assert (actions, wake_s) == ((), now_s + pause_s)
        now_s += pause_s
        assert bench.step(now_s) == ["suspend 1"]
        assert bench.job("1").deadline_s == now_s + 60
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
    assert bench.step(now_s + 1, bench.end("1")) == []
    assert (bench.job("1").state, bench.record("1").suspends) == (v.State.PENDING, 1)
    assert bench.record("1").loss is None


def test_a_withdrawn_request_wakes_no_job(bench: Bench) -> None:
    bench.step(10, f.Hold("1"))
    bench.step(11, says(bench, 1))
    assert bench.step(12, f.Release("1")) == []
    assert bench.engine.step(11 + PAUSE_S, []) == ((), None)
    assert bench.engine.step(100, []) == ((), None)


def test_a_second_request_suspends_it_at_once(bench: Bench) -> None:
    bench.step(10, f.Hold("1"))
    bench.step(11, says(bench, 1))
    assert bench.step(12, f.Hold("1")) == ["suspend 1"]


@pytest.mark.parametrize("must", ["the allocation ends", "its node is wanted back"])
def test_a_job_that_must_leave_is_suspended_again_until_its_deadline(
    bench: Bench, must: str
) -> None:
    wanted_back = f.NodeJoined(v.Node("n", 0))
    fact = wanted_back if "node" in must else f.Drain(suspend=True, must=True)
    bench.goals = {}
    assert bench.step(10, fact) == ["suspend 1"]
    assert bench.step(11, says(bench, 1)) == []
    assert bench.job("1").state is v.State.STOPPING
    assert bench.step(12.5) == []
    assert bench.step(13) == ["suspend 1"]
    assert bench.step(14, says(bench, 2)) == []
    assert bench.step(70, reached(bench, 41, 20)) == ["kill 1"]
    ended = msgspec.structs.replace(bench.end("1", f.Outcome.FAILED, -9), step=47)
    bench.step(71, ended)
    job, record = bench.job("1"), bench.record("1")
    # Another time it may be suspended again.
    assert (job.state, job.suspendable, job.failures) == (v.State.PENDING, True, 0)
    assert record.loss is not None
    said = "27 steps are lost (cannot save: disk full): it goes on from step 20"
    assert loss_sentence(record.loss) == said


def test_a_request_becomes_an_order_while_it_waits_to_be_made_again(bench: Bench) -> None:
    bench.step(10, f.Hold("1"))
    bench.step(11, says(bench, 1))
    assert bench.step(12, f.Drain(suspend=True, must=True)) == ["suspend 1"]


def test_a_drain_by_a_person_is_a_request(bench: Bench) -> None:
    assert bench.step(10, f.Drain(suspend=True)) == ["suspend 1"]
    bench.step(11, says(bench, 1))
    assert bench.job("1").state is v.State.RUNNING
    assert not bench.engine.finished


def test_what_is_said_of_it(bench: Bench) -> None:
    bench.step(10, says(bench))
    newest = "cannot save: disk full; newest checkpoint step 20; goes on training"
    assert reason(bench.job("1")) == f"{newest}; as told"
    bench.step(11, f.Hold("1"))
    bench.step(12, says(bench, 1))
    assert reason(bench.job("1")) == f"{newest}; to be suspended when it may have room"
    bench.step(13, f.Release("1"), reached(bench, 50, 40), says(bench, 1, ""))
    assert "cannot save" not in reason(bench.job("1"))
    bench.step(14, says(bench, 1, waits=True))
    ends = (
        "newest checkpoint step 40; its training is over, and it waits to write its last checkpoint"
    )
    assert ends in reason(bench.job("1"))


@pytest.mark.parametrize("answered", [False, True])
def test_a_change_of_size_that_was_interrupted_goes_on(answered: bool) -> None:
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.begin("1")
    assert bench.want(5, j1={"n": 5}) == ["rescale 1 n:5"]
    assert bench.step(6, f.Hold("1")) == ["suspend 1"]
    answer = bench.answer("1", *gpus(n=5), stall_s=0.25)
    if answered:
        bench.step(7, answer)
        assert bench.job("1").state is v.State.STOPPING
    bench.step(8, says(bench, 1))
    if not answered:
        assert (bench.job("1").state, bench.job("1").run.resize_to) == (v.State.RESCALING, {"n": 5})
        bench.step(9, answer)
    job = bench.job("1")
    assert (job.state, job.held, job.gpus) == (v.State.RUNNING, {"n": 5}, gpus(n=5))
    assert bench.step(8 + PAUSE_S) == ["suspend 1"]


@pytest.mark.parametrize(("step", "said"), [(47, "27"), (None, "at least 10")])
def test_lost_steps_are_counted_from_the_last_one_that_is_known(
    bench: Bench, step: int | None, said: str
) -> None:
    ended = msgspec.structs.replace(bench.end("1", f.Outcome.FAILED, -9), step=step)
    bench.step(10, ended)
    bench.step(20)
    bench.step(20, f.Started("1", bench.job("1").op, gpus(n=3)))
    bench.step(21, f.Registered("1", bench.job("1").op, 20))
    assert lost(bench.record("1")) == said
    segments = bench.record("1").segments
    assert segments[0].steps == int(said.rsplit(maxsplit=1)[-1]) + 20


def test_a_count_of_an_earlier_release_may_be_too_small() -> None:
    assert lost(v.Record()) == "0"
    assert lost(v.Record(lost_steps=68)) == "at least 68"


def test_it_is_all_kept_when_a_journal_is_compacted(bench: Bench) -> None:
    bench.step(10, f.Drain(suspend=True, must=True))
    bench.step(11, says(bench, 1))
    saved = bench.engine.world.save()
    again = msgspec.json.decode(msgspec.json.encode(saved), type=Saved)
    assert World.restore(again).save() == saved
    assert again.leaving


# The end of an allocation that is to be followed by another one.


@pytest.mark.parametrize(
    ("left_s", "waits_s"),
    [
        (None, 60.0),
        # What is left is more than it may take.
        (120.0, 60.0),
        (80.0, 60.0),
        (60.0, 45.0),
        (20.0, 15.0),
        # However late that is, it has a moment.
        (2.0, 5.0),
        (0.0, 5.0),
    ],
)
def test_what_does_not_answer_is_killed_before_the_end(
    left_s: float | None, waits_s: float
) -> None:
    assert answer_by(100.0, 60.0, None if left_s is None else 100.0 + left_s) == 100.0 + waits_s


def test_a_mute_job_does_not_keep_a_pilot_from_going_on(bench: Bench) -> None:
    """It is killed in time, twice if it has to be, and runs as any other in the next allocation."""
    assert bench.step(10, f.Drain(suspend=True, must=True, left_s=40.0)) == ["suspend 1"]
    assert bench.step(39) == []
    assert bench.step(40) == ["kill 1"]
    assert bench.step(47) == []
    assert bench.step(47.5) == ["kill 1"]
    assert bench.job("1").run.kills == 2
    bench.step(48, bench.end("1", f.Outcome.FAILED))
    job = bench.job("1")
    assert (job.state, job.suspendable, job.failures) == (v.State.PENDING, True, 0)
    assert bench.engine.finished
    assert bench.step(60, f.Began()) == ["start 1 n:3"]
    op = bench.job("1").op
    assert bench.step(61, f.Started("1", op, gpus(n=3)), f.Registered("1", op, 20)) == []
    # The end was that of the other allocation.
    assert bench.step(62, f.Hold("1")) == ["suspend 1"]
    assert bench.job("1").deadline_s == 62 + 60


def test_what_suspends_already_has_no_longer_than_the_others(bench: Bench) -> None:
    assert bench.step(10, f.Hold("1")) == ["suspend 1"]
    assert bench.job("1").deadline_s == 70
    assert bench.step(11, f.Drain(suspend=True)) == []
    assert bench.job("1").deadline_s == 70
    assert bench.step(12, f.Drain(suspend=True, must=True, left_s=20.0)) == []
    assert bench.job("1").deadline_s == 27


def test_the_next_manager_gives_what_it_asks_the_whole_time_again(bench: Bench) -> None:
    """The last one may have been killed before it asked, and the clock may have been set since."""
    assert bench.step(10, f.Hold("1")) == ["suspend 1"]
    assert bench.step(5000, f.Began()) == []
    assert bench.step(5059) == []
    assert bench.step(5060) == ["kill 1"]
    assert bench.step(9000, f.Began()) == []
    assert bench.step(9014) == []
    assert bench.step(9015) == ["kill 1"]


def test_a_drain_without_an_end_hurries_no_kill(bench: Bench) -> None:
    """However short the time is that the job may take to answer."""
    bench.goals["2"] = {"n": 2}
    bench.begin("2", suspend_timeout_s=5.0)
    op = bench.engine.world.jobs["2"].op
    bench.step(2, f.Hold("2"))
    assert bench.step(7) == ["kill 2"]
    assert bench.job("2").deadline_s == 22
    bench.step(8, f.Drain(suspend=True))
    assert (bench.job("2").op, bench.job("2").deadline_s) == (op, 22)


def test_a_checkpoint_that_is_gone_is_told_when_it_is_missed(bench: Bench) -> None:
    bench.step(5, f.Progressed("1", bench.job("1").op, 41, 41))
    bench.step(6, f.Hold("1"))
    bench.step(7, bench.end("1"))
    assert bench.record("1").loss is None
    bench.step(8, f.Release("1"))
    op = bench.job("1").op
    bench.step(9, f.Started("1", op, gpus(n=3)), f.Registered("1", op, 0, False))
    loss = bench.record("1").loss
    assert loss is not None
    said = (
        "41 steps are lost (it found no whole checkpoint of step 41): it goes on from the beginning"
    )
    assert loss_sentence(loss) == said


def test_what_is_lost_as_announced_is_told_once(bench: Bench) -> None:
    bench.step(5, f.Progressed("1", bench.job("1").op, 41, 20))
    bench.step(7, bench.end("1", f.Outcome.FAILED, 1))
    announced = bench.record("1").loss
    bench.step(60)
    op = bench.job("1").op
    bench.step(61, f.Started("1", op, gpus(n=3)), f.Registered("1", op, 20, False))
    assert announced is not None
    assert bench.record("1").loss == announced
    assert bench.record("1").lost_steps == 21


def test_a_job_without_a_session_that_is_killed_begins_anew_and_its_time_is_lost() -> None:
    bench = Bench()
    bench.goals = {"1": {"n": 3}}
    bench.step(0, f.Submitted(v.Job("1", "j1", 1, (3,), 3)))
    bench.step(0, f.Started("1", bench.job("1").op, gpus(n=3)))
    assert view.ending(bench.engine).splitlines()[1] == (
        "j1 has no session: if it has none until then it is killed, and begins anew"
    )
    bench.step(10, f.Drain(suspend=True))
    assert bench.step(70) == ["kill 1"]
    bench.step(71, bench.end("1", f.Outcome.FAILED, -15))
    record = bench.record("1")
    assert record.loss is not None
    assert loss_sentence(record.loss) == (
        "at most 71.0 s of work are lost (it has no session that could save it): it begins anew"
    )
    assert lost(record) == "at most 71.0 s"
    assert display_state(bench.job("1")) == "retrying"
