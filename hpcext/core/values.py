"""What is true, what is wanted, what to do: frozen values, nothing else.

Instants (``*_s``) are seconds since the manager began; durations are seconds. Targets speak in
GPUs per node; which GPUs a job got is the executor's answer and arrives as a fact.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Union

import msgspec

from hpcext.core.estimate import Estimate
from hpcext.core.history.fragments import Fragments
from hpcext.core.history.losses import Point
from hpcext.core.saving import Loss, Unsaved, explained
from hpcext.core.trials import Trial
from hpcext.text import counted

Alloc = Mapping[str, int]
"""Node name → GPUs on it."""


Late = tuple[tuple[str, ...], bool, Union[float, None], str]  # noqa: UP007  (read at run time)
"""GPUs, whether it has the size, the seconds that it cost, and why not: an answer to a change."""


def total(alloc: Alloc | None) -> int:
    """GPUs in an allocation; 0 for None."""
    return sum(alloc.values()) if alloc else 0


def per_node(alloc: Alloc) -> int:
    """GPUs on each node of an allocation that has as many on each; 0 where they differ."""
    counts = set(alloc.values())
    return counts.pop() if len(counts) == 1 else 0


class State(str, enum.Enum):
    """Where a job stands. The order of the members is the order of a job's life."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RESCALING = "rescaling"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether a job in this state stays in it."""
        return self in _FINAL

    @property
    def active(self) -> bool:
        """Whether a job in this state holds GPUs."""
        return self in _ACTIVE


_FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
_ACTIVE = frozenset({State.STARTING, State.RUNNING, State.RESCALING, State.STOPPING})

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.STARTING, State.CANCELLED}),
    State.STARTING: frozenset(
        {State.RUNNING, State.STOPPING, State.PENDING, State.COMPLETED, State.FAILED,
         State.CANCELLED}
    ),
    State.RUNNING: frozenset(
        {State.RESCALING, State.STOPPING, State.PENDING, State.COMPLETED, State.FAILED,
         State.CANCELLED}
    ),
    State.RESCALING: frozenset(
        {State.RUNNING, State.STOPPING, State.PENDING, State.COMPLETED, State.FAILED,
         State.CANCELLED}
    ),
    State.STOPPING: frozenset(
        {State.RUNNING, State.RESCALING, State.PENDING, State.COMPLETED, State.FAILED,
         State.CANCELLED}
    ),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}  # fmt: skip
"""The one table of what may follow what."""


