"""Records: the history of a job that reports are made of."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hpcext.core.history.losses import Point
from hpcext.core.values.job import Role


class Loss(msgspec.Struct, frozen=True):
    """The work that an attempt did and no checkpoint has.

    Attributes
    ----------
    at_s : float
        When the attempt ended, or the next one found its newest checkpoint gone.
    steps : int
    exact : bool
        False: there may have been more.
    from_step : int
        The newest checkpoint, from which the job goes on.
    why : str
    seconds : float or None
        Of a command without a session, whose steps are not known: the time of its work.
        Not exact: the most that it can be.
    anew : bool
        Whether it begins anew, without a checkpoint of its own.
    """

    at_s: float
    steps: int
    exact: bool
    from_step: int
    why: str
    seconds: float | None = None
    anew: bool = False


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
    """The history of a job so far.

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
    lost_s, lost_s_exact : float
        Seconds of work that no checkpoint had when a command that saves by its own means ended, and
        how many of them are known to be lost; the rest is the most that it can be.
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
        The notes of its last attempt for its user.
    hangs : int
        How often it was found to hang.
    own_saves : int
        Attempts whose command saved by its own means, as far as anybody can say.
    orphans : tuple of (str, int)
        Nodes that were lost, and the attempts that may still run there.
    unread : (int, float)
        Operation of the attempt that lost its last node before its end was read, 0 for none; and
        how many seconds of `lost_s` are what it was taken to have lost.
    """

    segments: tuple[Segment, ...] = ()
    suspends: int = 0
    rescales: int = 0
    lost_steps: int = 0
    lost_exact: int = 0
    lost_s: float = 0.0
    lost_s_exact: float = 0.0
    loss: Loss | None = None
    exit_code: int | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    rungs: Mapping[int, float | None] = msgspec.field(default_factory=dict)
    curve: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()
    orphans: tuple[tuple[str, int], ...] = ()
    hangs: int = 0
    own_saves: int = 0
    unread: tuple[int, float] = (0, 0.0)
