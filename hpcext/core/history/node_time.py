"""An account of the time of nodes: each node-second in one place, summed up step by step.

A node that is wanted back (it has no GPUs any more) no longer counts. The time before a manager
began does not count either, because it is unknown which nodes were there.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hpcext.core.facts import Began, Ended, Fact, Outcome, Progressed, Registered, Rescaled
from hpcext.core.values import Alloc, Job, Node, State
from hpcext.core.world import World


class Use(str, enum.Enum):
    """The uses that a node-second is counted under.

    A job that stops, starts again, or goes on from an older checkpoint does so for a reason: one of
    the last three.
    """

    WAITING = "waiting"
    TRAINING = "training"
    STARTING = "starting"
    PREEMPTION = "preemption"
    RESCALING = "rescaling"
    OTHER = "other"


class Cost(str, enum.Enum):
    """The parts of a job's time in which it did not train."""

    STARTS = "starts"
    SUSPENDS = "suspends"
    RESIZES = "resizes"
    LOST = "lost_work"


class Tally(msgspec.Struct):
    """The account of one job.

    Attributes
    ----------
    node_s : float
        Node-seconds that it had.
    spent : dict of Use to float
        Where they went.
    cost : dict of Cost to float
        Those that were no training, by what was done in them.
    op : int
        Of its attempt; 0: none.
    cause : Use
        Of the start of this attempt, or of the next one.
    stop, change : Use or None
        Of the suspension or the change of size that is under way.
    stepped : bool
        Whether the attempt is known to have done a step.
    from_step : int
        From which it went on.
    begun_s, trained_s, unsaved_s : float
        Node-seconds of the attempt: until its first step, from there on, and of these since the
        newest checkpoint.
    """

    node_s: float = 0.0
    spent: dict[Use, float] = msgspec.field(default_factory=dict)
    cost: dict[Cost, float] = msgspec.field(default_factory=dict)
    op: int = 0
    cause: Use = Use.STARTING
    stop: Use | None = None
    change: Use | None = None
    stepped: bool = False
    from_step: int = 0
    begun_s: float = 0.0
    trained_s: float = 0.0
    unsaved_s: float = 0.0


