"""What users ask for at any moment of a job's life: carried out, remembered, or refused with a
reason; and no work is lost for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.errors import InputError
from hpcext.core.reasons import reason
from hpcext.core.saved import Saved
from hpcext.manager.requests import AUTO, VERBS
from hpcext.policies import find_policy

POLICIES = ("marble", "exclusive", "fixed:gpus=2", "bftrainer", "equal_share", "tiresias", "easy")
ENDS = (
    f.Outcome.COMPLETED, f.Outcome.FAILED, f.Outcome.LOST, f.Outcome.EVICTED,
)  # fmt: skip


class Life:
    """One job on four GPUs beside another one, told by hand what happens to it."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.engine = Engine(find_policy(policy))
        self.now_s = 0.0
        self.step(f.NodeJoined(v.Node("n", 4)))

    @property
    def job(self) -> v.Job:
        return self.engine.world.jobs["1"]

    def step(self, *facts: f.Fact, after_s: float = 1.0) -> list[v.Kind]:
        """What the job is told to do; a manager that dies then knows the same."""
        self.now_s += after_s
        actions, _ = self.engine.step(self.now_s, facts)
        assert not self.engine.refusal
        saved = msgspec.json.decode(msgspec.json.encode(self.engine.world.save()), type=Saved)
        self.engine = Engine(find_policy(self.policy), saved)
        return [action.kind for action in actions if action.job == "1"]

    def submit(self) -> list[v.Kind]:
        sizes = (1, 2, 3, 4)
        other = v.Job("2", "other", 2, (1,), 1)
        return self.step(f.Submitted(v.Job("1", "job", 1, sizes, 3)), f.Submitted(other))

    def begin(self) -> list[v.Kind]:
        gpus = tuple(f"n:{number}" for number in range(v.total(self.job.held)))
        return self.step(f.Started("1", self.job.op, gpus))

    def register(self) -> list[v.Kind]:
        return self.step(f.Registered("1", self.job.op, self.job.step))

    def end(self, outcome: f.Outcome) -> list[v.Kind]:
        code = 1 if outcome is f.Outcome.FAILED else 0
        return self.step(f.Ended("1", self.job.op, outcome, exit_code=code))

    def ask(self, verb: str, gpus: Any = None) -> list[v.Kind]:
        """Ask as another terminal does; refused, it raises."""
        facts, text = VERBS[verb](self.engine.world, {"job": "job", "gpus": gpus})
        assert text
        return self.step(*facts)

    def until(self, moment: str) -> None:
        """Live until that."""
        self.submit()
        for each in ("begin", "register"):
            if moment == each:
                return
            if self.job.state is v.State.PENDING:
                return
            getattr(self, each)()


moments = st.sampled_from(["begin", "register", "later"])
policies = st.sampled_from(POLICIES)
often = settings(deadline=None, database=None, derandomize=True, max_examples=300)


@often
@given(policies, moments, st.lists(st.sampled_from(["suspend", "resume"]), max_size=3),
       st.sampled_from([*ENDS, None]))  # fmt: skip
def test_a_suspension_at_any_moment_is_carried_out_and_never_before_it_is_safe(
    policy: str, moment: str, more: list[str], ends: f.Outcome | None
) -> None:
    life = Life(policy)
    life.until(moment)
    wanted = False
    for verb in ["suspend", *more]:
        safe, was = not life.job.sessionless, life.job.state
        if (verb == "suspend") == wanted:
            with pytest.raises(InputError, match=r"already|not suspended"):
                life.ask(verb)
            continue
        wanted = verb == "suspend"
        told = life.ask(verb)
        assert v.Kind.KILL not in told
        if not safe:
            assert told == [], "it cannot save what it did"
            assert ("will be suspended" in reason(life.job)) == wanted
        else:
            assert (v.Kind.SUSPEND in told) == (wanted and was is v.State.RUNNING)
    if life.job.state is v.State.STARTING and ends is None:
        life.begin()
    if life.job.sessionless and ends is None:
        assert life.register() == [v.Kind.SUSPEND] * wanted
        assert life.job.on_hold == wanted
        return
    if not life.job.state.active:
        assert life.job.on_hold == wanted
        return
    if ends is not None:
        remembered = life.job.hold_deferred
        life.end(ends)
        assert life.job.state.final or life.job.on_hold == wanted
        # A wait after a failure is over: it may begin again, or is on hold.
        told = life.step(after_s=100.0)
        assert life.job.ready != (wanted or life.job.state.final)
        assert life.job.ready or told == []
        if life.job.state.final and remembered:
            assert "was to be suspended" in life.job.why


