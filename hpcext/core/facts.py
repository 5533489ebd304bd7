"""The facts that an engine receives. Each is one entry of the journal."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Union

import msgspec

from hpcext.core.difference import SAME, Difference
from hpcext.core.estimate import GoodputReport
from hpcext.core.values import Alloc, Job, Node, Role


class NodeJoined(msgspec.Struct, frozen=True, tag="node_joined"):
    """A node may be used from now on; with 0 GPUs, what runs there has to leave."""

    node: Node


class NodeLost(msgspec.Struct, frozen=True, tag="node_lost"):
    """A node is gone, with everything that ran on it.

    Attributes
    ----------
    name : str
    unneeded : bool
        It was given back, not taken away.
    gone : bool
        It was one of a fixed set, and neither it nor another one comes in its place.
    """

    name: str
    unneeded: bool = False
    gone: bool = False


class Cleared(msgspec.Struct, frozen=True, tag="cleared"):
    """The processes that an attempt had left on a lost node have ended."""

    job: str
    attempt: int
    node: str


class SetAside(msgspec.Struct, frozen=True, tag="set_aside"):
    """A node is not to be used until it is readmitted, by a user's word: what runs there leaves."""

    node: str
    why: str


class Readmitted(msgspec.Struct, frozen=True, tag="readmitted"):
    """A node that was set aside may be used again."""

    node: str


class Submitted(msgspec.Struct, frozen=True, tag="submitted"):
    """A job was submitted."""

    job: Job


class Started(msgspec.Struct, frozen=True, tag="started"):
    """An attempt is running on these GPUs (``HOST:INDEX``)."""

    job: str
    op: int
    gpus: tuple[str, ...]


class Registered(msgspec.Struct, frozen=True, tag="registered"):
    """An attempt has a session, which has resumed at `step` and answers suspensions.

    With `in_place` it can also change its number of GPUs without stopping; if that becomes clear
    only later, the same fact comes again. With `elastic` it can change its nodes as well, and goes
    on with the others when it loses some. With `native` it has no session, and no steps are known
    of it: its command saves by its own means.
    """

    job: str
    op: int
    step: int
    in_place: bool = False
    elastic: bool = False
    native: bool = False


class Rescaled(msgspec.Struct, frozen=True, tag="rescaled"):
    """An attempt has changed its size, or could not: the answer to a RESCALE.

    Attributes
    ----------
    resize : int
        That of the action that it answers.
    gpus : tuple of str
        All GPUs that it has now, as ``HOST:INDEX``; after a failure those that it had before.
    ok : bool
        Whether it has the size that was requested.
    stall_s : float or None
        Seconds without progress that it cost.
    why : str
        Why it failed.
    """

    job: str
    op: int
    resize: int
    gpus: tuple[str, ...]
    ok: bool = True
    stall_s: float | None = None
    why: str = ""


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """An attempt has reported progress.

    Attributes
    ----------
    step, saved_step : int
        Last step done, and step of the newest checkpoint.
    done : float
        Work done since the job began, in the unit of its ``work``.
    rate : float or None
        Work per second of late.
    metrics : Mapping[str, float]
    resume_s : Mapping[str, float] or None
        Once per attempt, when its first step is done: the parts of its start.
    goodput : GoodputReport or None
        The training's own report of its goodput, if it makes one.
    diverged : tuple of str
        Metrics that are no finite numbers any more.
    rungs : Mapping[int, Mapping[str, float or None]]
        Of a trial: step of a rung that it came to → its metrics there, None for what is no number.
    step_s : (float, float) or None
        The 99th percentile and the longest of its steps in this attempt, in seconds.
    """

    job: str
    op: int
    step: int
    saved_step: int = 0
    done: float = 0.0
    rate: float | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    resume_s: Mapping[str, float] | None = None
    goodput: GoodputReport | None = None
    diverged: tuple[str, ...] = ()
    rungs: Mapping[int, Mapping[str, float | None]] = msgspec.field(default_factory=dict)
    step_s: Union[tuple[float, float], None] = None  # noqa: UP007  (read at run time)


class Silent(msgspec.Struct, frozen=True, tag="silent"):
    """An attempt was looked at, and does no step, nor anything else that it would say.

    The answer to an INSPECT; there is none if it does something.
    """

    job: str
    op: int


class NotSaved(msgspec.Struct, frozen=True, tag="not_saved"):
    """An attempt says that it cannot save, or that it can again.

    Attributes
    ----------
    why : str
        As "disk full"; empty: it can.
    declined : int
        Suspensions that it has declined so far: it went on.
    waits : bool
        Its training is over, and it tries to write its last checkpoint.
    """

    job: str
    op: int
    why: str
    declined: int = 0
    waits: bool = False


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """An attempt has said something besides its progress.

    Attributes
    ----------
    notes : tuple of str
        All that the attempt has told its user so far, each note a sentence on one line.
    metrics : Mapping[str, float]
        As in :class:`Progressed`, of an attempt whose session has not registered.
    """

    job: str
    op: int
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)


