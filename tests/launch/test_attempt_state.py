"""What a supervisor decides, whatever happens to an attempt and in whatever order."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext import protocol
from hpcext.launch.attempt_events import (
    Effect,
    Event,
    Now,
    Phase,
    Suspension,
    heard,
)
from hpcext.launch.attempt_state import (
    KILL_PAUSE_MAX_S,
    LEFTOVER_GRACE_S,
    LOOK_S,
    OUTLIVED_S,
    REMIND_S,
    SAVED_GRACE_S,
    STILL_S,
    AttemptState,
)

GRACE_S, TIMEOUT_S = 5.0, 40.0
EPOCH = 1e9
WITH_DEADLINE = {Phase.ENDING, Phase.SAVING, Phase.EMPTYING}
NOTICES = {Event.NOTICE, Event.EARLY_NOTICE, Event.WARNING}
SCRIPT = {Effect.STOP_SCRIPT, Effect.CONTINUE_SCRIPT, Effect.KILL_SCRIPT}


class Found(NamedTuple):
    """What is found out about an attempt."""

    order: tuple[str, int] = ("", 1)
    registered: bool = False
    here: bool = False
    suspended: bool = False
    unsaved: bool = False
    declined: int = 0
    native: bool = False
    saves: bool = False
    may_go: bool = False
    answering: bool = False
    writing: bool = False
    still: bool = True
    imaged: bool = False


NOTHING = Found()
SESSION = Found(registered=True, here=True)
LEFT = Found(registered=True, suspended=True)
NATIVE = Found(registered=True, native=True, saves=True, answering=True)


class Step(NamedTuple):
    """A step of an attempt: what happened, and what was so before and after it."""

    event: Event
    found: Found
    at_s: float
    phase: tuple[Phase, Phase]
    suspension: tuple[Suspension, Suspension]
    deadline_s: tuple[float | None, float | None]
    kill_s: tuple[float | None, float | None]
    effects: list[Effect]


class Attempt:
    """An attempt to which things happen."""

    def __init__(self, *, several: bool = False) -> None:
        self.state = AttemptState(
            kill_grace_s=GRACE_S, suspend_timeout_s=TIMEOUT_S, several=several
        )
        self.now_s = 100.0

    def meets(self, event: Event, found: Found = NOTHING, *, after_s: float = 0.0) -> list[Effect]:
        """The effects of an event."""
        self.now_s += after_s
        return self.state.step(event, found, Now(self.now_s, EPOCH + self.now_s))

    def waits(self, found: Found = NOTHING) -> list[Effect]:
        """The effects of the next deadline, when it is there."""
        assert self.state.deadline_s is not None
        self.now_s = max(self.now_s, self.state.deadline_s)
        return self.meets(Event.DEADLINE, found)


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[Event | None, Found, float]]:
    """Events as a supervisor meets them; None: it sleeps until the next deadline.

    The command ends once, and whatever happens afterwards is followed by a look at what is left.
    """
    found = st.builds(
        Found,
        order=st.tuples(st.sampled_from(["", "suspend", "end", "nonsense"]), st.integers(0, 3)),
        registered=st.booleans(),
        here=st.booleans(),
        suspended=st.booleans(),
        unsaved=st.booleans(),
        declined=st.integers(0, 3),
        native=st.just(False),
    ).map(lambda each: each._replace(here=each.here and each.registered))
    happens = st.sampled_from([*(set(Event) - {Event.MAIN_ENDED, Event.REMAINDER}), None, None])
    pauses = st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.0, 11.0])
    one = st.tuples(happens, found, pauses)
    before: list[tuple[Event | None, Found, float]] = draw(st.lists(one, max_size=12))
    after = draw(st.lists(one, max_size=12))
    rest = [
        each
        for event, what, pause_s in [(Event.MAIN_ENDED, NOTHING, 0.0), *after]
        for each in ((event, what, pause_s), (Event.REMAINDER, what, 0.0))
    ]
    return [*before, *rest]


def told(
    story: Sequence[tuple[Event | None, Found, float]], *, several: bool = False
) -> Iterator[Step]:
    """The steps of an attempt that has this story."""
    attempt = Attempt(several=several)
    state = attempt.state
    for event, found, pause_s in story:
        before = state.phase, state.suspension, state.deadline_s, state.kill_s
        if event is not None:
            effects = attempt.meets(event, found, after_s=pause_s)
        elif state.deadline_s is not None:
            effects = attempt.waits(found)
        else:
            continue
        yield Step(
            event or Event.DEADLINE,
            found,
            attempt.now_s,
            (before[0], state.phase),
            (before[1], state.suspension),
            (before[2], state.deadline_s),
            (before[3], state.kill_s),
            effects,
        )


@given(stories(), st.booleans())
def test_phases_follow_each_other_as_in_the_figure(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    ways = {
        (Phase.RUNNING, Phase.ENDING),
        (Phase.RUNNING, Phase.REMAINING),
        (Phase.ENDING, Phase.SAVING),
        (Phase.REMAINING, Phase.SAVING),
        (Phase.REMAINING, Phase.EMPTYING),
        (Phase.SAVING, Phase.EMPTYING),
        (Phase.EMPTYING, Phase.REMAINING),
        *((phase, phase) for phase in Phase),
    }
    for step in told(story, several=several):
        assert step.phase in ways, step
        before, after = step.phase
        if before is not after and after in {Phase.ENDING, Phase.EMPTYING}:
            assert Effect.TERMINATE in step.effects, step


@given(stories(), st.booleans())
def test_phases_that_end_have_a_deadline_and_no_other_kills(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    for step in told(story, several=several):
        if step.phase[1] in WITH_DEADLINE:
            assert step.deadline_s[1] is not None, step
        if step.phase[1] is Phase.RUNNING and step.suspension[1] is Suspension.NONE:
            assert step.deadline_s[1] is None, step
        if Effect.KILL in step.effects:
            assert step.phase[0] in WITH_DEADLINE, step
            assert step.event is Event.DEADLINE


@given(stories(), st.booleans())
def test_processes_are_killed_after_their_grace_until_none_is_left(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    by_s = None
    for step in told(story, several=several):
        ends = step.event is Event.END or (
            step.found.order[0] == "end" and step.event in {Event.LOOK, Event.NEWS}
        )
        if by_s is not None and step.event is Event.DEADLINE and step.at_s >= by_s:
            assert Effect.KILL in step.effects, step
        if Effect.KILL in step.effects and by_s is not None:
            by_s = step.at_s + KILL_PAUSE_MAX_S
        elif ends and by_s is None:
            by_s = step.at_s + GRACE_S
        if by_s is not None:
            assert step.deadline_s[1] is not None, step
            assert step.deadline_s[1] <= by_s, step


@given(stories(), st.booleans())
def test_a_deadline_only_comes_nearer_unless_the_tree_is_spared(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    for step in told(story, several=several):
        before_s, after_s = step.kill_s
        if step.phase[0] not in WITH_DEADLINE or Effect.KILL in step.effects:
            continue
        assert before_s is not None
        if step.phase[1] is Phase.REMAINING:
            assert step.event in NOTICES, step
        else:
            assert after_s is not None, step
            # What is spared may have to go all the same, and gets its time anew.
            assert after_s <= before_s or step.event in NOTICES, step


@given(stories(), st.booleans())
def test_no_notice_undoes_an_order_to_end(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    ended = False
    for step in told(story, several=several):
        ended = ended or step.event is Event.END
        if ended:
            assert step.phase[1] in WITH_DEADLINE, step


@given(stories(), st.booleans())
def test_an_attempt_that_is_ending_is_neither_stopped_nor_suspended(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    for step in told(story, several=several):
        if step.phase[0] in WITH_DEADLINE and step.phase[1] in WITH_DEADLINE:
            assert not {Effect.STOP, Effect.TELL_SUSPENSION, Effect.STOP_SCRIPT} & {*step.effects}


@given(stories(), st.booleans())
def test_a_suspension_is_repeated_until_it_is_declined_or_the_attempt_ends(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    for step in told(story, several=several):
        if step.suspension[1] is Suspension.NONE or step.phase[1] is not Phase.RUNNING:
            continue
        assert step.deadline_s[1] is not None, step
        assert step.deadline_s[1] <= step.at_s + REMIND_S, step
        asked = step.suspension[0] is Suspension.NONE
        due = step.event in {Event.SUSPEND, Event.NEWS, Event.LEADER_STOPPED} or (
            step.event is Event.DEADLINE
            and step.deadline_s[0] is not None
            and step.at_s >= step.deadline_s[0]
        )
        if asked or due:
            assert Effect.TELL_SUSPENSION in step.effects, step


@given(stories(), st.booleans())
def test_only_a_suspension_that_is_not_required_can_be_declined(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    asked_of = 0
    for step in told(story, several=several):
        before, after = step.suspension
        assert before is not Suspension.REQUIRED or after is Suspension.REQUIRED, step
        if before is Suspension.REQUESTED and after is Suspension.NONE:
            assert step.found.declined > asked_of, step
            assert step.effects[0] is Effect.CONTINUE_SCRIPT
            assert Effect.TELL_SUSPENSION not in step.effects
        # Refused and ordered anew in one step.
        anew = step.found.declined > asked_of and Effect.TELL_SUSPENSION in step.effects
        if after is Suspension.REQUESTED and (before is Suspension.NONE or anew):
            asked_of = step.found.declined


@given(stories(), st.booleans())
def test_a_tree_is_emptied_after_its_command_unless_a_session_saves_or_the_agent_is_to_say(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    warned = noticed = False
    for step in told(story, several=several):
        warned = warned or step.event is Event.WARNING
        noticed = noticed or step.event in {Event.NOTICE, Event.EARLY_NOTICE}
        if step.event is not Event.REMAINDER:
            continue
        found = step.found
        if warned and not noticed and found.registered:
            assert step.phase[0] is step.phase[1]
        elif step.phase[1] is not Phase.EMPTYING:
            assert step.phase[1] is Phase.SAVING
            assert step.suspension[1] is not Suspension.NONE
            assert found.registered
            assert found.here or (several and not found.suspended)


@given(stories(), st.booleans())
def test_a_script_is_held_while_its_session_leaves_and_killed_once_that_has_saved(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    for step in told(story, several=several):
        if Effect.STOP_SCRIPT in step.effects:
            assert step.found.here, step
        if Effect.KILL_SCRIPT in step.effects:
            assert step.found.suspended or step.found.unsaved, step
        if Effect.TELL_SUSPENSION in step.effects:
            # What is held is held before the session hears of it.
            told_at = step.effects.index(Effect.TELL_SUSPENSION)
            assert step.effects[told_at - 1] in SCRIPT, step


@given(stories(), st.booleans())
def test_news_and_only_news_is_passed_on(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    passed = [Effect.HAND_NEWS_DOWN, Effect.TELL_MANAGER]
    for step in told(story, several=several):
        if step.event is Event.NEWS:
            assert step.effects[-2:] == passed
        else:
            assert not {*passed} & {*step.effects}


@given(stories(), st.booleans())
def test_the_same_events_have_the_same_effects(
    story: list[tuple[Event | None, Found, float]], several: bool
) -> None:
    assert list(told(story, several=several)) == list(told(story, several=several))


def test_what_is_killed_is_killed_again_after_pauses_that_grow() -> None:
    attempt = Attempt()
    assert attempt.meets(Event.END) == [Effect.TERMINATE]
    assert attempt.meets(Event.DEADLINE, after_s=GRACE_S - 0.1) == []
    at_s = []
    for _ in range(10):
        assert attempt.waits() == [Effect.KILL]
        at_s.append(attempt.now_s)
    pauses_s = [after - before for before, after in itertools.pairwise(at_s)]
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] == pytest.approx(KILL_PAUSE_MAX_S)
    assert attempt.state.end_requested_at == EPOCH + 100.0


def test_a_command_is_ended_that_outlives_its_session() -> None:
    attempt = Attempt()
    assert attempt.meets(Event.SUSPEND, SESSION) == [Effect.STOP_SCRIPT, Effect.TELL_SUSPENSION]
    effects = attempt.waits(LEFT)
    assert effects == [Effect.KILL_SCRIPT, Effect.TELL_SUSPENSION]
    since_s = attempt.now_s
    while effects != [Effect.TERMINATE]:
        assert attempt.state.phase is Phase.RUNNING
        effects = attempt.waits(LEFT)
    assert attempt.now_s - since_s == pytest.approx(OUTLIVED_S, abs=REMIND_S)
    assert attempt.state.phase is Phase.ENDING
    assert attempt.state.deadline_s == attempt.now_s + LEFTOVER_GRACE_S


def test_on_several_nodes_a_command_may_outlive_the_session_of_another_one() -> None:
    attempt = Attempt(several=True)
    attempt.meets(Event.SUSPEND, LEFT)
    for _ in range(30):
        assert attempt.waits(LEFT) == [Effect.KILL_SCRIPT, Effect.TELL_SUSPENSION]


def test_what_is_left_is_ended_soon_after_the_session_has_saved_on_another_node() -> None:
    """Nothing tells that it has: a helper that is deaf to SIGTERM must not keep the node."""
    attempt = Attempt(several=True)
    saving = Found(registered=True)
    attempt.meets(Event.SUSPEND, saving)
    attempt.meets(Event.MAIN_ENDED, saving)
    for _ in range(3):
        assert attempt.meets(Event.REMAINDER, saving) == []
        assert attempt.waits(saving) == []
        assert attempt.state.phase is Phase.SAVING
    assert attempt.now_s == pytest.approx(100.0 + 3 * REMIND_S)
    assert attempt.meets(Event.REMAINDER, LEFT) == [Effect.TERMINATE]
    assert attempt.state.deadline_s == attempt.now_s + LEFTOVER_GRACE_S


def test_a_session_whose_shell_died_of_the_notice_saves_itself() -> None:
    attempt = Attempt()
    attempt.meets(Event.MAIN_ENDED)
    # No notice has been heard yet.
    assert attempt.meets(Event.REMAINDER, SESSION) == [Effect.TERMINATE]
    assert attempt.meets(Event.NOTICE, SESSION) == [Effect.STOP_SCRIPT, Effect.TELL_SUSPENSION]
    assert attempt.meets(Event.REMAINDER, SESSION) == []
    assert attempt.state.deadline_s == attempt.now_s + TIMEOUT_S
    assert attempt.meets(Event.REMAINDER, LEFT) == [Effect.TERMINATE]
    assert attempt.state.deadline_s == attempt.now_s + LEFTOVER_GRACE_S


def test_an_order_is_obeyed_once_and_a_later_one_again() -> None:
    attempt = Attempt()
    first = SESSION._replace(order=("suspend", 1))
    assert Effect.TELL_SUSPENSION in attempt.meets(Event.LOOK, first)
    refused = first._replace(declined=1)
    assert attempt.waits(refused) == [Effect.CONTINUE_SCRIPT]
    assert attempt.state.suspend_requested_at is None
    assert attempt.meets(Event.LOOK, refused) == []
    second = refused._replace(order=("suspend", 2))
    assert Effect.TELL_SUSPENSION in attempt.meets(Event.LOOK, second)


def test_a_notice_ends_a_command_without_a_session_and_an_early_one_does_not() -> None:
    attempt = Attempt()
    assert attempt.meets(Event.EARLY_NOTICE) == []
    assert attempt.state.phase is Phase.RUNNING
    assert attempt.meets(Event.NOTICE, after_s=1.0) == [Effect.TERMINATE]
    assert attempt.state.notice_at == EPOCH + 100.0


def test_a_command_that_saves_by_its_own_means_is_asked_until_it_may_go() -> None:
    attempt = Attempt()
    assert attempt.meets(Event.SUSPEND, NATIVE) == [Effect.ASK_TO_SAVE]
    assert attempt.state.deadline_s == attempt.now_s + LOOK_S
    assert attempt.waits(NATIVE) == [Effect.ASK_TO_SAVE]
    saved = NATIVE._replace(may_go=True)
    assert attempt.waits(saved) == [Effect.STOP]
    assert attempt.state.deadline_s == attempt.now_s
    # What has not stopped yet may begin to write after a look.
    assert attempt.waits(saved._replace(still=False)) == [Effect.STOP]
    assert attempt.state.deadline_s == attempt.now_s + STILL_S
    assert attempt.waits(saved._replace(writing=True)) == [Effect.CONTINUE]
    assert attempt.waits(saved) == [Effect.STOP]
    assert not attempt.state.released
    assert attempt.waits(saved) == [Effect.TERMINATE]
    assert attempt.state.released
    assert attempt.state.deadline_s == attempt.now_s + SAVED_GRACE_S


def test_a_script_goes_on_when_what_was_asked_has_ended_and_not_by_saving() -> None:
    attempt = Attempt()
    attempt.meets(Event.SUSPEND, NATIVE)
    ended = NATIVE._replace(answering=False)
    assert attempt.waits(ended) == [Effect.CONTINUE_SCRIPT, Effect.ASK_TO_SAVE]
    # The whole of it is stopped, and ended, where that was how it saves.
    assert attempt.waits(ended._replace(may_go=True)) == [Effect.STOP]


def test_what_is_in_images_is_killed_at_once_and_does_nothing_more() -> None:
    attempt = Attempt()
    assert attempt.meets(Event.SUSPEND, NATIVE) == [Effect.ASK_TO_SAVE]
    imaged = NATIVE._replace(imaged=True)
    assert attempt.meets(Event.SUSPEND, imaged) == [Effect.KILL]
    assert attempt.state.released
    assert attempt.state.phase is Phase.ENDING
    assert attempt.state.deadline_s == attempt.now_s
    assert attempt.waits(imaged) == [Effect.KILL]


def test_a_command_that_cannot_be_saved_as_it_is_goes_on_unless_it_has_to_go() -> None:
    attempt = Attempt()
    attempt.meets(Event.SUSPEND, NATIVE)
    declined = NATIVE._replace(declined=1)
    assert attempt.meets(Event.SUSPEND, declined) == [Effect.TELL_MANAGER]
    assert attempt.state.suspension is Suspension.NONE
    assert attempt.state.deadline_s is None
    # Asked again, it is tried again.
    assert attempt.meets(Event.SUSPEND, declined) == [Effect.ASK_TO_SAVE]
    assert attempt.meets(Event.NOTICE, declined) == [Effect.ASK_TO_SAVE]
    assert attempt.waits(NATIVE._replace(declined=2)) == [Effect.ASK_TO_SAVE]
    assert attempt.state.suspension is Suspension.REQUIRED


def test_a_command_that_may_be_ended_has_the_usual_grace() -> None:
    attempt = Attempt()
    plain = NATIVE._replace(saves=False, may_go=True)
    assert attempt.meets(Event.NOTICE, plain) == [Effect.STOP]
    assert attempt.waits(plain) == [Effect.TERMINATE]
    assert attempt.state.deadline_s == attempt.now_s + GRACE_S


def test_an_end_while_a_command_is_looked_at_does_not_count_as_its_release() -> None:
    attempt = Attempt()
    attempt.meets(Event.SUSPEND, NATIVE._replace(may_go=True))
    assert attempt.meets(Event.END, NATIVE) == [Effect.TERMINATE]
    assert attempt.waits(NATIVE) == [Effect.KILL]
    assert not attempt.state.released


def test_what_was_asked_to_save_may_outlive_its_shell_and_nothing_else_may() -> None:
    attempt = Attempt()
    attempt.meets(Event.NOTICE, NATIVE)
    attempt.meets(Event.MAIN_ENDED, NATIVE)
    assert attempt.meets(Event.REMAINDER, NATIVE) == []
    assert attempt.waits(NATIVE) == [Effect.ASK_TO_SAVE]
    assert attempt.meets(Event.REMAINDER, NATIVE._replace(answering=False)) == [Effect.TERMINATE]
    assert attempt.state.phase is Phase.EMPTYING


def test_what_stops_and_continues_with_its_leader() -> None:
    attempt = Attempt()
    assert attempt.meets(Event.LEADER_STAYS_STOPPED) == [Effect.STOP]
    assert attempt.meets(Event.LEADER_CONTINUED) == [Effect.CONTINUE]
    assert attempt.meets(Event.LEADER_ENDED) == [Effect.TERMINATE]
    assert attempt.state.deadline_s == attempt.now_s + LEFTOVER_GRACE_S
    assert attempt.meets(Event.LEADER_STAYS_STOPPED) == []


@pytest.mark.parametrize(
    ("signum", "plain", "notices", "agent"),
    [
        (protocol.SUSPEND_SIGNAL, Event.SUSPEND, Event.SUSPEND, Event.WARNING),
        (protocol.NEWS_SIGNAL, Event.NEWS, Event.NEWS, Event.NEWS),
        (protocol.NOTICE_SIGNAL, None, Event.NOTICE, None),
        (signal.SIGTERM, Event.END, Event.NOTICE, Event.WARNING),
        (signal.SIGINT, None, Event.EARLY_NOTICE, Event.WARNING),
        (signal.SIGCHLD, None, None, None),
    ],
)
def test_a_signal_means_what_the_batch_system_means_by_it(
    signum: signal.Signals, plain: Event | None, notices: Event | None, agent: Event | None
) -> None:
    assert heard(signum, notices=False, agent=False) is plain
    assert heard(signum, notices=True, agent=False) is notices
    assert heard(signum, notices=False, agent=True) is agent


def test_stacks_are_written_once_for_each_order() -> None:
    state = AttemptState(kill_grace_s=GRACE_S, suspend_timeout_s=TIMEOUT_S, several=False)
    now = Now(0.0, EPOCH)
    for number in (1, 2):
        found = SESSION._replace(order=("stacks", number))
        assert Effect.WRITE_STACKS in state.step(Event.NEWS, found, now)
        assert Effect.WRITE_STACKS not in state.step(Event.NEWS, found, now)
    assert (state.phase, state.suspension) == (Phase.RUNNING, Suspension.NONE)
