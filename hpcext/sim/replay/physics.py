"""The true behaviour of jobs on a virtual clock, which policies never see.

Policies learn the speed of a job from the progress that it reports, as on a real machine;
:class:`Physics` generates those reports.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from hpcext.core.estimate import GoodputReport
from hpcext.scaling.curve import interpolate


class Where(NamedTuple):
    """The placement of a job.

    Attributes
    ----------
    gpus : tuple of int
        GPUs on each of its nodes, descending.
    kind : str
        Their kind, as in :class:`~hpcext.core.values.Node`.
    crowded : bool
        Whether it is on several nodes and shares one of them with another such job.
    """

    gpus: tuple[int, ...]
    kind: str = ""
    crowded: bool = False

    @property
    def total(self) -> int:
        """The number of GPUs on all nodes."""
        return sum(self.gpus)


class Stretch(NamedTuple):
    """A stretch of work at constant speed.

    Attributes
    ----------
    rate : float
        Work per second, > 0.
    until : float
        Work done at which the speed changes; infinite if it does not.
    step_work : float
        Work of an optimizer step, > 0.
    """

    rate: float
    until: float = math.inf
    step_work: float = 1.0


class SelfReport(NamedTuple):
    """The reports of a training besides its progress."""

    goodput: GoodputReport | None = None
    loss: float | None = None


class TrueSpeed(Protocol):
    """The true speed of a job that is not described by a curve.

    It belongs to one job and may have a state: it stands for the user's training process, which
    may, for example, choose its batch by itself.
    """

    def stretch(self, where: Where, done: float) -> Stretch:
        """Return the next stretch of a job that has done this work.

        It is called whenever the job begins to train on another placement, at the end of a stretch,
        and after each report.

        Parameters
        ----------
        where : Where
            Its placement.
        done : float
            Work done.
        """
        ...

    def said(self, where: Where, done: float) -> SelfReport:
        """Return the job's own report.

        Parameters
        ----------
        where : Where
            Its placement.
        done : float
            Work done.
        """
        ...

    def alone_s(self, gpus: float, per_node: int) -> float:
        """Return the seconds of the whole job alone on GPUs of such nodes, without restarts.

        It runs as fast as possible. Speed is interpolated linearly between whole numbers of GPUs,
        and below one GPU it is proportional.

        Parameters
        ----------
        gpus : float
            Number of GPUs, > 0.
        per_node : int
            GPUs of a node.
        """
        ...


class Physics(msgspec.Struct, frozen=True):
    """The true behaviour of one job.

    Attributes
    ----------
    speed : Mapping[int, float] or TrueSpeed
        Work per second by number of GPUs, > 0; interpolated by
        :func:`~hpcext.scaling.curve.interpolate`.
    work : float
        Work of the whole job, > 0.
    launch_s : float
        Seconds from the start action until the attempt runs.
    resume_s : float
        Seconds from then until its session has restored the newest checkpoint.
    suspend_s : float
        Seconds from the signal until the processes are gone: agreement, checkpoint, exit.
    leave_s : float
        Seconds from its last step until the processes are gone.
    checkpoint_s : float or None
        Training time between periodic checkpoints; 0: no work is ever lost; None: only a suspension
        saves.
    in_place : bool
        Whether it can change its number of GPUs without stopping.
    elastic : bool
        Whether it can also change its nodes, and goes on when it loses some.
    join_s : float
        Seconds from the order to grow in place until the new ranks are up, while it trains.
    rescale_up_s, rescale_down_s : float
        Seconds without progress when it then grows in place, and when it shrinks.
    interference : float
        Share of its speed that it loses on crowded nodes (:class:`Where`).

    Raises
    ------
    ValueError
        A speed, the work or a cost is out of range.
    """

    speed: Mapping[int, float] | TrueSpeed
    work: float
    launch_s: float = 0.0
    resume_s: float = 0.0
    suspend_s: float = 0.0
    leave_s: float = 0.0
    checkpoint_s: float | None = None
    in_place: bool = False
    elastic: bool = False
    join_s: float = 0.0
    rescale_up_s: float = 0.0
    rescale_down_s: float = 0.0
    interference: float = 0.0

    def __post_init__(self) -> None:
        curve = self.speed
        if isinstance(curve, Mapping) and not (
            curve and all(gpus > 0 and 0 < speed < math.inf for gpus, speed in curve.items())
        ):
            raise ValueError(f"speed={curve}: needs at least one point, all above zero")
        if not 0 < self.work < math.inf:
            raise ValueError(f"work={self.work}: must be above zero")
        costs = (
            "launch_s", "resume_s", "suspend_s", "leave_s", "join_s", "rescale_up_s",
            "rescale_down_s",
        )  # fmt: skip
        for name in costs:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: must not be negative")
        if self.checkpoint_s is not None and not 0 <= self.checkpoint_s < math.inf:
            raise ValueError(f"checkpoint_s={self.checkpoint_s}: must not be negative")
        if not 0 <= self.interference < 1:
            raise ValueError(f"interference={self.interference}: must be from 0 to less than 1")

    def stretch(self, where: Where, done: float) -> Stretch:
        """Return the next stretch of the job, after it has done this work.

        Examples
        --------
        >>> Physics({2: 4.0, 4: 6.0}, work=1).stretch(Where((2, 1)), 0.0)
        Stretch(rate=5.0, until=inf, step_work=1.0)
        """
        if isinstance(self.speed, Mapping):
            found = Stretch(interpolate(self.speed, where.total))
        else:
            found = self.speed.stretch(where, done)
        return found._replace(rate=found.rate * (1 - self.interference)) if where.crowded else found

    def said(self, where: Where, done: float) -> SelfReport:
        """Return the job's own report besides its progress: nothing."""
        return SelfReport() if isinstance(self.speed, Mapping) else self.speed.said(where, done)


