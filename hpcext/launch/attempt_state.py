"""The state of an attempt on one node: what an event asks its supervisor to do to the processes.

:class:`AttemptState` is pure: it gets an event, the instant, and access to the facts about the
attempt, and returns effects. :mod:`hpcext.launch.supervisor` waits for the events and carries
the effects out. The command and what it has started are in one of five phases::

                command runs                     command has ended

    no                                           a notice or warning that only now is heard
    deadline    RUNNING ──── MAIN_ENDED ───────► REMAINING ◄───────────────────────┐
                   │                              │      │                         │
                   │ told to end,      a session  │      │ no session              │
                   │ or outlives its   saves      │      │ saves itself            │
                   ▼ session           itself     ▼      ▼                         │
    deadline    ENDING ───── MAIN_ENDED ───────► SAVING ─────────► EMPTYING ───────┘
                                                        it has left,
                                                        or END

At the deadline processes are killed, again and again until none is left: a tree may fork while
it is killed. On the way to ENDING and EMPTYING every process gets SIGTERM; a deadline that is set
already can only come nearer by that.

A suspension is another matter, and may be requested in each phase::

    ┌── a notice, a stopped leader ─────────────────────────────────────────┐
    │                                                                       ▼
    NONE ─ SUSPEND, an order ─► REQUESTED ── a notice, a stopped leader ──► REQUIRED
      ▲                             │
      └── the session declines ─────┘

Without a deadline, a requested suspension is announced to all processes at once, at each NEWS, and
every ``REMIND_S``. After NONE the training goes on; REQUIRED accepts no refusal.

A command that saves by its own means is asked to save in its own way, and checked every
``LOOK_S``. Once it has saved, it is stopped and, unless it is just writing another checkpoint,
ended.

:class:`~hpcext.launch.attempt_events.Event` says what each event does.
"""

from __future__ import annotations

from hpcext.launch.attempt_events import Effect, Event, Facts, Now, Phase, Suspension

LEFTOVER_GRACE_S = 2.0
"""Seconds that processes left over by the command get to end by SIGTERM."""

REMIND_S = 1.0
"""Seconds between two signals of a suspension.

It is repeated because pending signals are not inherited by children that are forked later, such as
the workers of a torchrun that was still importing.
"""

SAVED_GRACE_S = 0.5
"""Seconds that a command gets after SIGTERM once it has saved: further work is lost anyway."""

STILL_S = 0.02
"""Seconds between two looks at whether all processes that are to stop have stopped."""

LOOK_S = 0.25
"""Seconds between two looks at whether a command has saved by its own means."""

OUTLIVED_S = 10.0
"""Seconds after its session has saved itself and left, at which a command is ended by force.

Apptainer 1.4 misses the end of its container when SIGTSTP comes to it again and again.
"""

KILL_PAUSE_S = 0.02
KILL_PAUSE_MAX_S = 1.0

_SUSPENDS = ("suspend", "leave")
"""Orders to suspend; after the second one the machine is left for good."""


