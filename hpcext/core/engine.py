"""The engine: facts in, actions out. It is synchronous and pure; its driver owns the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Set
from typing import TypeAlias

from msgspec.structs import replace

from hpcext.core import home
from hpcext.core.apply import apply
from hpcext.core.carrying_out import carry_out
from hpcext.core.decisions import PATIENCE_S, Question, brought_up_to_date, refusal
from hpcext.core.difference import SAME, Difference, difference
from hpcext.core.facts import Decided, Fact, Granted, Progressed
from hpcext.core.reach import LEFT, lacks, stranded, within
from hpcext.core.reconcile import reconcile
from hpcext.core.saved import Saved
from hpcext.core.silence import next_look_s
from hpcext.core.values import Action, Cause, Job, Kind, Snapshot, State, Target
from hpcext.core.world import World

Policy: TypeAlias = Callable[[Snapshot], Target]
"""What a scheduler is here: a pure function. Each paper's is one module of `policies`."""

ASKED = ~(Cause.PROGRESS | Cause.STARTED)
"""Causes for which the policy is asked. Neither progress nor a start frees or takes a GPU."""


def answer_of(policy: Policy, now: Snapshot) -> Target | str:
    """Ask a policy for its target, or for how it failed.

    One that fails costs a decision, never the manager and what it looks after.
    """
    try:
        return policy(now)
    except Exception as error:
        # It may call a function of the user's own.
        return f"failed with {type(error).__name__}: {error}"