class NodeTime(msgspec.Struct):
    """The account of all nodes, since the first one came.

    Attributes
    ----------
    at_s : float
        Until when.
    away_s : float
        The part of this time, in seconds, about which nothing is known.
    held_s : float
        Node-seconds in which nodes were there: the sum of `spent`.
    spent : dict of Use to float
        Where they went.
    jobs : dict of str to Tally
    """

    at_s: float = 0.0
    away_s: float = 0.0
    held_s: float = 0.0
    spent: dict[Use, float] = msgspec.field(default_factory=dict)
    jobs: dict[str, Tally] = msgspec.field(default_factory=dict)

    def passed(self, world: World, now_s: float, *, away: bool = False) -> None:
        """Count the time until an instant, in which nothing changed or no manager ran.

        Parameters
        ----------
        world : World
        now_s : float
            The instant until which to count.
        away : bool
            Whether no manager ran in that time.
        """
        self._passed(_Before.of(world), now_s, away=away)

    def _passed(self, before: _Before, now_s: float, *, away: bool) -> None:
        seconds, self.at_s = max(0.0, now_s - self.at_s), max(now_s, self.at_s)
        if away:
            self.away_s += seconds
            return
        weight, used = Weight(before.nodes, before.jobs), 0.0
        for job in before.jobs:
            self._had(job, weight(job.held) * seconds, weight(_in_use(job)) * seconds)
            used += weight(job.held)
        nodes = sum(parts(before.nodes.values()).values())
        self.held_s += nodes * seconds
        _add(self.spent, Use.WAITING, (nodes - used) * seconds)

    def stepped(self, before: _Before, world: World, now_s: float, facts: Sequence[Fact]) -> None:
        """Take in a step of an engine; see :class:`Meter`."""
        self._passed(before, now_s, away=any(isinstance(fact, Began) for fact in facts))
        weight = Weight(world.offered, before.jobs)
        for fact in facts:
            self._heard(fact, weight)
        ends = {(fact.job, fact.op): fact for fact in facts if isinstance(fact, Ended)}
        for job in before.jobs:
            ended = ends.get((job.id, job.op))
            if ended is not None and job.run.native:
                tally = self._of(job)
                lost_s = (ended.lost_s or 0.0) * weight(job.held)
                tally.unsaved_s = min(tally.trained_s, lost_s)
            self._became(job, world, ended)
        for job in world.queue.busy():
            if job.state.active:
                self._of(job)

    def _had(self, job: Job, held_s: float, in_use_s: float) -> None:
        """Count the time that a job was as it is."""
        tally = self._of(job)
        tally.node_s += held_s
        if job.state is State.STOPPING:
            self._spend(tally, tally.stop or Use.OTHER, held_s, Cost.SUSPENDS)
        elif not tally.stepped:
            tally.begun_s += held_s
            self._spend(tally, tally.cause, held_s, Cost.STARTS)
        else:
            # The GPUs that it is given in addition are not in use yet.
            self._spend(tally, tally.change or Use.RESCALING, held_s - in_use_s, Cost.RESIZES)
            self._spend(tally, Use.TRAINING, in_use_s)
            tally.trained_s += in_use_s
            tally.unsaved_s += in_use_s

    def _of(self, job: Job) -> Tally:
        """Return the tally of a job's current attempt."""
        tally = self.jobs.get(job.id)
        if tally is None:
            # The past of a job that was there before counting began is unknown.
            tally = Tally(cause=Use.STARTING if job.attempt == 1 else Use.OTHER)
            tally.stepped = job.run.registered
            self.jobs[job.id] = tally
        if tally.op != job.op:
            tally.op, tally.from_step = job.op, job.saved_step
        return tally

    def _heard(self, fact: Fact, weight: Weight) -> None:
        """Take in what an attempt said."""
        if not isinstance(fact, (Registered, Progressed, Rescaled)):
            return
        tally = self.jobs.get(fact.job)
        if tally is None or tally.op != fact.op:
            return
        if isinstance(fact, Registered):
            self._goes_back(tally, fact.step)
            tally.from_step = fact.step
            # Of a command that saves by its own means no steps are known: it trains all the time.
            tally.stepped |= fact.native
        elif isinstance(fact, Rescaled):
            if fact.stall_s is not None and tally.change is not None:
                stalled_s = fact.stall_s * weight(_per_node(fact.gpus))
                stalled_s = min(stalled_s, tally.unsaved_s)
                self._lose(tally, tally.change, stalled_s, Cost.RESIZES)
        else:
            tally.stepped |= fact.resume_s is not None or fact.step > tally.from_step
            steps = fact.step - tally.from_step
            if steps > 0:
                share = min(1.0, max(0, fact.step - fact.saved_step) / steps)
                tally.unsaved_s = min(tally.unsaved_s, share * tally.trained_s)

    def _goes_back(self, tally: Tally, step: int) -> None:
        """Count training as lost if its checkpoint is gone and it goes on from an older one.

        The steps between are charged as the job's steps cost in the mean.
        """
        if step < tally.from_step:
            share = (tally.from_step - step) / tally.from_step
            lost_s = share * tally.spent.get(Use.TRAINING, 0.0)
            self._spend(tally, Use.TRAINING, -lost_s)
            self._spend(tally, tally.cause, lost_s, Cost.LOST)

    def _became(self, before: Job, world: World, ended: Ended | None) -> None:
        """Take in what a step made of a job that held something."""
        job, tally = world.jobs[before.id], self._of(before)
        if not job.state.active or job.op != before.op:
            self._ended(before, world, ended)
        elif job.state is State.STOPPING:
            tally.stop = tally.stop or _cause(before, job, world)
        elif job.state is State.RESCALING:
            if job.run.resize != before.run.resize:
                tally.change = _cause(before, job, world)
        else:
            # It may have declined a suspension, and gone on.
            tally.change = tally.stop = None

    def _ended(self, before: Job, world: World, ended: Ended | None) -> None:
        """End the tally of an attempt; one that ended without a word lost its nodes."""
        tally = self._of(before)
        outcome = ended.outcome if ended else Outcome.EVICTED
        stop = tally.stop or (Use.PREEMPTION if _leaves(before, world) else None)
        if outcome is Outcome.EVICTED or before.run.degraded:
            cause = Use.PREEMPTION
        elif outcome is Outcome.LOST:
            cause = stop or Use.PREEMPTION
        else:
            cause = stop or Use.OTHER
        if outcome is Outcome.COMPLETED:
            if not tally.stepped:
                # It never reported when it began to train.
                self._spend(tally, tally.cause, -tally.begun_s, Cost.STARTS)
                self._spend(tally, Use.TRAINING, tally.begun_s)
        elif outcome is not Outcome.SUSPENDED or before.run.native:
            self._lose(tally, cause, tally.unsaved_s, Cost.LOST)
            if not tally.stepped:
                self._spend(tally, tally.cause, -tally.begun_s)
                self._spend(tally, cause, tally.begun_s)
        self.jobs[before.id] = Tally(
            node_s=tally.node_s, spent=tally.spent, cost=tally.cost, cause=cause
        )

    def _lose(self, tally: Tally, cause: Use, node_s: float, cost: Cost) -> None:
        """Take from an attempt's training what turned out to be lost."""
        self._spend(tally, Use.TRAINING, -node_s)
        self._spend(tally, cause, node_s, cost)
        tally.trained_s -= node_s
        tally.unsaved_s -= node_s

    def _spend(self, tally: Tally, use: Use, node_s: float, cost: Cost | None = None) -> None:
        """Count time that a job spent on something; below 0 it went elsewhere."""
        _add(self.spent, use, node_s)
        _add(tally.spent, use, node_s)
        if cost is not None:
            _add(tally.cost, cost, node_s)