class Outcome(str, enum.Enum):
    """The ways in which an attempt can end."""

    COMPLETED = "completed"
    SUSPENDED = "suspended"
    FAILED = "failed"
    LOST = "lost"
    EVICTED = "evicted"


class Ended(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended"):
    """The process tree of an attempt is empty: its GPUs are free.

    Attributes
    ----------
    outcome : Outcome
        LOST: it is unknown how it ended (supervisor killed). EVICTED: the batch system took what
        it ran on before it could save itself, the machine restarted, or what it needs there (a
        process, a daemon of MPS) could not be had. No fault of its own.
    exit_code : int or None
        Negative for a signal, as in :mod:`subprocess`.
    suspend_s : Mapping[str, float] or None
        SUSPENDED only: the parts of the suspension, seconds.
    why : str
        What a person should know of it, if anything.
    step : int or None
        The last step that it did, where that is known exactly.
    lost_s : float or None
        Of a command that saves by its own means: seconds of its work that no checkpoint has. None:
        it has a session, or nothing can be said.
    lost_exact : bool
        False: nothing is known of its checkpoints, and `lost_s` is the most that it can be.
    saved : bool
        Whether such a command is known to have saved.
    anew : bool
        Whether such a command begins anew, without a checkpoint.
    kept_s : float
        Seconds of work that its processes hold, which are on its node as they were; elsewhere it
        begins anew. 0: it can go on anywhere.
    broken_gpus : Mapping[str, str]
        FAILED only: node → what its driver says is wrong with the GPUs that the attempt had there.
    never_ran : bool
        Its command was not begun, perhaps because something is wrong with its node. FAILED: its
        working directory was not there.
    """

    job: str
    op: int
    outcome: Outcome
    exit_code: int | None = None
    suspend_s: Mapping[str, float] | None = None
    why: str = ""
    step: int | None = None
    lost_s: float | None = None
    lost_exact: bool = True
    saved: bool = False
    anew: bool = False
    kept_s: float = 0.0
    broken_gpus: Mapping[str, str] = {}
    never_ran: bool = False


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """A user suspends a job: it is on hold until it is released."""

    job: str


class Release(msgspec.Struct, frozen=True, tag="release"):
    """A user resumes a job: it is not on hold any more."""

    job: str


class Retried(msgspec.Struct, frozen=True, tag="retried"):
    """A user resumes a job that has failed: it waits, and goes on from its newest checkpoint."""

    job: str


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """A user requests exactly so many GPUs for a job; 0: on as many as its job file states."""

    job: str
    gpus: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """A user cancels a job."""

    job: str


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """No more jobs may start; running jobs may finish, or are suspended if `suspend`.

    With `must` it has to go even if it cannot save: the allocation ends.

    Attributes
    ----------
    suspend : bool
        In journals it is ``stop``, as release 0.1.0 called it.
    left_s : float or None
        Seconds until that end, where something has yet to be done before it: what does not answer
        is killed early enough for that. None: it may take as long as it is allowed to.
    """

    suspend: bool = msgspec.field(default=False, name="stop")
    must: bool = False
    left_s: float | None = None


class Began(msgspec.Struct, frozen=True, omit_defaults=True, tag="began"):
    """A manager has begun to run: a drain that stopped the last one is over.

    Attributes
    ----------
    again : bool
        In a job of the batch system that was put back into the queue. What its user has drained
        stays so: that job was to end.
    """

    again: bool = False


class Granted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The GPUs that a job is to have from now on.

    Attributes
    ----------
    alloc : Alloc or None
        None: nothing.
    role : Role or None
        None: the role is unchanged.
    why : str
        Why it gets no more.
    """

    alloc: Alloc | None = None
    role: Role | None = None
    why: str = ""


class Decided(msgspec.Struct, frozen=True, tag="decided", omit_defaults=True):
    """The policy has answered, and this changes by it; or its answer is not followed.

    Attributes
    ----------
    number : int
        The number of the question; 0: the policy did not have to be asked.
    jobs : Mapping[str, Granted]
        Jobs whose grant differs from the previous one.
    whys : Mapping[str, tuple of str]
        Sentence → other jobs for which it now explains why they wait or run as they do.
    memo : Difference
        How the policy's memo has changed.
    wake_s : float or None
        When the policy must be asked again at the latest.
    failed : str
        Why the decision is not followed, or why there is none; everything then stays as it was.
    """

    number: int
    jobs: Mapping[str, Granted] = msgspec.field(default_factory=dict)
    whys: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    memo: Difference = SAME
    wake_s: float | None = None
    failed: str = ""


Fact = Union[  # noqa: UP007  (msgspec reads the union at run time, on 3.10 too)
    NodeJoined, NodeLost, Cleared, SetAside, Readmitted, Submitted, Started, Registered, Rescaled,
    Progressed, Silent, Noted, NotSaved, Ended,
    Hold, Release, Retried, Resize, Cancel, Drain, Began, Decided,
]  # fmt: skip