class Engine:
    """The engine: applies facts, asks for decisions, and says what is safe to do.

    A decision is a fact (:class:`~hpcext.core.facts.Decided`). If a step asks for one, `wants`
    is the question; the driver of the engine has a policy answer it, and gives the engine
    :meth:`answer`. Until then facts are applied as ever, and what they ask for is done by the old
    goals, after :data:`~hpcext.core.decisions.PATIENCE_S` at most; once it is answered, it is asked
    again if something happened that matters. Only this class calls `reconcile` at run time: live,
    in the simulator, and when a journal is replayed.

    Parameters
    ----------
    policy : Policy, optional
        A policy that answers at once, in the step that asks: for a simulation, where no time passes
        between question and answer, and for a dry run.
    saved : Saved, optional
        The world to go on from.

    Attributes
    ----------
    world : World
    """

    def __init__(self, policy: Policy | None = None, saved: Saved | None = None) -> None:
        self._policy = policy
        self.world = World.restore(saved) if saved else World()
        self._question: Question | None = None
        self._mentioned: Set[str] = frozenset()  # by the last target
        self._wake_s: float | None = None
        self._until_s = -math.inf  # until then, progress alone needs no decision

    def step(self, now_s: float, facts: Iterable[Fact]) -> tuple[tuple[Action, ...], float | None]:
        """Take in what happened and say what to do.

        Parameters
        ----------
        now_s : float
            Never earlier than at the last step.
        facts : iterable of Fact
            In the order in which they became known; may be empty (time has passed).

        Returns
        -------
        actions : tuple of Action
            Each counts as handed to the executor.
        wake_s : float or None
            Step again at this instant at the latest, even if nothing happens.
        """
        world = self.world
        cause, others = Cause(0), False
        for fact in facts:
            cause |= apply(world, now_s, fact)
            others = others or not isinstance(fact, Progressed)
        if cause == Cause.PROGRESS and not others and now_s < self._until_s:
            # By far the most frequent step, and nothing below depends on progress.
            return (), self._wake_s
        cause |= world.refresh(now_s)
        if world.wake_s is not None and now_s >= world.wake_s:
            # Only once: a policy whose target is refused must not wake the driver again and again.
            world.wake_s = None
            cause |= Cause.TIME
        if cause & ASKED:
            self._ask(now_s, cause)
        actions = self._safe(now_s, cause)
        carried_out = tuple(carry_out(world, now_s, action) for action in actions)
        self._wake_s = self._next_wake_s(now_s)
        self._until_s = math.inf if self._wake_s is None else self._wake_s
        return carried_out, self._wake_s

    @property
    def wants(self) -> Question | None:
        """The question that the policy has yet to answer, if there is one.

        Its snapshot is taken when it is first read: right after the step that asked, by the driver
        that has it answered. In the replay of a journal, which has the answer, it is never taken.
        """
        question = self.world.open_question
        if question is None:
            return None
        if self._question is None or self._question.number != question.number:
            now = self.world.snapshot(question.at_s, Cause(question.cause))
            now = within(now) if self.world.fewer else now
            now = home.avoiding(now) if self.world.homes.jobs else now
            self._question = Question(question.number, now)
        return self._question

    def answer(self, said: Target | str, *, terse: bool = False) -> Decided:
        """Return the answer to the last question as a fact, which takes effect in the next step.

        Facts that came since the question may have made a part of a target impossible: that part
        is left out, and the policy is asked again. A target that does not fit for another reason
        is refused as a whole.

        Parameters
        ----------
        said : Target or str
            The policy's target, or why there is none.
        terse : bool
            Say of the memo only how it has changed, for a journal.

        Raises
        ------
        ValueError
            No question was put.
        """
        world, question = self.world, self.world.open_question
        if question is None:
            raise ValueError("no decision was requested")
        if isinstance(said, str):
            return Decided(question.number, failed=said)
        if question.again:
            said = brought_up_to_date(said, world.jobs, world.offered)
        if world.homes.jobs:
            said = home.without_strays(said, world.jobs, question.at_s)
        now = world.snapshot(question.at_s, Cause(question.cause), busy=True)
        if wrong := refusal(now, said, world.jobs):
            return Decided(question.number, failed=wrong)
        if said.wake_s is not None and said.wake_s <= question.at_s:
            said = replace(said, wake_s=None)
        memo = difference(world.memo, said.memo) if terse else Difference(said.memo)
        return self._changes(question.number, said, memo)

    def outstanding(self) -> tuple[Action, ...]:
        """Return every action that has not been answered, for an executor that starts afresh.

        A START comes for each active job, so that its attempt is adopted, or started if the
        manager died between the record and the action.
        """
        actions = []
        for job in self.world.unfinished():
            if not job.state.active:
                continue
            actions.append(Action(Kind.START, job.id, job.op, job.attempt, alloc=job.held))
            if job.run.kills:
                actions.append(
                    Action(Kind.KILL, job.id, job.op, job.attempt, force=job.run.kills > 1)
                )
            elif job.state is State.STOPPING:
                actions.append(Action(Kind.SUSPEND, job.id, job.op, job.attempt))
            elif job.state is State.RESCALING:
                again = Action(Kind.RESCALE, job.id, job.op, job.attempt, alloc=job.run.resize_to)
                actions.append(replace(again, resize=job.run.resize))
        return tuple(actions)

    @property
    def refusal(self) -> str:
        """Why the policy's last answer is not followed; empty if it is."""
        return self.world.undecided

    @property
    def finished(self) -> bool:
        """Whether no job runs and none will start without a further request."""
        queue = self.world.queue
        if any(job.state.active for job in queue.busy()):
            return False
        return self.world.draining or not len(queue)

    @property
    def stranded(self) -> bool:
        """Whether no job runs, and no waiting job can use what is left of the allocation."""
        world = self.world
        return world.fewer and stranded(world.unfinished(), world.offered)

    def _ask(self, now_s: float, cause: Cause) -> None:
        """Put a question to the policy, unless one is on its way, or there is nothing to decide."""
        world = self.world
        if world.suspending:
            # Nothing is granted any more. To stop is the engine's own: no policy delays it.
            apply(world, now_s, self._changes(0, Target(wake_s=world.wake_s), SAME))
            return
        if not world.ask(now_s, cause):
            return
        busy = world.queue.busy()
        world.unsettled = any(job.state in _COMING and not _settled(job) for job in busy)
        if self._policy is not None and (question := self.wants) is not None:
            apply(world, now_s, self.answer(answer_of(self._policy, question.now)))

    def _changes(self, number: int, target: Target, memo: Difference) -> Decided:
        """Return what a target that fits changes."""
        world = self.world
        # Of all others is known already why they wait.
        about = world.queue.unexplained() | self._mentioned
        about.update(job.id for job in world.queue.busy())
        self._mentioned = target.grants.keys() | target.waits.keys()
        fewer = world.fewer
        jobs: dict[str, Granted] = {}
        whys: dict[str, list[str]] = {}
        for job_id in about | self._mentioned:
            job = world.jobs.get(job_id)
            if job is None or job.state.final:
                continue
            grant = target.grants.get(job_id)
            why = grant.why if grant else self._waits(job, target, fewer=fewer)
            goal, role = (grant.alloc, grant.role) if grant else (None, None)
            if goal != job.goal or (role is not None and role is not job.role):
                jobs[job_id] = Granted(goal, role, why)
            elif why != job.why:
                whys.setdefault(why, []).append(job_id)
        told = {why: tuple(names) for why, names in whys.items()}
        return Decided(number, jobs, told, memo, target.wake_s)

    def _waits(self, job: Job, target: Target, *, fewer: bool) -> str:
        """Explain why a job gets nothing: the engine's reasons come before the policy's."""
        if job.cancelling:
            return job.verdict or "being cancelled"
        if job.on_hold:
            return "suspended by its user; hpcext resume lets it go on"
        if job.after:
            unmet = self.world.unmet(job)
            names = ", ".join(need if isinstance(need, str) else need.name for need in unmet)
            if names:
                return f"waits for {names} to complete"
        if not job.ready:
            # It waits after a failure, which `why` says already, unless the manager is draining.
            why = home.why(job) if job.id in self.world.homes.kept_back else job.why
            return "waits because the manager is draining" if self.world.draining else why
        if fewer:
            left = LEFT if self.world.shrunk else "left that may be used"
            if why := lacks(job, self.world.offered, left):
                return why
        return target.waits.get(job.id, "waits for its turn")

    def _safe(self, now_s: float, cause: Cause) -> tuple[Action, ...]:
        """Return the actions that are safe now and do not wait for an answer."""
        world = self.world
        if world.open_question is not None and self._waits_until_s(now_s) is None:
            world.shrink()
        actions = reconcile(world.snapshot(now_s, cause, busy=True))
        if self._waits_until_s(now_s) is None:
            return actions
        # What a cancellation or a deadline asks for follows from no goal.
        due = (action for action in actions if _overdue(world.jobs[action.job], now_s))
        return tuple(action for action in due if action.kind is not Kind.START)

    def _waits_until_s(self, now_s: float) -> float | None:
        """Return until when the last answer is waited for; None: no longer, or not at all.

        A quick answer may make an action for an old goal unnecessary: a job that shrinks to what is
        left of its nodes is not to be suspended first. A policy that was slow last time is not
        waited for.
        """
        question = self.world.open_question
        if question is None or self.world.slow or now_s >= question.at_s + PATIENCE_S:
            return None
        return question.at_s + PATIENCE_S

    def _next_wake_s(self, now_s: float) -> float | None:
        world = self.world
        queue_s = world.queue.wake_s(now_s, world.jobs)
        silent_s = next_look_s(world.queue.busy())
        times = (world.wake_s, queue_s, silent_s, self._waits_until_s(now_s))
        return min((each for each in times if each is not None), default=None)


def _overdue(job: Job, now_s: float) -> bool:
    return job.cancelling or (job.deadline_s is not None and now_s >= job.deadline_s)


_COMING = frozenset({State.STARTING, State.RUNNING, State.RESCALING})


def _settled(job: Job) -> bool:
    """Return whether what a job is to do next depends on nothing that it has yet to say."""
    return job.state is State.RUNNING and job.run.registered