class Faults(msgspec.Struct, frozen=True):
    """The faults that occur, and their frequency; by default there are none.

    Attributes
    ----------
    fail_s : float or None
        Mean training time until an attempt fails.
    unstarted : float
        Share of attempts that end before they run (for example because a disk is full).
    unresponsive : float
        Share of attempts that never answer a suspension.
    stubborn : float
        Share of attempts that end only when they are killed.
    late_s : float
        Longest time from an end until it becomes known.
    repeat : float
        Share of facts that arrive a second time later, stale by then, or duplicated.
    unscaled : float
        Share of in-place changes of size that fail; the attempt goes on as it was.
    mute : float
        Share of in-place changes of size that are neither answered nor made.
    until_s : float
        Attempts that start later have no fault.
    """

    fail_s: float | None = None
    unstarted: float = 0.0
    unresponsive: float = 0.0
    stubborn: float = 0.0
    late_s: float = 0.0
    repeat: float = 0.0
    unscaled: float = 0.0
    mute: float = 0.0
    until_s: float = math.inf

    def draw(self, seed: int, job: str, attempt: int, now_s: float) -> Luck:
        """Draw the faults of one attempt.

        They depend only on the seed, the job and the attempt, so that other policies meet the same
        faults.

        Parameters
        ----------
        seed : int
        job : str
        attempt : int
        now_s : float
            Start of the attempt.
        """
        if now_s > self.until_s:
            return Luck()
        source = random.Random(f"{seed}/{job}/{attempt}")
        return Luck(
            starts=source.random() >= self.unstarted,
            unresponsive=source.random() < self.unresponsive,
            stubborn=source.random() < self.stubborn,
            late_s=source.uniform(0.0, self.late_s),
            fails_after_s=source.expovariate(1 / self.fail_s) if self.fail_s else None,
            repeats_after_s=source.uniform(0.0, 60.0) if source.random() < self.repeat else None,
        )

    def draw_change(
        self, seed: int, job: str, attempt: int, resize: int, now_s: float
    ) -> ResizeOutcome:
        """Draw the outcome of an in-place change of size; it also depends on its number.

        Parameters
        ----------
        seed : int
        job : str
        attempt : int
        resize : int
            Number of the change.
        now_s : float
        """
        if now_s > self.until_s:
            return ResizeOutcome.MADE
        chance = random.Random(f"{seed}/{job}/{attempt}/{resize}").random()
        if chance < self.mute:
            return ResizeOutcome.MUTE
        return ResizeOutcome.FAILED if chance < self.mute + self.unscaled else ResizeOutcome.MADE


class ResizeOutcome(enum.Enum):
    """The outcome of an in-place change of size; see :class:`Faults`."""

    MADE = enum.auto()
    FAILED = enum.auto()
    MUTE = enum.auto()


class Luck(msgspec.Struct, frozen=True):
    """The faults of one attempt; see :class:`Faults`."""

    starts: bool = True
    unresponsive: bool = False
    stubborn: bool = False
    late_s: float = 0.0
    fails_after_s: float | None = None
    repeats_after_s: float | None = None
