"""Jobs: what users ask for, what is so, and what the current attempt does."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Union

import msgspec

from hpcext.core.estimate import Estimate
from hpcext.core.trials import Trial
from hpcext.core.values.nodes import Alloc, per_node, total

Late = tuple[tuple[str, ...], bool, Union[float, None], str]  # noqa: UP007  (read at run time)
"""GPUs, whether it has the size, the seconds that it cost, and why not: an answer to a change."""


class State(str, enum.Enum):
    """The states of a job, in the order of its life."""

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
        """Whether a job in this state stays in it, unless its user resumes one that has failed."""
        return self in _FINAL

    @property
    def active(self) -> bool:
        """Whether a job in this state holds GPUs."""
        return self in _ACTIVE


_FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
_ACTIVE = frozenset({State.STARTING, State.RUNNING, State.RESCALING, State.STOPPING})

_LEFT = frozenset({State.PENDING, *_FINAL})
"""States in which a job holds nothing."""

TRANSITIONS: Mapping[State, frozenset[State]] = {
    # Complete: its last attempt was, which is heard only after it lost its node.
    State.PENDING: frozenset({State.STARTING, State.COMPLETED, State.CANCELLED}),
    State.STARTING: _LEFT | {State.RUNNING, State.STOPPING},
    State.RUNNING: _LEFT | {State.RESCALING, State.STOPPING},
    State.RESCALING: _LEFT | {State.RUNNING, State.STOPPING},
    State.STOPPING: _LEFT | {State.RUNNING, State.RESCALING},
    **dict.fromkeys(_FINAL, frozenset()),
    State.FAILED: frozenset({State.PENDING}),
}
"""The one table of what may follow what."""


class Role(str, enum.Enum):
    """The roles of MARBLE §V-C: a primary has its best size, a secondary what was left."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


class Unsaved(msgspec.Struct, frozen=True):
    """A training's word that it cannot write a checkpoint.

    Attributes
    ----------
    why : str
        As "disk full".
    since_s : float
    waits : bool
        Its training is over, and it tries to write its last checkpoint.
    tries : int
        Suspensions in a row that it has declined.
    """

    why: str
    since_s: float
    waits: bool = False
    tries: int = 0


class Silence(msgspec.Struct, frozen=True):
    """The finding that a training does no step, for much longer than its steps took.

    Attributes
    ----------
    since_s : float
        When it was last heard of.
    step : int
        The last one that it reported.
    limit_s : float
        The silence that was waited for, in seconds.
    usual_s : float
        The 99th percentile of its steps, in seconds.
    """

    since_s: float
    step: int
    limit_s: float
    usual_s: float


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user's request to run a job.

    Attributes
    ----------
    id, name : str
    order : int
        Place in the queue among jobs of one priority.
    sizes : tuple of int
        GPU counts it may run on, ascending: on each of its nodes where `nodes` is set, else in all.
    optimal : int
        The size it runs best on.
    nodes : (int, int) or None
        The fewest and the most nodes that it runs on, with equally many GPUs on each. None: its
        GPUs may be spread in any way.
    stated : tuple of int
        `sizes` before the user asked for one size; empty if the user did not.
    stated_optimal : int
        `optimal` before the user asked for one size; 0 if the user did not.
    priority : float
        Higher goes first.
    weight : float
        How much its gain counts relative to that of other jobs, > 0.
    after : tuple of str
        Ids of jobs that must complete first.
    shares : bool
        Whether it may have a seat on a GPU that other jobs use as well.
    retries : int
        Failures in a row, without new progress between them, that are tried again.
    suspend_timeout_s : float
        Longest wait for the acknowledgement of a suspension, seconds.
    trial : Trial or None
        Its place in its sweep, if it belongs to one.
    hang : {"report", "restart", "ignore"}
        What is done when it seems to hang.
    hang_after_s : float
        The shortest silence after which it does, in seconds.
    walltime_s : float or None
        The longest time that an attempt takes, by its user's statement, in seconds; None: not
        stated. Policies may plan by it; no job is ended for it.
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
    trial: Trial | None = None
    hang: str = "report"
    hang_after_s: float = 60.0
    walltime_s: float | None = None


def size_of(job: Request, alloc: Alloc | None) -> int:
    """Count an allocation as the sizes of a job are counted; 0 where its nodes differ."""
    return total(alloc) if job.nodes is None else per_node(alloc or {})