class Role(str, enum.Enum):
    """MARBLE §V-C: a primary runs at its best size, a secondary on what was left."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


class Node(msgspec.Struct, frozen=True):
    """A node that may be used.

    Attributes
    ----------
    name : str
    gpus : int
        How many GPUs (or logical slots) it offers.
    kind : str
        What these are, as the batch system or the driver names them; empty if that is not known.
        GPUs of nodes with the same one are alike.
    since_s : float or None
        Since when it has been idle, or offered; None in a fact: since the fact.
    ends_s : float or None
        When it is to be given back at the latest, if that is known.
    planned : bool
        Somebody needs it then. Else nobody may have it longer, but it will probably leave before.
    seats : int
        How many jobs share each of its GPUs, each on a seat of its own: what it offers as GPUs are
        these seats. 0: a GPU is one job's.
    """

    name: str
    gpus: int
    kind: str = ""
    since_s: float | None = None
    ends_s: float | None = None
    planned: bool = True
    seats: int = 0

    @property
    def real_gpus(self) -> int:
        """GPUs, whether jobs share them or not."""
        return self.gpus // self.seats if self.seats else self.gpus


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as the engine sees it.

    Attributes
    ----------
    id, name : str
    order : int
        Place in the queue among jobs of one priority.
    sizes : tuple of int
        GPU counts it may run on, ascending: on each of its nodes where `nodes` is set, else in all.
    stated : tuple of int
        What `sizes` was before its user asked for one size; empty where he did not.
    optimal : int
        The size it runs best on.
    stated_optimal : int
        What `optimal` was before its user asked for one size; 0 where he did not.
    nodes : (int, int) or None
        The fewest and the most nodes that it runs on, with as many GPUs on each. None: nothing is
        said of how its GPUs are spread.
    priority : float
        Higher goes first.
    weight : float
        What its gain counts against that of other jobs, > 0.
    after : tuple of str
        Ids of jobs that must complete first.
    shares : bool
        Whether it may have a seat on a GPU that others use, too.
    retries : int
        Failures in a row, without new progress between them, that are tried again.
    suspend_timeout_s : float
        Longest wait for the acknowledgement of a suspension.
    state : State
    goal : Alloc or None
        What was last granted. Policies read this.
    held : Alloc
        What is not acknowledged free. Reconcile reads this.
    gpus : tuple of str
        The GPUs behind `held`, as ``HOST:INDEX``, once the executor has said which.
    role : Role or None
    op : int
        The operation that started the current attempt; older answers are stale.
    attempt : int
        Attempts so far.
    moves : int
        How often it was given other GPUs: starts after the first one, and changes in place.
    most_gpus : int
        The most GPUs that it was ever given.
    ready : bool
        Whether it may be granted anything: dependencies met, not on hold, not backing off.
    registered : bool
        Whether its current attempt has a session that answers a suspension.
    in_place : bool
        Whether its current attempt can change its number of GPUs without stopping.
    elastic : bool
        Whether it can change its nodes, too, and goes on when it loses some.
    resize : int
        Number of the last such change that the current attempt was asked for, from 1 on.
    asked : Alloc
        While it changes its size: what it is to have afterwards.
    interrupted : Alloc
        The same while it is asked to suspend itself in the middle of that.
    late : Late or None
        What it has answered to that since.
    on_hold : bool
        Suspended by its user until resumed.
    to_hold : bool
        Its user has suspended it, and it has no session that could save its state: it is on hold
        from the moment that it has one, or that its attempt has ended.
    cancelling : bool
    kills : int
        How often the current attempt was told to die.
    maimed : bool
        Its current attempt has lost a node, and was not given others since.
    suspendable : bool
        False once a suspension went unanswered: it is not resized again.
    failures : int
        Failures in a row without progress.
    step : int
        Last step reported, over all attempts.
    step_known : bool
        Whether the last attempt did no step after it.
    saved_step : int
        Step of the newest checkpoint that is known.
    unsaved : Unsaved or None
        That its current attempt cannot save, if that is so.
    declined : int
        Suspensions that the current attempt has answered by going on, since it could not save.
    ask_s : float or None
        Then: it is not asked again before this instant.
    submitted_s, since_s : float
        When it was submitted; when it entered its state.
    deadline_s : float or None
        When a stopping job is told to die, and one that changes its size to suspend.
    not_before_s : float
        It is not started before this instant (backing off after a failure).
    why : str
        Why it waits or runs as it does, in one sentence.
    estimate : Estimate
    trial : Trial or None
        What it is in its sweep, if it belongs to one.
    verdict : str
        Why its sweep ends it; empty if it does not.
    """

    id: str
    name: str
    order: int
    sizes: tuple[int, ...]
    optimal: int
    nodes: tuple[int, int] | None = None
    stated: tuple[int, ...] = ()
    stated_optimal: int = 0
    priority: float = 0.0
    weight: float = 1.0
    after: tuple[str, ...] = ()
    shares: bool = False
    retries: int = 2
    suspend_timeout_s: float = 60.0
    state: State = State.PENDING
    goal: Alloc | None = None
    held: Alloc = msgspec.field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    role: Role | None = None
    op: int = 0
    attempt: int = 0
    moves: int = 0
    most_gpus: int = 0
    ready: bool = True
    registered: bool = False
    in_place: bool = False
    elastic: bool = False
    resize: int = 0
    asked: Alloc = msgspec.field(default_factory=dict)
    interrupted: Alloc = msgspec.field(default_factory=dict)
    late: Late | None = None
    on_hold: bool = False
    to_hold: bool = False
    cancelling: bool = False
    kills: int = 0
    maimed: bool = False
    suspendable: bool = True
    failures: int = 0
    step: int = 0
    step_known: bool = False
    saved_step: int = 0
    unsaved: Unsaved | None = None
    declined: int = 0
    ask_s: float | None = None
    submitted_s: float = 0.0
    since_s: float = 0.0
    deadline_s: float | None = None
    not_before_s: float = 0.0
    why: str = ""
    estimate: Estimate = Estimate()
    trial: Trial | None = None
    verdict: str = ""

    @property
    def reason(self) -> str:
        """Why it waits or runs as it does, and what its user asked for that is still to come."""
        return "; ".join(part for part in (explained(self), self._to_come()) if part)

    @property
    def done(self) -> bool:
        """Whether what waits for it may begin: it is complete, or its sweep has ended it."""
        ended = self.state is State.CANCELLED and bool(self.verdict)
        return ended or self.state is State.COMPLETED

    @property
    def sessionless(self) -> bool:
        """Whether it runs and has no session yet: to stop it now loses what its attempt did."""
        coming = self.state in {State.STARTING, State.RUNNING}
        return coming and not self.registered and not self.cancelling

    @property
    def has(self) -> int:
        """What it holds, counted as its `sizes` are; 0 where its nodes differ."""
        return size_of(self, self.held)

    def _to_come(self) -> str:
        if self.to_hold:
            return f"will be suspended {_ONCE_SAVED}"
        if self.stated and self.sessionless and self.has not in self.sizes:
            return f"gets {counted(self.optimal, 'GPU')} {_ONCE_SAVED}"
        return ""