@often
@given(policies, moments, st.lists(st.sampled_from([1, 2, 3, 4, AUTO]), min_size=1, max_size=3))
@example("marble", "later", [1, AUTO])
def test_a_size_at_any_moment_is_given_as_soon_as_it_can_be(
    policy: str, moment: str, asked: list[Any]
) -> None:
    life = Life(policy)
    life.until(moment)
    before = dict(life.job.held)
    for gpus in asked:
        unsaved = life.job.sessionless
        told = life.ask("resize", gpus)
        assert v.Kind.KILL not in told
        if unsaved:
            assert told == []
            assert life.job.held == before
            pinned = gpus not in {AUTO, life.job.has}
            assert (f"gets {gpus} GPU" in reason(life.job)) == pinned
    last = asked[-1]
    assert life.job.sizes == ((1, 2, 3, 4) if last == AUTO else (last,))
    # It goes on, and ends with what it was given.
    for _ in range(6):
        if life.job.state is v.State.STARTING:
            life.begin()
        elif life.job.sessionless:
            life.register()
        elif life.job.state is v.State.STOPPING:
            life.end(f.Outcome.SUSPENDED)
        else:
            life.step(after_s=400.0)
    if last == 4:
        # Beside the other one so many are never free.
        assert reason(life.job)
        return
    assert life.job.state is v.State.RUNNING
    if last != AUTO:
        assert life.job.has == last
        assert "as asked" in life.job.why
    else:
        assert life.job.optimal == 3
        assert not life.job.stated
        assert "as asked" not in reason(life.job)


@often
@given(policies, moments, st.sampled_from(["suspend", "resize"]))
def test_a_cancellation_works_at_once_whatever_was_asked_before(
    policy: str, moment: str, before: str
) -> None:
    life = Life(policy)
    life.until(moment)
    life.ask(before, 2)
    waits = life.job.state is v.State.PENDING
    life.ask("cancel")
    assert life.job.cancelling or (waits and life.job.state is v.State.CANCELLED)
    assert "will be" not in reason(life.job)
    if life.job.state.active:
        life.end(f.Outcome.FAILED)
    assert (life.job.state, life.job.why) == (v.State.CANCELLED, "cancelled by its user")


def test_what_was_to_be_suspended_when_its_manager_drains_is_suspended_afterwards() -> None:
    life = Life("marble")
    life.until("register")
    life.ask("suspend")
    assert life.step(f.Drain(suspend=True)) == [v.Kind.SUSPEND]
    life.end(f.Outcome.SUSPENDED)
    assert (life.job.on_hold, life.job.hold_deferred) == (True, False)
    assert life.step(f.Began()) == []
    assert v.Kind.START in life.ask("resume")


def test_a_job_that_has_failed_may_run_again_if_its_user_wants_it() -> None:
    life = Life("marble")
    life.submit()
    life.begin()
    life.step(f.Registered("1", life.job.op, 0), f.Progressed("1", life.job.op, 30, 29))
    life.step(f.Submitted(v.Job("3", "next", 3, (1,), 1, after=("1",))))
    life.step(f.Ended("1", life.job.op, f.Outcome.FAILED, 127, why="no such program"))
    assert life.job.state is v.State.FAILED
    facts, said = VERBS["resume"](life.engine.world, {"job": "job"})
    assert said == "job had failed, and may run again, from step 29"
    assert life.step(*facts) == [v.Kind.START]
    assert (life.job.state, life.job.failures, life.job.attempt) == (v.State.STARTING, 0, 2)
    assert life.job.saved_step == 29
    assert life.engine.world.jobs["3"].state is v.State.CANCELLED
    # Asked twice, it is done once.
    assert life.step(*facts) == []
    life.begin()
    life.step(f.Ended("1", life.job.op, f.Outcome.COMPLETED, 0))
    assert life.job.state is v.State.COMPLETED
    with pytest.raises(InputError, match="already completed"):
        VERBS["resume"](life.engine.world, {"job": "job"})


def test_a_job_that_has_failed_does_not_get_back_a_name_that_another_one_has() -> None:
    life = Life("marble")
    life.submit()
    life.begin()
    life.step(f.Ended("1", life.job.op, f.Outcome.FAILED, 127))
    life.step(f.Submitted(v.Job("3", "job", 3, (1,), 1)))
    with pytest.raises(InputError, match="job 3 has its name now"):
        VERBS["resume"](life.engine.world, {"job": "1"})