class AttemptState:
    """The state of an attempt on one node.

    Parameters
    ----------
    kill_grace_s : float
        Seconds from SIGTERM to SIGKILL.
    suspend_timeout_s : float
        Seconds that a session may take to save itself.
    several : bool
        Whether the attempt is on several nodes. Its session is rank 0's, on any of them.

    Attributes
    ----------
    phase : Phase
    suspension : Suspension
    released : bool
        Whether a command that saves by its own means was ended because it had saved, or might be.
    suspend_requested_at, end_requested_at, notice_at : float or None
        Instants for the record, in seconds since the epoch.
    kill_s : float or None
        When all processes are killed, by the monotonic clock.
    """

    def __init__(self, *, kill_grace_s: float, suspend_timeout_s: float, several: bool) -> None:
        self._kill_grace_s = kill_grace_s
        self._suspend_timeout_s = suspend_timeout_s
        self._several = several
        self.phase = Phase.RUNNING
        self.suspension = Suspension.NONE
        self.released = False
        self.suspend_requested_at: float | None = None
        self.end_requested_at: float | None = None
        self.notice_at: float | None = None
        # Set in the phases that have a deadline, and in no other.
        self.kill_s: float | None = None
        self._warned_at: float | None = None
        # The manager's last order to suspend; the suspensions declined before the present one.
        self._ordered = 0
        # The last order to write stacks.
        self._stacks = 0
        self._declined = 0
        # Since when the session is seen to have saved itself and left.
        self._left_s: float | None = None
        self._remind_s: float | None = None
        # Whether all processes are stopped, to see whether one of them writes a checkpoint.
        self._held = False
        self._kill_pause_s = KILL_PAUSE_S

    @property
    def noticed_at(self) -> float | None:
        """When a notice or a warning of one was first heard, in seconds since the epoch."""
        return min((at for at in (self.notice_at, self._warned_at) if at), default=None)

    @property
    def told(self) -> bool:
        """Whether it was told to suspend or to end, by the manager or by a notice."""
        instants = (self.suspend_requested_at, self.end_requested_at, self.noticed_at)
        return any(at is not None for at in instants)

    @property
    def deadline_s(self) -> float | None:
        """When to tell :attr:`Event.DEADLINE`, by the monotonic clock; None for never."""
        return min((at for at in (self._remind_s, self.kill_s) if at is not None), default=None)

    def step(self, event: Event, facts: Facts, now: Now) -> list[Effect]:
        """Return the effects of an event.

        Parameters
        ----------
        event : Event
        facts : Facts
        now : Now
        """
        match event:
            case Event.SUSPEND:
                effects = self._suspend(facts, now)
            case Event.LOOK:
                effects = self._look(facts, now)
            case Event.NEWS:
                effects = self._news(facts, now)
            case Event.NOTICE:
                effects = self._notice(facts, now)
            case Event.EARLY_NOTICE:
                effects = self._early_notice(facts, now)
            case Event.WARNING:
                effects = self._warn(now)
            case Event.END:
                effects = self._end(now)
            case Event.DEADLINE:
                effects = self._overdue(facts, now)
            case Event.MAIN_ENDED:
                effects = self._main_ended()
            case Event.REMAINDER:
                effects = self._deal_with_remainder(facts, now)
            case _:
                effects = self._follow(event, facts, now)
        return effects

    # Suspension.

    def _suspend(self, facts: Facts, now: Now) -> list[Effect]:
        """Have the session save itself and leave, if it can."""
        if self.suspension is Suspension.NONE:
            self.suspension = Suspension.REQUESTED
            self.suspend_requested_at = now.at
            self._declined = facts.declined
            order, number = facts.order
            if order in _SUSPENDS:
                # It may have been sent as a signal, too.
                self._ordered = number
        return self._tell_suspension(facts, now)

    def _require(self, facts: Facts, now: Now) -> list[Effect]:
        """Have the session save itself and leave; it is asked again even if its disk is full."""
        if self.suspension is Suspension.NONE:
            self.suspend_requested_at = now.at
        self.suspension = Suspension.REQUIRED
        return self._tell_suspension(facts, now)

    def _tell_suspension(self, facts: Facts, now: Now) -> list[Effect]:
        if self.kill_s is not None:
            return []
        if self.suspension is Suspension.REQUESTED and facts.declined > self._declined:
            # The answer is that it cannot be saved, so it goes on training.
            self.suspension = Suspension.NONE
            self.suspend_requested_at = self._remind_s = None
            return [Effect.TELL_MANAGER if facts.native else Effect.CONTINUE_SCRIPT]
        if facts.native:
            return self._ask_to_save(facts, now)
        here = facts.here
        if not here and self._outlives(facts, now):
            return self._terminate(LEFTOVER_GRACE_S, now)
        self._remind_s = now.s + REMIND_S
        return [Effect.STOP_SCRIPT if here else self._release(facts), Effect.TELL_SUSPENSION]

    def _ask_to_save(self, facts: Facts, now: Now) -> list[Effect]:
        """Have a command save by its own means, and end it once it has."""
        if facts.imaged:
            # It has stopped, and what it did from here on would be done twice.
            self.released = True
            return self._cut_off(now)
        if self._held:
            if not facts.still:
                # On a busy machine a process runs on for a moment, and may begin to write in it.
                self._remind_s = now.s + STILL_S
                return [Effect.STOP]
            self._held = False
            if not facts.writing:
                self.released = True
                return self._terminate(SAVED_GRACE_S if facts.saves else self._kill_grace_s, now)
            self._remind_s = now.s + LOOK_S
            return [Effect.CONTINUE]
        # If what was asked has ended and not by saving, its script goes on. It is looked up before
        # the next fact: what ends in between is judged at the next look.
        script = [] if facts.answering else [Effect.CONTINUE_SCRIPT]
        if facts.may_go:
            # What is stopped cannot begin to write between the look and its end.
            self._held, self._remind_s = True, now.s
            return [Effect.STOP]
        self._remind_s = now.s + LOOK_S
        return [*script, Effect.ASK_TO_SAVE]

    def _release(self, facts: Facts) -> Effect:
        """Return what becomes of a script without a session.

        One whose session is gone amid its work, since the batch system has ended it, is not to run
        on, nor to count as done. The daemons of ``mpirun`` on several nodes are a step of Slurm's,
        which is sent SIGTERM, and take their ranks along.
        """
        cut_off = self.notice_at is not None and facts.unsaved
        return Effect.KILL_SCRIPT if facts.suspended or cut_off else Effect.CONTINUE_SCRIPT

    def _outlives(self, facts: Facts, now: Now) -> bool:
        """Return whether the command is still here long after its session has saved and left."""
        if self._several or not facts.suspended:
            return False
        self._left_s = self._left_s or now.s
        return now.s >= self._left_s + OUTLIVED_S

    # Orders of managers and notices of batch systems.

    def _look(self, facts: Facts, now: Now) -> list[Effect]:
        """Do what the manager has written down where its signals do not reach us."""
        order, number = facts.order
        ordered = order in _SUSPENDS and number > self._ordered
        if ordered and self.suspension is Suspension.NONE:
            return self._suspend(facts, now)
        if order == "end" and self.end_requested_at is None:
            return self._end(now)
        if order == "stacks" and number > self._stacks:
            self._stacks = number
            return [Effect.WRITE_STACKS]
        return []

    def _news(self, facts: Facts, now: Now) -> list[Effect]:
        """Find out what the news is, and pass it on."""
        effects: list[Effect] = []
        if self.suspension is not Suspension.NONE:
            # A session that has just registered does not know of it yet.
            effects += self._tell_suspension(facts, now)
        if self.suspension is not Suspension.NONE and facts.suspended:
            effects.append(Effect.KILL_SCRIPT)
        effects += self._look(facts, now)
        return [*effects, Effect.HAND_NEWS_DOWN, Effect.TELL_MANAGER]

    def _notice(self, facts: Facts, now: Now) -> list[Effect]:
        """Handle a notice: the batch system wants the node, and kills what is left after a grace.

        A session has time to save. A command without one is ended as the batch system would have
        done it.
        """
        effects = self._early_notice(facts, now)
        return effects if facts.registered else self._end(now)

    def _early_notice(self, facts: Facts, now: Now) -> list[Effect]:
        """Have a session save itself, as another notice will come."""
        self.notice_at = self.notice_at or now.at
        if not facts.registered:
            return []
        self._spare()
        return self._require(facts, now)

    def _warn(self, now: Now) -> list[Effect]:
        """Note that the batch system wants the node back, which the agent will tell in a moment.

        Ranks that change in place may have left by then.
        """
        self._warned_at = self._warned_at or now.at
        self._spare()
        return []

    def _spare(self) -> None:
        """Stop emptying the tree if only a shell died, of the signal that we have just got."""
        if self.phase is Phase.EMPTYING and self.end_requested_at is None:
            self.phase, self.kill_s = Phase.REMAINING, None

    def _follow(self, event: Event, facts: Facts, now: Now) -> list[Effect]:
        """Do what the batch system did to the leader of its job, which is in another session."""
        if event is Event.LEADER_STOPPED:
            return self._require(facts, now)
        if event is Event.LEADER_ENDED:
            return self._terminate(LEFTOVER_GRACE_S, now)
        if event is Event.LEADER_CONTINUED:
            return [Effect.CONTINUE]
        # Processes that are told to end must be able to.
        return [Effect.STOP] if self.kill_s is None else []

    # The end.

    def _end(self, now: Now) -> list[Effect]:
        """Tell all processes to end, and kill them after the grace."""
        self.end_requested_at = self.end_requested_at or now.at
        return self._terminate(self._kill_grace_s, now)

    def _cut_off(self, now: Now) -> list[Effect]:
        """Kill all processes at once."""
        self._terminate(0.0, now)
        return [Effect.KILL]

    def _terminate(self, grace_s: float, now: Now) -> list[Effect]:
        kill_s = now.s + grace_s
        self.kill_s = kill_s if self.kill_s is None else min(self.kill_s, kill_s)
        self._remind_s = None
        runs = self.phase in {Phase.RUNNING, Phase.ENDING}
        self.phase = Phase.ENDING if runs else Phase.EMPTYING
        return [Effect.TERMINATE]

    def _overdue(self, facts: Facts, now: Now) -> list[Effect]:
        """Kill, or tell the suspension again, if it is time to."""
        effects: list[Effect] = []
        if self.kill_s is not None and now.s >= self.kill_s:
            effects.append(Effect.KILL)
            self.kill_s = now.s + self._kill_pause_s
            self._kill_pause_s = min(2 * self._kill_pause_s, KILL_PAUSE_MAX_S)
        if self._remind_s is not None and now.s >= self._remind_s:
            effects += self._tell_suspension(facts, now)
        return effects

    def _main_ended(self) -> list[Effect]:
        """Note that the command has ended."""
        self.phase = Phase.REMAINING if self.phase is Phase.RUNNING else Phase.SAVING
        return []

    def _deal_with_remainder(self, facts: Facts, now: Now) -> list[Effect]:
        """Decide what becomes of processes that are left after the command has ended."""
        if self.phase is Phase.EMPTYING:
            return []
        if self._warned_at is not None and self.notice_at is None and facts.registered:
            return []
        if facts.native and facts.answering and self.suspension is not Suspension.NONE:
            # Its shell is dead, and what was asked to save may not have done so yet.
            return []
        if facts.native or self.suspension is Suspension.NONE or not self._saves(facts):
            return self._terminate(LEFTOVER_GRACE_S, now)
        if self.phase is Phase.REMAINING:
            # Its shell is dead, of the batch system's SIGTERM or by us; it is saving itself, or
            # has and is doing what its user wants done then.
            self.phase = Phase.SAVING
            self.kill_s = now.s + self._suspend_timeout_s
        # Nothing tells that a session has saved itself on another node: it has to be looked for.
        self._remind_s = None if facts.here else now.s + REMIND_S
        return []

    def _saves(self, facts: Facts) -> bool:
        """Return whether a session is saving itself, here or on another node."""
        return facts.registered and (facts.here or (self._several and not facts.suspended))