_ONCE_SAVED = "as soon as it can save its state; it has no session yet"
"""When something is done that would stop a job."""


def size_of(job: Job, alloc: Alloc | None) -> int:
    """An allocation, counted as the sizes of a job are; 0 where its nodes differ."""
    return total(alloc) if job.nodes is None else per_node(alloc or {})


def suits(job: Job, alloc: Alloc) -> bool:
    """Whether a job can run on this."""
    if job.nodes is None:
        return total(alloc) in job.sizes
    fewest, most = job.nodes
    return per_node(alloc) in job.sizes and fewest <= len(alloc) <= most


class Segment(msgspec.Struct, frozen=True):
    """A stretch of time that a job ran on the same GPUs.

    Attributes
    ----------
    start_s, end_s : float
        `end_s` is None while it lasts.
    gpus : tuple of str
    role : Role or None
    from_step, steps : int
        The step that it went on from, and how many it did.
    resume_s, suspend_s : Mapping[str, float] or None
        The parts of its beginning and, if it was suspended, of its end, seconds.
    rescaled : bool
        It began by a change of size in place, without a new attempt.
    stall_s : float or None
        Seconds without progress that this change cost.
    """

    start_s: float
    gpus: tuple[str, ...]
    role: Role | None
    end_s: float | None = None
    from_step: int = 0
    steps: int = 0
    resume_s: Mapping[str, float] | None = None
    suspend_s: Mapping[str, float] | None = None
    rescaled: bool = False
    stall_s: float | None = None