def suits(job: Request, alloc: Alloc) -> bool:
    """Return whether a job can run on an allocation."""
    if job.nodes is None:
        return total(alloc) in job.sizes
    fewest, most = job.nodes
    return per_node(alloc) in job.sizes and fewest <= len(alloc) <= most


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a job's current attempt; of a job that has none, :data:`NO_RUN`.

    Attributes
    ----------
    registered : bool
        Whether it has a session that answers a suspension, or its command does by its own means.
    native : bool
        Whether its command does.
    in_place : bool
        Whether it can change its number of GPUs without stopping.
    elastic : bool
        Whether it can also change its nodes, and goes on when it loses some.
    resize : int
        Number of the last such change that was requested, from 1 on.
    resize_to : Alloc
        While it changes its size: what it is to have afterwards.
    resize_interrupted : Alloc
        The same while it is suspending in the middle of that.
    late : Late or None
        Its answer to that since then.
    unsaved : Unsaved or None
        That it cannot save, if that is so.
    declined : int
        Suspensions that it has declined so far: it went on, since it could not save.
    suspend_again_s : float or None
        After that: when a suspension may be requested again.
    degraded : bool
        It has lost a node, and was not given others since.
    kills : int
        How often it was killed.
    step_s : (float, float) or None
        The 99th percentile and the longest of its steps, as it says; None: too few to tell.
    heard_s, looked_s : float
        When it last reported progress; when it was last looked at because it did not.
    silence : Silence or None
        That it seems to hang, if it does.
    """

    registered: bool = False
    native: bool = False
    in_place: bool = False
    elastic: bool = False
    resize: int = 0
    resize_to: Alloc = msgspec.field(default_factory=dict)
    resize_interrupted: Alloc = msgspec.field(default_factory=dict)
    late: Late | None = None
    unsaved: Unsaved | None = None
    declined: int = 0
    suspend_again_s: float | None = None
    degraded: bool = False
    kills: int = 0
    step_s: Union[tuple[float, float], None] = None  # noqa: UP007  (read at run time)
    heard_s: float = 0.0
    looked_s: float = 0.0
    silence: Silence | None = None


NO_RUN = Run()


class Job(Request, frozen=True, omit_defaults=True):
    """A job as the engine sees it: its request, its current state, and its past attempts.

    Attributes
    ----------
    state : State
    goal : Alloc or None
        The last grant. Policies read this.
    held : Alloc
        The GPUs that are not acknowledged free. Reconcile reads this.
    gpus : tuple of str
        The GPUs behind `held`, as ``HOST:INDEX``, once the executor has said which.
    role : Role or None
    ready : bool
        Whether it may be granted anything: dependencies met, not on hold, not backing off.
    on_hold : bool
        Suspended by its user until resumed.
    hold_deferred : bool
        Its user has suspended it, and it has no session yet that could save its state: it is on
        hold from the moment that it has one, or that its attempt has ended.
    cancelling : bool
    verdict : str
        Why its sweep ends it; empty if it does not.
    why : str
        Why it waits or runs as it does, in one sentence.
    submitted_s, since_s : float
        When it was submitted; when it entered its state.
    deadline_s : float or None
        When a stopping job is killed, and one that changes its size is suspended.
    not_before_s : float
        It is not started before this instant (backing off after a failure).
    attempt : int
        Attempts so far.
    op : int
        The operation that started the current attempt; older answers are stale.
    run : Run
        The state of the current attempt.
    moves : int
        How often it was given other GPUs: starts after the first one, and changes in place.
    most_gpus : int
        The most GPUs that it was ever given.
    suspendable : bool
        False once a suspension went unanswered: it is not resized again.
    killed : bool
        Whether its last attempt was killed by its manager.
    failures : int
        Failures in a row without progress.
    failed_on : tuple of str
        Nodes of its last attempt, if that failed; placement avoids them.
    home : str
        The node where its processes are, suspended as they are; elsewhere it begins anew.
    home_work_s : float
        Seconds of work that these processes hold.
    home_until_s : float
        The instant until which it waits for that node, once it does; 0 before.
    step : int
        Last step reported, over all attempts.
    step_known : bool
        Whether the last attempt did no step after it.
    saved_step : int
        Step of the newest checkpoint that is known.
    estimate : Estimate
        Its stated and reported speed and work.
    """

    state: State = State.PENDING
    goal: Alloc | None = None
    held: Alloc = msgspec.field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    role: Role | None = None
    ready: bool = True
    on_hold: bool = False
    hold_deferred: bool = False
    cancelling: bool = False
    verdict: str = ""
    why: str = ""
    submitted_s: float = 0.0
    since_s: float = 0.0
    deadline_s: float | None = None
    not_before_s: float = 0.0
    attempt: int = 0
    op: int = 0
    run: Run = NO_RUN
    moves: int = 0
    most_gpus: int = 0
    suspendable: bool = True
    killed: bool = False
    failures: int = 0
    failed_on: tuple[str, ...] = ()
    home: str = ""
    home_work_s: float = 0.0
    home_until_s: float = 0.0
    step: int = 0
    step_known: bool = False
    saved_step: int = 0
    estimate: Estimate = Estimate()

    @property
    def done(self) -> bool:
        """Whether what waits for it may begin: it is complete, or its sweep has ended it."""
        ended = self.state is State.CANCELLED and bool(self.verdict)
        return ended or self.state is State.COMPLETED

    @property
    def sessionless(self) -> bool:
        """Whether it runs and has no session yet: to stop it now loses what its attempt did."""
        coming = self.state in {State.STARTING, State.RUNNING}
        return coming and not self.run.registered and not self.cancelling

    @property
    def has(self) -> int:
        """Its held GPUs, counted like its `sizes`; 0 if its nodes differ."""
        return size_of(self, self.held)
