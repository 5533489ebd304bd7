"""One simulated run of a job, as it truly is: what it occupies, and how far it got."""

from __future__ import annotations

import collections
import dataclasses
import enum

from hpcext.core.facts import Rescaled
from hpcext.core.values import Action, Alloc
from hpcext.sim.physics import Luck, Physics


class Phase(enum.Enum):
    """What a simulated attempt does at the moment."""

    LAUNCHING = enum.auto()
    TRAINING = enum.auto()
    STALLED = enum.auto()
    SAVING = enum.auto()
    BROKEN = enum.auto()
    OVER = enum.auto()


@dataclasses.dataclass(eq=False)
class Attempt:
    """One run of a job.

    Attributes
    ----------
    order : Action
        The start that made it.
    gpus : tuple of str
        What it occupies, as ``HOST:INDEX``.
    ranks : tuple of str
        Those of them that it trains on: fewer while it grows.
    phase : Phase
    turn : int
        Counts the changes of phase: what was planned in an earlier one comes to nothing.
    began : float
        Work that was done at `since_s`, when it began to train on these ranks.
    saved : float
        Work in the newest checkpoint, as of when it stopped training.
    done : float
        Work done, as of when it stopped training.
    registered, asked, reported : bool
        Its session is up; a suspension was asked for; what its start took was reported.
    resize : int
        Number of the newest change of size that it was asked for.
    answer : Rescaled or None
        What it said to that.
    """

    order: Action
    physics: Physics
    luck: Luck
    gpus: tuple[str, ...]
    ranks: tuple[str, ...] = ()
    phase: Phase = Phase.LAUNCHING
    turn: int = 0
    began: float = 0.0
    saved: float = 0.0
    done: float = 0.0
    since_s: float = 0.0
    registered: bool = False
    asked: bool = False
    reported: bool = False
    resize: int = 0
    answer: Rescaled | None = None

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.physics.rate(len(self.ranks))

    @property
    def left_s(self) -> float:
        """Seconds of training that are left, as of when it stopped or began to train."""
        return (self.physics.work - self.done) / self.rate

    def trained_to(self, now_s: float) -> float:
        """Work done by now, over all attempts."""
        if self.phase is not Phase.TRAINING:
            return self.done
        return min(self.physics.work, self.began + self.rate * (now_s - self.since_s))

    def saved_to(self, now_s: float) -> float:
        """Work in the newest checkpoint: a periodic one, or the one it began with."""
        every = self.physics.checkpoint_s
        if self.phase is not Phase.TRAINING or every is None or now_s - self.since_s < every:
            return self.saved
        return self.began + self.rate * every * ((now_s - self.since_s) // every)

    def train(self, now_s: float) -> None:
        """Go on, on the ranks that it has."""
        self.began, self.since_s = self.done, now_s
        self._enter(Phase.TRAINING)

    def stop(self, now_s: float, phase: Phase) -> None:
        """Stop training: note how far it got, and how far the newest periodic checkpoint did."""
        self.done, self.saved = self.trained_to(now_s), self.saved_to(now_s)
        self._enter(phase)

    def chosen(self, alloc: Alloc) -> tuple[str, ...]:
        """Of all that it occupies, as many GPUs of each node, those that it trains on first."""
        left = collections.Counter(alloc)
        picked = []
        for gpu in dict.fromkeys((*self.ranks, *self.gpus)):
            node = gpu.rpartition(":")[0]
            if left[node] > 0:
                left[node] -= 1
                picked.append(gpu)
        return tuple(picked)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.turn += 1