class Record(msgspec.Struct, frozen=True):
    """What became of a job so far: the part of its history that reports are made of.

    Attributes
    ----------
    segments : tuple of Segment
    suspends : int
        Suspensions that were acknowledged.
    rescales : int
        Changes of size in place that were carried out.
    lost_steps : int
        Steps that were run and had to be run again: from the last one that an attempt did to the
        one that the next went on from.
    lost_exact : int
        How many of them were counted for attempts whose last step is known; of the others there
        may have been more.
    loss : Loss or None
        The last one.
    exit_code : int or None
        Of the last attempt.
    metrics : Mapping[str, float]
        As last reported, the loss among them.
    rungs : Mapping[int, float or None]
        Of a trial: step of each rung that it came to → its metric there, None where that was no
        number.
    curve : tuple of Point
        Of a trial: its metric by step, thinned out.
    notes : tuple of str
        What its last attempt told its user to know.
    orphans : tuple of (str, int)
        Nodes that were lost, and the attempts that may still run there.
    """

    segments: tuple[Segment, ...] = ()
    suspends: int = 0
    rescales: int = 0
    lost_steps: int = 0
    lost_exact: int = 0
    loss: Loss | None = None
    exit_code: int | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    rungs: Mapping[int, float | None] = msgspec.field(default_factory=dict)
    curve: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()
    orphans: tuple[tuple[str, int], ...] = ()


class Cause(enum.Flag):
    """Why a policy is asked."""

    SUBMITTED = enum.auto()
    ENDED = enum.auto()
    NODES = enum.auto()
    REQUEST = enum.auto()
    STARTED = enum.auto()
    REGISTERED = enum.auto()
    PROGRESS = enum.auto()
    TIME = enum.auto()
    RESCALED = enum.auto()


class Snapshot(msgspec.Struct, frozen=True):
    """All that a policy may know.

    Attributes
    ----------
    now_s : float
    nodes : Mapping[str, Node]
    jobs : tuple of Job
        The unfinished ones, by priority and order.
    cause : Cause
    memo : dict or None
        What the policy returned last time.
    busy : tuple of Job or None
        Those of the jobs that hold or are to have something; None: look at all of them.
    fragments : Fragments
        For how long nodes stayed that have left.
    leaving : bool
        Whether everything has to go, even what cannot save.
    """

    now_s: float
    nodes: Mapping[str, Node]
    jobs: tuple[Job, ...]
    cause: Cause
    memo: dict[str, Any] | None = None
    busy: tuple[Job, ...] | None = None
    fragments: Fragments = Fragments()
    leaving: bool = False


class Grant(msgspec.Struct, frozen=True):
    """GPUs for a job, the role that it plays with them, and why it gets no more."""

    alloc: Alloc
    role: Role
    why: str


class Target(msgspec.Struct, frozen=True):
    """A policy's answer.

    Attributes
    ----------
    grants : Mapping[str, Grant]
        Job id → what it should have.
    waits : Mapping[str, str]
        Job id → why it gets nothing.
    wake_s : float or None
        When the policy wants to be asked again, whatever happens.
    memo : dict or None
        JSON that the policy gets back next time.
    value, bound : float or None
        What the answer is worth by the policy's own objective, over the jobs whose size it could
        choose, and more than which no answer is: where a policy has such.
    """

    grants: Mapping[str, Grant] = msgspec.field(default_factory=dict)
    waits: Mapping[str, str] = msgspec.field(default_factory=dict)
    wake_s: float | None = None
    memo: dict[str, Any] | None = None
    value: float | None = None
    bound: float | None = None


class Kind(str, enum.Enum):
    """What an executor can be told to do."""

    START = "start"
    RESCALE = "rescale"
    SUSPEND = "suspend"
    KILL = "kill"


class Action(msgspec.Struct, frozen=True):
    """One thing for the executor to do.

    Executors carry out an action once however often it is given: after a restart the manager
    gives again those that were not answered.

    Attributes
    ----------
    kind : Kind
    job : str
    op : int
        The attempt it is about, by the operation that started it. Answers carry it.
    attempt : int
    alloc : Alloc
        START and RESCALE: GPUs per node to have afterwards.
    resize : int
        RESCALE only: number of this change of size within the attempt, from 1 on.
    force : bool
        KILL only: the polite way has failed.
    """

    kind: Kind
    job: str
    op: int
    attempt: int
    alloc: Alloc = msgspec.field(default_factory=dict)
    resize: int = 0
    force: bool = False
