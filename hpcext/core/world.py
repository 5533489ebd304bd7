"""What is true: facts applied one by one to jobs, nodes and their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Union

import msgspec
from msgspec.structs import replace

from hpcext.core import rescaling, saving, wishes
from hpcext.core.aftermath import after
from hpcext.core.changes import Changes
from hpcext.core.decisions import PATIENCE_S, Asked, left_of
from hpcext.core.difference import apply as changed
from hpcext.core.estimate import Observed
from hpcext.core.facts import (
    Began,
    Cancel,
    Cleared,
    Decided,
    Drain,
    Ended,
    Fact,
    Hold,
    NodeJoined,
    NodeLost,
    Noted,
    NotSaved,
    Outcome,
    Progressed,
    Registered,
    Release,
    Rescaled,
    Resize,
    Started,
    Submitted,
)
from hpcext.core.history import records
from hpcext.core.history.fragments import Fragments, Seen
from hpcext.core.queue import Queue
from hpcext.core.trials import Trial, Trials
from hpcext.core.values import (
    TRANSITIONS,
    Action,
    Cause,
    Job,
    Kind,
    Node,
    Record,
    Snapshot,
    State,
    total,
)

KILL_GRACE_S = 15.0
"""A job that was told to die gets so long before the next, harder try."""

LOST_SOME = "goes on with what is left of its nodes until the policy has decided"

NOTHING = Cause(0)

F = TypeVar("F", bound=Fact)

_OfAttempt = Union[Started, Registered, Rescaled, Progressed, Noted, NotSaved, Ended]  # noqa: UP007


class Saved(msgspec.Struct, frozen=True):
    """All of a world as one value, for a compacted journal."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    records: dict[str, Record]
    draining: bool
    stopping: bool
    next_op: int
    memo: dict[str, Any] | None
    wake_s: float | None
    unsettled: bool = False
    fragments: Fragments = Fragments()
    leaving: bool = False
    ends_s: float | None = None
    shrunk: bool = False
    questions: int = 0
    asked: Asked | None = None
    undecided: str = ""
    slow: bool = False


