"""Somebody who watches an engine, keeps books of his own, and objects.

What is in use he knows from the actions that were given and the answers that came back. The
engine's own fields are only compared with his books.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import msgspec

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine, Policy
from hpcext.sim.replay.executor import SimulatedExecutor

MOST_STEPS = 20_000
"""More than any of these runs needs: one that never ends is noticed."""

KILL_GRACE_S = 15.0


@dataclasses.dataclass
class Held:
    """What one attempt holds, and what was done to it."""

    job: str
    alloc: dict[str, int]
    ranks: dict[str, int]
    started: bool = False
    registered: bool = False
    in_place: bool = False
    elastic: bool = False
    lame: bool = False
    resize: int = 0
    resized_s: float | None = None
    suspended_s: float | None = None
    killed_s: float | None = None
    broken: bool = False


@dataclasses.dataclass(eq=False)
class Observer:
    """Give `watch` to the driver and `policy` to the engine; asserts at each step.

    Attributes
    ----------
    ours : bool
        Whether the policy promises targets that fit.
    fifo : bool
        Whether it promises to keep the order of the queue.
    log : list
        (instant, facts, actions) of each step.
    wakes : list
        When the engine wanted to be woken, after each step.
    """

    decide: Policy
    ours: bool
    fifo: bool
    executor: SimulatedExecutor
    engine: Engine = dataclasses.field(init=False)
    log: list[tuple[float, tuple[f.Fact, ...], tuple[v.Action, ...]]] = dataclasses.field(
        default_factory=list
    )
    decisions: list[tuple[v.Snapshot, v.Target]] = dataclasses.field(default_factory=list)
    wakes: list[float | None] = dataclasses.field(default_factory=list)
    refused: int = 0
    rescaled: int = 0

    def __post_init__(self) -> None:
        self.engine = Engine(self.policy)
        self.nodes: dict[str, int] = {}
        self.holders: dict[int, Held] = {}
        self.jobs: dict[str, v.Job] = {}
        self.sizes: dict[str, set[int]] = collections.defaultdict(set)
        self.attempts: dict[str, int] = collections.defaultdict(int)
        self.completed: set[str] = set()
        self.on_hold: set[str] = set()
        self.cancelled: set[str] = set()
        self.granted: dict[str, dict[str, int]] = {}
        self.may_start: set[str] | None = None
        self.last_op = 0
        self.shrunk = self.stopped = False
        self.final: dict[str, v.State] = {}

    def policy(self, now: v.Snapshot) -> v.Target:
        """The policy under watch: what it was asked and what it said."""
        before = msgspec.json.encode((now.nodes, now.jobs, now.memo))
        target = self.decide(now)
        assert self.decide(now) == target, "not a function of its snapshot"
        assert msgspec.json.encode((now.nodes, now.jobs, now.memo)) == before
        self.decisions.append((now, target))
        return target

    def watch(self, now_s: float, facts: tuple[f.Fact, ...], actions: tuple[v.Action, ...]) -> None:
        """Check one step of the engine."""
        self.log.append((now_s, facts, actions))
        assert len(self.log) < MOST_STEPS, "the run does not end"
        assert not self.log[:-1] or self.log[-2][0] <= now_s
        for fact in facts:
            self._note(fact)
            if isinstance(fact, f.Began):
                self._note_began(now_s)
        self._check_decision()
        for action in actions:
            _CHECKS[action.kind](self, now_s, action)
        self._check_deadlines(now_s)
        self._check_books()
        self._check_nothing_new(now_s)

    # Facts.

    def _note(self, fact: f.Fact) -> None:
        if isinstance(fact, f.NodeJoined):
            self.shrunk |= fact.node.gpus < self.nodes.get(fact.node.name, 0)
            self.nodes[fact.node.name] = fact.node.gpus
        elif isinstance(fact, f.NodeLost):
            self._note_lost(fact.name)
        elif isinstance(fact, f.Submitted):
            self.jobs.setdefault(fact.job.id, fact.job)
            self.sizes[fact.job.id] |= set(fact.job.sizes)
        elif isinstance(fact, (f.Started, f.Registered, f.Rescaled, f.Ended)):
            self._note_answer(fact)
        elif isinstance(fact, (f.Hold, f.Release, f.Resize, f.Cancel)):
            self._note_request(fact)
        elif isinstance(fact, f.Drain):
            busy = {held.job for held in self.holders.values()}
            before = set(self.granted) | busy if self.may_start is None else self.may_start
            self.may_start = set() if fact.suspend else before
            self.stopped |= fact.suspend
        elif isinstance(fact, f.Began):
            self.may_start = None

    def _note_began(self, now_s: float) -> None:
        """What was asked is asked again, and has its whole time from now."""
        for held in self.holders.values():
            for asked in ("suspended_s", "resized_s", "killed_s"):
                if getattr(held, asked) is not None:
                    setattr(held, asked, now_s)

    def _note_lost(self, name: str) -> None:
        self.nodes.pop(name, None)
        for op, held in list(self.holders.items()):
            if held.alloc.pop(name, None) is None:
                continue
            held.ranks = {node: gpus for node, gpus in held.ranks.items() if node != name}
            goes_on = held.elastic and held.suspended_s is None and held.killed_s is None
            if goes_on and held.ranks:
                held.lame, held.resized_s = True, None
            else:
                held.broken, held.resized_s = True, None
            if not held.alloc:
                del self.holders[op]

    def _note_answer(self, fact: f.Started | f.Registered | f.Rescaled | f.Ended) -> None:
        held = self.holders.get(fact.op)
        if held is None or held.job != fact.job:
            return
        if isinstance(fact, f.Started):
            held.started = True
            return
        if isinstance(fact, f.Registered):
            if not held.registered or (fact.in_place and not held.resize):
                held.in_place, held.elastic = fact.in_place, fact.elastic
            held.registered = True
            return
        if isinstance(fact, f.Rescaled):
            self._note_rescaled(held, fact)
            return
        del self.holders[fact.op]
        if fact.outcome is f.Outcome.COMPLETED:
            self.completed.add(fact.job)

    def _note_rescaled(self, held: Held, fact: f.Rescaled) -> None:
        """It has what it says; but what is stopping may still have all of it."""
        if held.resized_s is None or held.resize != fact.resize:
            return
        held.resized_s = None
        held.alloc = dict(collections.Counter(gpu.split(":")[0] for gpu in fact.gpus))
        held.ranks, held.lame = dict(held.alloc), False
        held.in_place &= fact.ok
        held.elastic &= fact.ok
        self.rescaled += fact.ok

    def _note_request(self, fact: f.Hold | f.Release | f.Resize | f.Cancel) -> None:
        if fact.job not in self.jobs:
            return
        if isinstance(fact, f.Hold):
            self.on_hold.add(fact.job)
        elif isinstance(fact, f.Release):
            self.on_hold.discard(fact.job)
        elif isinstance(fact, f.Resize):
            self.sizes[fact.job].add(fact.gpus)
        else:
            self.cancelled.add(fact.job)

    # Decisions.

    def _check_decision(self) -> None:
        """A target is taken as it is, or refused as a whole and the old goals kept."""
        assert len(self.decisions) <= 1, "the policy was asked twice in one step"
        if not self.decisions:
            return
        now, target = self.decisions.pop()
        wrong = misfit(now, target)
        assert bool(self.engine.refusal) == wrong, self.engine.refusal
        goals = {job.id: self.engine.world.jobs[job.id].goal for job in now.jobs}
        if wrong:
            self.refused += 1
            assert goals == {job.id: job.goal for job in now.jobs}
        else:
            asked = {job_id: dict(grant.alloc) for job_id, grant in target.grants.items()}
            assert {job: goal for job, goal in goals.items() if goal} == asked
        self.granted = {job: dict(goal) for job, goal in goals.items() if goal}
        if self.ours:
            assert not wrong, f"a real policy's target was refused: {self.engine.refusal}"
        if self.fifo:
            self._check_fifo(now, target)

    def _check_fifo(self, now: v.Snapshot, target: v.Target) -> None:
        """Of the ready jobs that had nothing, those that get something are the first ones."""
        queue = sorted(
            (job for job in now.jobs if job.ready and not job.goal),
            key=lambda job: (-job.priority, job.order),
        )
        given = [job.id in target.grants for job in queue]
        assert given == sorted(given, reverse=True), [job.id for job in queue]
        for job in queue:
            assert job.id not in self.on_hold | self.cancelled | self.completed
            assert set(job.after) <= self.completed

    # Actions.

    def _check_start(self, now_s: float, action: v.Action) -> None:
        job = self.jobs[action.job]
        assert action.op > self.last_op
        assert action.attempt == self.attempts[job.id] + 1
        assert all(held.job != job.id for held in self.holders.values()), "runs twice"
        assert set(job.after) <= self.completed, "its dependencies are not complete"
        assert job.id not in self.final
        assert job.id not in self.on_hold | self.cancelled | self.completed
        assert self.may_start is None or job.id in self.may_start, "started while draining"
        assert self._takes(job.id, action.alloc)
        used = self._used()
        for node, gpus in action.alloc.items():
            assert 1 <= gpus <= self.nodes[node] - used[node], f"{node} is overcommitted"
        self.last_op, self.attempts[job.id] = action.op, action.attempt
        self.holders[action.op] = Held(job.id, dict(action.alloc), dict(action.alloc))

    def _check_suspend(self, now_s: float, action: v.Action) -> None:
        held = self._addressed(action)
        assert held.started
        assert held.suspended_s is None, "suspended twice"
        must = self.stopped or self.shrunk or held.broken
        assert held.registered or must or not self.ours, "it cannot save what it did"
        goal = self.engine.world.jobs[held.job].goal
        if held.resized_s is not None:
            overdue_s = held.resized_s + self.jobs[held.job].suspend_timeout_s
            assert not goal or now_s >= overdue_s, "it is changing its size"
        elif held.elastic and goal:
            both = {n: min(g, held.alloc.get(n, 0)) for n, g in goal.items() if n in held.alloc}
            assert not both or not v.suits(self.engine.world.jobs[held.job], both)
        elif held.in_place and goal and goal.keys() == held.alloc.keys():
            ways = {goal[node] > gpus for node, gpus in held.alloc.items() if goal[node] != gpus}
            assert ways == {True, False}, "it can change its size in place"
        held.suspended_s, held.resized_s = now_s, None

    def _check_rescale(self, now_s: float, action: v.Action) -> None:
        held = self._addressed(action)
        assert held.in_place
        assert not held.broken
        assert held.suspended_s is None
        assert held.killed_s is None
        assert held.resized_s is None, "the last change was not answered"
        assert action.resize == held.resize + 1
        assert held.job not in self.on_hold | self.cancelled
        assert self.may_start is None or held.job in self.may_start, "resized while draining"
        assert action.alloc.keys() == held.alloc.keys() or held.elastic
        assert not held.alloc.keys().isdisjoint(action.alloc), "nobody has its state"
        assert action.alloc != held.alloc or held.lame
        assert self._takes(held.job, action.alloc)
        used = self._used()
        for node, gpus in action.alloc.items():
            more = gpus - held.alloc.get(node, 0)
            assert more <= max(0, self.nodes[node] - used[node]), f"{node} is overcommitted"
            held.alloc[node] = max(gpus, held.alloc.get(node, 0))
        held.resized_s, held.resize = now_s, action.resize

    def _check_kill(self, now_s: float, action: v.Action) -> None:
        """Only who was cancelled, did not answer, or lost a part of itself is killed."""
        held = self._addressed(action)
        assert action.force == (held.killed_s is not None)
        if held.killed_s is not None:
            assert now_s >= held.killed_s + KILL_GRACE_S or held.broken
        elif held.suspended_s is not None and held.job not in self.cancelled:
            timeout_s = self.jobs[held.job].suspend_timeout_s
            assert now_s >= held.suspended_s + timeout_s or held.broken
        else:
            assert held.broken or held.job in self.cancelled
        held.killed_s, held.resized_s = now_s, None

    def _addressed(self, action: v.Action) -> Held:
        held = self.holders[action.op]
        assert (held.job, self.attempts[held.job]) == (action.job, action.attempt)
        return held

    # Always.

    def _check_deadlines(self, now_s: float) -> None:
        """Nobody waits longer than he said that he would."""
        for held in self.holders.values():
            if held.killed_s is not None:
                assert now_s < held.killed_s + KILL_GRACE_S
            elif held.suspended_s is not None:
                assert now_s < held.suspended_s + self.jobs[held.job].suspend_timeout_s
            elif held.resized_s is not None:
                assert now_s < held.resized_s + self.jobs[held.job].suspend_timeout_s

    def _check_books(self) -> None:
        """The engine's books and the executor's truth agree with these."""
        mine = {held.job: held.alloc for held in self.holders.values()}
        jobs = self.engine.world.jobs
        assert {job.id: job.held for job in jobs.values() if job.held} == mine
        assert {job.id for job in jobs.values() if job.state.active} == set(mine)
        for job_id, state in self.final.items():
            assert jobs[job_id].state is state, "a final state changed"
        self.final = {job.id: job.state for job in jobs.values() if job.state.final}
        assert {job.id for job in jobs.values() if job.done} == self.completed
        true = self.executor.occupied()
        assert len(set(true)) == len(true), "two attempts on one GPU"
        used = self._used()
        for node, gpus in collections.Counter(gpu.split(":")[0] for gpu in true).items():
            assert gpus <= used[node], "taken for free, and in use"
        for job in jobs.values():
            truth = self.executor.trains_on(job.op)
            if job.state is v.State.RUNNING and truth:
                assert set(job.gpus) == set(truth), "it runs elsewhere"

    def _check_nothing_new(self, now_s: float) -> None:
        """Without a new fact there are the same goals and nothing to do."""
        before = dict(self.engine.world.jobs)
        actions, wake_s = self.engine.step(now_s, ())
        assert actions == ()
        assert not self.decisions, "the policy was asked again, with nothing new"
        assert wake_s is None or wake_s > now_s, "a driver would never sleep"
        assert self.engine.world.jobs == before
        self.wakes.append(wake_s)

    def _takes(self, job: str, alloc: v.Alloc) -> bool:
        """Whether a job has ever said that it runs on this."""
        nodes = self.jobs[job].nodes
        if nodes is None:
            return sum(alloc.values()) in self.sizes[job]
        return set(alloc.values()) <= self.sizes[job] and nodes[0] <= len(alloc) <= nodes[1]

    def _used(self) -> collections.Counter[str]:
        used: collections.Counter[str] = collections.Counter()
        for held in self.holders.values():
            used.update(held.alloc)
        return used


_CHECKS: dict[v.Kind, Callable[[Observer, float, v.Action], None]] = {
    v.Kind.START: Observer._check_start,
    v.Kind.RESCALE: Observer._check_rescale,
    v.Kind.SUSPEND: Observer._check_suspend,
    v.Kind.KILL: Observer._check_kill,
}


def misfit(now: v.Snapshot, target: v.Target) -> bool:
    """Whether a target asks for what cannot be."""
    known = {job.id: job for job in now.jobs}
    asked: collections.Counter[str] = collections.Counter()
    for job_id, grant in target.grants.items():
        job = known.get(job_id)
        if job is None or not job.ready or any(gpus < 1 for gpus in grant.alloc.values()):
            return True
        if job.nodes is None:
            takes = sum(grant.alloc.values()) in job.sizes
        else:
            alike = len(set(grant.alloc.values())) == 1 and {*grant.alloc.values()} <= {*job.sizes}
            takes = alike and job.nodes[0] <= len(grant.alloc) <= job.nodes[1]
        if not takes and grant.alloc != job.goal:
            return True
        asked.update(grant.alloc)
    return any(node not in now.nodes or gpus > now.nodes[node].gpus for node, gpus in asked.items())