class _Before(NamedTuple):
    """The state when a step began: jobs that hold something, and nodes that offer something."""

    jobs: tuple[Job, ...]
    nodes: Mapping[str, Node]

    @classmethod
    def of(cls, world: World) -> _Before:
        """Return what is true now."""
        busy = tuple([job for job in world.queue.busy() if job.state.active])
        return cls(busy, world.offered)


class Meter:
    """An observer of the steps of an engine that counts what the nodes' time goes into.

    Parameters
    ----------
    world : World
        Of the engine, as it is before the next step.
    time : NodeTime
        Until the last one; it is brought up to date.
    """

    def __init__(self, world: World, time: NodeTime) -> None:
        self.time = time
        self._world = world
        self._before = _Before.of(world)

    def watch(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Note the effect of a step's facts; call it after each step."""
        before, self._before = self._before, _Before.of(self._world)
        self.time.stepped(before, self._world, now_s, facts)


_Key = TypeVar("_Key", Use, Cost)


def _add(account: dict[_Key, float], key: _Key, node_s: float) -> None:
    if node_s:
        account[key] = account.get(key, 0.0) + node_s


class Weight:
    """The size of allocations in nodes: of each node as large a part as of its GPUs.

    A node that shrank under its jobs is shared by all that hold some of it.

    Parameters
    ----------
    nodes : Mapping[str, Node]
        Those that offer something.
    jobs : iterable of Job
        All that hold something.
    """

    def __init__(self, nodes: Mapping[str, Node], jobs: Iterable[Job]) -> None:
        held: collections.Counter[str] = collections.Counter()
        for job in jobs:
            held.update(job.held)
        self._parts = parts(nodes.values())
        self._gpus = {name: max(nodes[name].gpus, held[name]) for name in self._parts}

    def __call__(self, alloc: Alloc) -> float:
        """Return the nodes in an allocation; those that are gone or to go do not count."""
        parts, gpus = self._parts, self._gpus
        return sum(parts[node] * had / gpus[node] for node, had in alloc.items() if node in gpus)


def parts(nodes: Collection[Node]) -> dict[str, float]:
    """Return how much of a machine each node is that offers something, by its name.

    A node is a whole machine, unless GPUs with seats and other GPUs of one machine are two nodes.
    """
    offering = [node for node in nodes if node.gpus]
    if not any(node.seats for node in offering):
        return {node.name: 1.0 for node in offering}
    every = sum(node.real_gpus for node in offering)
    return {node.name: node.real_gpus / every for node in offering}


def _in_use(job: Job) -> Alloc:
    """Return what a job's processes have, while it may hold more."""
    return _per_node(job.gpus) if job.state is State.RESCALING else job.held


def _per_node(gpus: Iterable[str]) -> Alloc:
    return collections.Counter(gpu.rpartition(":")[0] for gpu in gpus)


def _leaves(job: Job, world: World) -> bool:
    """Return whether a node of a job is gone, or to go."""
    return any(name not in world.nodes or not world.nodes[name].gpus for name in job.held)


def _cause(before: Job, job: Job, world: World) -> Use:
    """Tell why a job is to stop, or to change its size."""
    if before.run.degraded or job.run.degraded or _leaves(before, world):
        return Use.PREEMPTION
    if job.on_hold or job.cancelling or world.suspending:
        return Use.OTHER
    return Use.RESCALING