class World:
    """The facts so far, as values.

    Attributes
    ----------
    nodes : dict of str to Node
    jobs : dict of str to Job
        Every job ever submitted, by id.
    records : dict of str to Record
    draining, stopping : bool
        Nothing new is started; and what runs is suspended too.
    leaving : bool
        What runs has to go, even what cannot save.
    ends_s : float or None
        By when, where something is to be done after that.
    shrunk : bool
        Of a fixed set of nodes some are gone.
    unsettled : bool
        At the last decision some job could not be given another size, since it was changing its
        size or had no session yet. If none was, it is no news that one has what it was to have.
    questions : int
        How many have been put to the policy.
    asked : Asked or None
        The one that it has yet to answer.
    undecided : str
        Why its last answer is not followed; empty if it is.
    slow : bool
        That it took longer than anybody waits for one.
    queue : Queue
        The unfinished jobs.
    changed : Changes
        Which jobs have other values, or other records, than before.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.records: dict[str, Record] = {}
        self.draining = False
        self.stopping = self.leaving = False
        self.ends_s: float | None = None
        self.shrunk = False
        self.next_op = 1
        self.memo: dict[str, Any] | None = None
        self.wake_s: float | None = None
        self.unsettled = False
        self.questions = 0
        self.asked: Asked | None = None
        self.undecided = ""
        self.slow = False
        self.queue = Queue()
        self.changed = Changes()
        self._trials = Trials()
        self._orphaned: set[str] = set()  # jobs that may run where a node was lost
        self.seen = Seen()
        self._nodes: dict[str, Node] | None = None  # a copy, until they change
        self._dependents: dict[str, list[str]] = {}
        self._apply: dict[type, Callable[[float, Any], Cause]] = {
            NodeJoined: self._node_joined,
            NodeLost: self._node_lost,
            Cleared: self._cleared,
            Submitted: self._submitted,
            Started: self._started,
            Registered: self._registered,
            Rescaled: self._rescaled,
            Progressed: self._progressed,
            NotSaved: self._not_saved,
            Noted: self._noted,
            Ended: self._ended,
            Hold: self._hold,
            Release: self._release,
            Resize: self._resize,
            Cancel: self._cancel,
            Drain: self._drain,
            Began: self._began,
            Decided: self._decided,
        }

    # What others ask of it.

    def apply(self, now_s: float, fact: Fact) -> Cause:
        """Make a fact true; says what a policy should hear of it.

        A fact about an attempt that is no longer the job's current one is stale and changes
        nothing: without this, a late acknowledgement would free GPUs that are in use again.
        """
        return self._apply[type(fact)](now_s, fact)

    def refresh(self, now_s: float) -> Cause:
        """Bring `ready` up to date for every unfinished job."""
        changed = False
        for job_id in self.queue.unchecked(now_s):
            job = self.jobs.get(job_id)
            if job is None or job.state.final:
                continue
            ready = self._ready(job, now_s)
            if ready != job.ready:
                self.put(replace(job, ready=ready))
                changed = True
        return Cause.TIME if changed else NOTHING

    def unfinished(self) -> tuple[Job, ...]:
        """Jobs that are not final, by priority and order."""
        return self.queue.jobs()

    def snapshot(self, now_s: float, cause: Cause, *, busy: bool = False) -> Snapshot:
        """What is true now, as one value; if only `busy` ones count, of jobs that hold something
        or are to have something."""
        few = self.queue.busy()
        jobs = few if busy else self.queue.jobs()
        return Snapshot(
            now_s, self.offered, jobs, cause, self.memo, few, self.seen.fragments, self.leaving
        )

    @property
    def offered(self) -> Mapping[str, Node]:
        """The nodes that offer something, by name; another mapping once they are others."""
        if self._nodes is None:
            # One that offers nothing more is only waited for.
            self._nodes = {name: node for name, node in self.nodes.items() if node.gpus}
        return self._nodes

    def ask(self, now_s: float, cause: Cause) -> bool:
        """Note that a decision is wanted; False: another one is awaited first."""
        if self.asked is not None:
            self.asked = replace(self.asked, again=self.asked.again | cause.value)
            return False
        self.questions += 1
        self.asked = Asked(self.questions, now_s, cause.value)
        return True

    def shrink(self) -> None:
        """Have elastic jobs that lose nodes go on with the others, where no policy has decided."""
        for job in self.queue.busy():
            if job.state is State.RUNNING and (rest := left_of(job, self.offered)):
                self._set(job, goal=rest, why=LOST_SOME)

    def put(self, job: Job) -> None:
        """Have a job's new value."""
        self.jobs[job.id] = job
        self.changed.note(job.id)
        if job.trial is not None:
            lost = job.cancelling or job.state in {State.FAILED, State.CANCELLED}
            self._trials.note(job.id, job.trial, left=not lost or job.state is State.COMPLETED)
        if not job.state.final:
            self.queue.put(job)

    def carry_out(self, now_s: float, action: Action) -> Action:
        """Note that an action goes to the executor; numbers it if it is a start."""
        job = self.jobs[action.job]
        if action.kind is Kind.START:
            action = replace(action, op=self.next_op)
            self.next_op += 1
            self._enter(
                job, State.STARTING, now_s, held=action.alloc, op=action.op, gpus=(),
                attempt=action.attempt, registered=False, in_place=False, elastic=False, resize=0,
                maimed=False, kills=0, declined=0, deadline_s=None,
                moves=job.moves + (job.attempt > 0),
                most_gpus=max(job.most_gpus, total(action.alloc)),
            )  # fmt: skip
        elif action.kind is Kind.RESCALE:
            changes = rescaling.asked(job, action)
            changes["most_gpus"] = max(job.most_gpus, total(action.alloc))
            changes["moves"] = job.moves + 1
            deadline_s = now_s + job.suspend_timeout_s
            self._enter(job, State.RESCALING, now_s, deadline_s=deadline_s, **changes)
        elif action.kind is Kind.SUSPEND:
            changes = {"ask_s": None, "asked": {}, "interrupted": job.asked or job.interrupted}
            if job.state is not State.STOPPING:
                changes["deadline_s"] = self._answer_by(now_s, job)
            if job.deadline_s is not None and now_s >= job.deadline_s:
                late = f"it did not answer within {job.suspend_timeout_s:g} s"
                changes["why"] = rescaling.failed(job, late)
            self._enter(job, State.STOPPING, now_s, **changes)
        else:
            kills = job.kills + 1
            deadline_s = saving.answer_by(now_s, KILL_GRACE_S, self.ends_s)
            self._enter(job, State.STOPPING, now_s, kills=kills, deadline_s=deadline_s, asked={})
        return action

    def forget(self, job_id: str) -> None:
        """Know nothing more of a job that has ended, if no other one waits for it.

        A manager keeps all jobs; a simulated year has too many of them.
        """
        job = self.jobs[job_id]
        waiting = (self.jobs[name] for name in self._dependents.get(job_id, ()))
        if job.state.final and all(each.state.final for each in waiting):
            del self.jobs[job_id], self.records[job_id]
            self.changed.forget(job_id)
            self._dependents.pop(job_id, None)
            for need in job.after:
                if job_id in self._dependents.get(need, ()):
                    self._dependents[need].remove(job_id)

    def save(self) -> Saved:
        """All of it as one value."""
        return Saved(
            nodes=tuple(self.nodes.values()),
            jobs=tuple(self.jobs.values()),
            records=self.records,
            draining=self.draining,
            stopping=self.stopping,
            next_op=self.next_op,
            memo=self.memo,
            wake_s=self.wake_s,
            unsettled=self.unsettled,
            fragments=self.seen.fragments,
            leaving=self.leaving,
            ends_s=self.ends_s,
            shrunk=self.shrunk,
            questions=self.questions,
            asked=self.asked,
            undecided=self.undecided,
            slow=self.slow,
        )

    @classmethod
    def restore(cls, saved: Saved) -> World:
        """The world that :meth:`save` was called on."""
        world = cls()
        world.nodes = {node.name: node for node in saved.nodes}
        world.records = dict(saved.records)
        world._orphaned = {name for name, each in saved.records.items() if each.orphans}
        world.draining, world.stopping = saved.draining, saved.stopping
        world.leaving, world.ends_s = saved.leaving, saved.ends_s
        world.shrunk = saved.shrunk
        world.next_op = saved.next_op
        world.memo, world.wake_s = saved.memo, saved.wake_s
        world.unsettled = saved.unsettled
        world.questions, world.asked = saved.questions, saved.asked
        world.undecided, world.slow = saved.undecided, saved.slow
        world.seen = Seen(saved.fragments)
        for job in saved.jobs:
            world._add(job)
        return world

    # Nodes.

    def _node_joined(self, now_s: float, fact: NodeJoined) -> Cause:
        node, before = fact.node, self.nodes.get(fact.node.name)
        if node.since_s is None:
            node = replace(node, since_s=before.since_s if before else now_s)
        if before == node:
            return NOTHING
        self.nodes[node.name] = node
        self._nodes = None
        for job_id in self._orphaned:
            # The batch system has ended what was left there before it gave the node again.
            self.records[job_id] = records.cleared(self.records[job_id], node.name)
        if before is not None and node.gpus < before.gpus:
            # Of a node that is not there nobody has a goal.
            self._refit(node)
        return Cause.NODES

    def _refit(self, node: Node) -> None:
        """Take back what was granted on a node that came again with fewer GPUs."""
        left = node.gpus
        for job in self.queue.busy():
            granted = job.goal.get(node.name, 0) if job.goal else 0
            if granted > left:
                self._set(job, goal=None)
            else:
                left -= granted

    def _node_lost(self, now_s: float, fact: NodeLost) -> Cause:
        node = self.nodes.pop(fact.name, None)
        if fact.gone and not self.shrunk:
            self.shrunk = True
            self.queue.touch_all()
        if node is None:
            return NOTHING
        early_s = node.ends_s - now_s if node.ends_s is not None and node.planned else None
        age_s = now_s - (node.since_s or 0.0)
        self.seen.left(age_s, early_s=early_s, ended=not fact.unneeded)
        self._nodes = None
        for job in self.queue.busy():
            if fact.gone and fact.name in job.held:
                # Nobody can look there, or end anything.
                record = self.records[job.id]
                self.records[job.id] = records.left_behind(record, fact.name, job.attempt)
                self._orphaned.add(job.id)
            if fact.name in job.held or (job.goal and fact.name in job.goal):
                self._forget_node(job, fact.name, now_s)
        return Cause.NODES

    def _forget_node(self, job: Job, name: str, now_s: float) -> None:
        if name in job.held and (changes := rescaling.bereft(job, name)):
            self._enter(job, State.RUNNING, now_s, **changes)
            return
        if job.goal and name in job.goal:
            job = self._set(job, goal=None)
        if name not in job.held:
            return
        held = {node: gpus for node, gpus in job.held.items() if node != name}
        job = self._set(job, maimed=True)
        if held:
            # Its other nodes still run: kill there at once, nobody can answer a suspension.
            self._enter(job, State.STOPPING, now_s, held=held, deadline_s=now_s)
        else:
            self._close(job, now_s, Ended(job.id, job.op, Outcome.LOST, why="its node was lost"))

    def _cleared(self, now_s: float, fact: Cleared) -> Cause:
        if fact.job in self.records:
            record = self.records[fact.job]
            self.records[fact.job] = records.cleared(record, fact.node, fact.attempt)
        return NOTHING

    # Jobs.

    def _submitted(self, now_s: float, fact: Submitted) -> Cause:
        if fact.job.id in self.jobs:
            return NOTHING
        job = replace(fact.job, submitted_s=now_s, since_s=now_s)
        self._add(job)
        self.records[job.id] = Record()
        self._touch_dependents(job.id)
        needs = (self.jobs[need] for need in job.after if need in self.jobs)
        gone = (need for need in needs if need.state.final and not need.done)
        if need := next(gone, None):
            self._finish(job, now_s, State.CANCELLED, why=_gone(need))
        return Cause.SUBMITTED

    def _started(self, now_s: float, fact: Started) -> Cause:
        job = self._current(fact)
        if job is None or job.gpus:
            return NOTHING
        job = self._set(job, gpus=fact.gpus)
        if job.state is State.STARTING:
            job = self._enter(job, State.RUNNING, now_s)
        self.records[job.id] = records.started(self.records[job.id], now_s, job)
        return Cause.STARTED

    def _registered(self, now_s: float, fact: Registered) -> Cause:
        job = self._current(fact)
        if job is None:
            return NOTHING
        if job.registered:
            # That it can change its size may become clear later; not once it has failed to.
            if fact.in_place and not job.in_place and not job.resize:
                self._set(job, in_place=True, elastic=fact.elastic)
            return NOTHING
        self.records[job.id] = records.registered(self.records[job.id], job, fact)
        at: dict[str, Any] = {"step": fact.step, "saved_step": fact.step}
        at |= {"in_place": fact.in_place, "elastic": fact.elastic}
        self._set(job, registered=True, **at, **wishes.registered(job))
        asked = Cause.REQUEST if job.to_hold else NOTHING
        return asked | (Cause.REGISTERED if self.unsettled else NOTHING)

    def _rescaled(self, now_s: float, fact: Rescaled) -> Cause:
        job = self._current(fact)
        if job is not None and job.interrupted and job.late is None:
            # It counts if the suspension that was asked for meanwhile is declined.
            self._set(job, late=rescaling.late(job, fact))
        changes = rescaling.answered(job, fact) if job else None
        if job is None or changes is None:
            return NOTHING
        job = self._enter(job, State.RUNNING, now_s, **changes)
        record = self.records[job.id]
        # Not what it had: of that it may have lost a node in the meantime.
        if not record.segments or job.gpus != record.segments[-1].gpus:
            self.records[job.id] = records.rescaled(record, now_s, job, fact)
        return NOTHING if fact.ok and not self.unsettled else Cause.RESCALED

    def _progressed(self, now_s: float, fact: Progressed) -> Cause:
        job = self._current(fact)
        if job is None:
            return NOTHING
        loss = fact.metrics.get("loss")
        estimate = job.estimate.reached(fact.step, fact.done, loss, fact.goodput)
        # A job is on GPUs of one kind.
        node = next((self.nodes[name] for name in job.held if name in self.nodes), None)
        # How fast it is on a seat says how fast its neighbours are.
        alone = node is None or not node.seats
        if fact.rate and job.state is State.RUNNING and alone:
            batch, kind = job.estimate.batch(fact.step, fact.done), node.kind if node else ""
            seen = Observed(total(job.held), len(job.held), fact.rate, batch, kind=kind)
            estimate = estimate.saw(now_s, job.since_s, seen)
        before = self.records[job.id]
        self.records[job.id] = record = records.progressed(before, fact, job.trial)
        if fact.resume_s and (cost := records.resizing_cost(record)):
            estimate = estimate.paid(*cost)
        job = self._set(job, step=fact.step, saved_step=fact.saved_step, estimate=estimate)
        if job.trial is None:
            return Cause.PROGRESS
        new = {rung: had for rung, had in record.rungs.items() if rung not in before.rungs}
        return Cause.PROGRESS | self._judge(job, job.trial, new)

    def _not_saved(self, now_s: float, fact: NotSaved) -> Cause:
        job = self._current(fact)
        if job is None:
            return NOTHING
        must = saving.must_go(job, self.nodes, leaving=self.leaving)
        changes = saving.heard(job, now_s, fact, must=must)
        goes_on = job.state is State.STOPPING and fact.declined > job.declined and not job.kills
        if not goes_on or must:
            self._set(job, **changes)
            return NOTHING
        if not job.interrupted:
            self._enter(job, State.RUNNING, now_s, deadline_s=None, **changes)
            return Cause.RESCALED
        changes.update(asked=job.interrupted, interrupted={}, late=None)
        deadline_s = now_s + job.suspend_timeout_s
        self._enter(job, State.RESCALING, now_s, deadline_s=deadline_s, **changes)
        if job.late is not None:
            self._rescaled(now_s, Rescaled(job.id, job.op, job.resize, *job.late))
        return Cause.RESCALED

    def _noted(self, now_s: float, fact: Noted) -> Cause:
        job = self._current(fact)
        if job is not None:
            self.records[job.id] = records.noted(self.records[job.id], fact)
            self.changed.note(job.id)
        return NOTHING

    def _judge(self, job: Job, trial: Trial, rungs: Mapping[int, float | None]) -> Cause:
        """Compare a trial with the others at rungs that it came to; end it where it is behind."""
        for rung, value in rungs.items():
            self._trials.place(trial, rung, value)
        verdicts = (self._trials.verdict(job.id, trial, *reached) for reached in rungs.items())
        verdict = next(filter(None, verdicts), "")
        if job.cancelling or not verdict:
            return NOTHING
        self._set(job, cancelling=True, goal=None, verdict=verdict)
        return Cause.REQUEST

    def _ended(self, now_s: float, fact: Ended) -> Cause:
        job = self._current(fact)
        if job is None:
            return NOTHING
        self._close(job, now_s, fact)
        return Cause.ENDED

    # Requests.

    def _hold(self, now_s: float, fact: Hold) -> Cause:
        # Asked anew it tries anew, even where it has just said that it cannot save.
        return self._request(fact, lambda job: {**wishes.held(job), "ask_s": None})

    def _release(self, now_s: float, fact: Release) -> Cause:
        return self._request(fact, lambda _job: wishes.RELEASED)

    def _resize(self, now_s: float, fact: Resize) -> Cause:
        return self._request(fact, lambda job: wishes.resized(job, fact))

    def _cancel(self, now_s: float, fact: Cancel) -> Cause:
        job = self.jobs.get(fact.job)
        if job is not None and job.state is State.PENDING:
            self._finish(job, now_s, State.CANCELLED, why="cancelled by its user")
            return Cause.REQUEST
        return self._request(fact, lambda _job: wishes.CANCELLED)

    def _drain(self, now_s: float, fact: Drain) -> Cause:
        self.draining = True
        self.queue.touch_all()
        if fact.stop:
            self.stopping, self.leaving = True, self.leaving or fact.must
            self.asked = None  # whatever the answer would be, nothing is granted any more
            if fact.left_s is not None:
                self.ends_s = now_s + fact.left_s
            for job in self.queue.busy():
                changes: dict[str, Any] = {"goal": None}
                if job.state is State.STOPPING and job.deadline_s is not None:
                    # What was asked before, or told to die, has no longer than the others.
                    soon_s = saving.answer_by(now_s, job.deadline_s - now_s, self.ends_s)
                    changes["deadline_s"] = min(job.deadline_s, soon_s)
                self._set(job, **changes)
        return Cause.REQUEST

    def _began(self, now_s: float, fact: Began) -> Cause:
        self.draining = self.stopping = self.leaving = False
        self.ends_s, self.shrunk = None, False
        self.asked = None  # who was asked ended with the manager before
        self.queue.touch_all()
        return Cause.REQUEST

    def _decided(self, now_s: float, fact: Decided) -> Cause:
        """Take the answer to the last question; that to an older one is stale."""
        asked = self.asked
        if fact.number != (asked.number if asked else 0):
            return NOTHING
        self.asked, self.undecided = None, fact.failed
        self.slow = asked is not None and now_s >= asked.at_s + PATIENCE_S
        if fact.wake_s is not None or not fact.failed:
            self.wake_s = fact.wake_s
        self.memo = changed(self.memo, fact.memo)
        for job_id, granted in fact.jobs.items():
            if (job := self._waiting(job_id)) is not None:
                goal = None if granted.alloc is None else dict(granted.alloc)
                self._set(job, goal=goal, role=granted.role or job.role, why=granted.why)
        for why, jobs in fact.whys.items():
            for job_id in jobs:
                if (job := self._waiting(job_id)) is not None:
                    self._set(job, why=why)
        if self.draining:
            # A job whose goal was taken back is not ready any more: while draining, none is given.
            self.refresh(now_s)
        return Cause(asked.again) if asked else NOTHING

    def _waiting(self, job_id: str) -> Job | None:
        """A job that has not ended."""
        job = self.jobs.get(job_id)
        return None if job is None or job.state.final else job

    def _request(
        self, fact: Hold | Release | Resize | Cancel, changes: Callable[[Job], dict[str, Any]]
    ) -> Cause:
        job = self.jobs.get(fact.job)
        if job is None or job.state.final:
            return NOTHING
        self._set(job, **changes(job))
        return Cause.REQUEST

    # An attempt's end.

    def _close(self, job: Job, now_s: float, fact: Ended) -> None:
        """Free what the attempt held, and say what becomes of the job."""
        if job.registered:
            known = fact.step is not None or fact.outcome is Outcome.SUSPENDED
            job = replace(job, step=max(job.step, fact.step or 0), step_known=known)
        self.records[job.id] = record = records.ended(self.records[job.id], now_s, job, fact)
        progressed = records.saved_anything(record, job)
        hurried = self.ends_s is not None
        state, changes = after(job, now_s, fact, progressed=progressed, hurried=hurried)
        changes = wishes.ended(job, state, changes)
        job = self._set(
            job, held={}, gpus=(), deadline_s=None, registered=False, in_place=False, elastic=False,
            asked={}, interrupted={}, late=None, unsaved=None, ask_s=None, op=0, **changes,
        )  # fmt: skip
        if state.final:
            self._finish(job, now_s, state, why=job.why)
        else:
            self._enter(job, state, now_s)

    def _finish(self, job: Job, now_s: float, state: State, *, why: str) -> None:
        """Put a job into a final state, and with it those that can now never run."""
        self._settle(job, state, now_s, why)
        if not self.jobs[job.id].done:
            self._give_up_dependents(self.jobs[job.id], now_s)

    def _give_up_dependents(self, job: Job, now_s: float) -> None:
        """Cancel what needs a job that will never complete, and what needs that, and so on."""
        # A chain of dependents may be long: a stack, not recursion.
        stack = [job]
        while stack:
            need = stack.pop()
            for name in self._dependents.get(need.id, ()):
                waiting = self.jobs[name]
                if waiting.state is State.PENDING:
                    stack.append(self._settle(waiting, State.CANCELLED, now_s, _gone(need)))

    def _settle(self, job: Job, state: State, now_s: float, why: str) -> Job:
        """Enter a final state, and leave the queue."""
        self.queue.drop(job)
        job = self._enter(job, state, now_s, goal=None, why=why, ready=False)
        self._touch_dependents(job.id)
        return job

    # Small parts.

    def _add(self, job: Job) -> None:
        self.put(job)
        if job.trial is not None and job.id in self.records:
            for rung, value in self.records[job.id].rungs.items():
                self._trials.place(job.trial, rung, value)
        for need in job.after:
            self._dependents.setdefault(need, []).append(job.id)

    def _current(self, fact: _OfAttempt) -> Job | None:
        """The job that a fact is about, if it is about the job's current attempt."""
        job = self.jobs.get(fact.job)
        if job is None or not job.state.active or job.op != fact.op:
            return None
        return job

    def _answer_by(self, now_s: float, job: Job) -> float:
        return saving.answer_by(now_s, job.suspend_timeout_s, self.ends_s)

    def _touch_dependents(self, need: str) -> None:
        """What a job waits for is different now."""
        for name in self._dependents.get(need, ()):
            if not self.jobs[name].state.final:
                self.queue.touch(name)

    def _set(self, job: Job, **changes: Any) -> Job:
        job = replace(job, **changes)
        self.put(job)
        return job

    def _enter(self, job: Job, state: State, now_s: float, **changes: Any) -> Job:
        """Move a job to a state, by the table."""
        if state is not job.state:
            if state not in TRANSITIONS[job.state]:
                raise RuntimeError(f"job {job.id}: {job.state.value} → {state.value}")
            changes["since_s"] = now_s
        return self._set(job, state=state, **changes)

    def _ready(self, job: Job, now_s: float) -> bool:
        if job.on_hold or job.cancelling or self.stopping or now_s < job.not_before_s:
            return False
        if self.draining and job.goal is None and not job.state.active:
            return False
        return not job.after or not any(True for _ in self.unmet(job))

    def unmet(self, job: Job) -> Iterable[Job | str]:
        """Dependencies of a job that are not completed; an unknown one by its id."""
        for need in job.after:
            other = self.jobs.get(need)
            if other is None:
                yield need
            elif not other.done:
                yield other


def _gone(need: Job) -> str:
    """Why a job that needs this one will never run."""
    return f"needs {need.name}, which {'failed' if need.state is State.FAILED else 'was cancelled'}"
