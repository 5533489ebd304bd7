"""The true state of a simulated attempt of a job: the GPUs that it occupies, and its progress."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping

from msgspec.structs import replace

from hpcext.core.facts import Progressed, Rescaled
from hpcext.core.values import Action, Alloc
from hpcext.sim.replay.floor import node_of, nodes_of
from hpcext.sim.replay.physics import Luck, Physics, SelfReport, Stretch, Where

STILL = Stretch(0.0)
"""The stretch of an attempt that does not train."""


class Phase(enum.Enum):
    """The phase of a simulated attempt."""

    LAUNCHING = enum.auto()
    TRAINING = enum.auto()
    STALLED = enum.auto()
    SAVING = enum.auto()
    BROKEN = enum.auto()
    OVER = enum.auto()


@dataclasses.dataclass(eq=False)
class Attempt:
    """One attempt of a job.

    Attributes
    ----------
    order : Action
        The start action of the attempt.
    gpus : tuple of str
        GPUs that it occupies, as ``HOST:INDEX``.
    ranks : tuple of str
        GPUs that it trains on; fewer than it occupies while it grows.
    phase : Phase
    turn : int
        Number of changes of phase and of speed so far; events planned before a change are void.
    stretch : Stretch
        Its present stretch of constant speed.
    began, steps : float
        Work and optimizer steps done at `since_s`, when its stretch began.
    base : float
        Work done when it began to train on these ranks.
    trained_s : float
        Seconds that it had trained at `since_s`, over all its stretches.
    trained_gpu_s : float
        GPU-seconds that it had trained at `since_s`.
    held_s : float
        Time of the last change of the GPUs that it occupies.
    saved : float
        Work in the newest checkpoint, at `since_s`.
    done : float
        Work done when it stopped training.
    registered, asked, reported : bool
        Whether its session is up, a suspension was requested, and the cost of its start was
        reported.
    resize : int
        Number of the newest requested change of size.
    answer : Rescaled or None
        The answer to that request.
    """

    order: Action
    physics: Physics
    luck: Luck
    gpus: tuple[str, ...]
    ranks: tuple[str, ...] = ()
    phase: Phase = Phase.LAUNCHING
    turn: int = 0
    stretch: Stretch = STILL
    began: float = 0.0
    steps: float = 0.0
    trained_s: float = 0.0
    trained_gpu_s: float = 0.0
    held_s: float = 0.0
    saved: float = 0.0
    done: float = 0.0
    base: float = 0.0
    since_s: float = 0.0
    registered: bool = False
    asked: bool = False
    reported: bool = False
    resize: int = 0
    answer: Rescaled | None = None

    @property
    def until(self) -> float:
        """The work done at the end of the stretch."""
        return min(self.stretch.until, self.physics.work)

    @property
    def left_s(self) -> float:
        """The seconds that the stretch takes from its beginning."""
        return max(0.0, self.until - self.began) / self.stretch.rate

    def trained_to(self, now_s: float) -> float:
        """Return the work done by now, over all attempts."""
        if self.phase is not Phase.TRAINING:
            return self.done
        return min(self.until, self.began + self.stretch.rate * (now_s - self.since_s))

    def steps_to(self, now_s: float) -> float:
        """Return the steps done by now, over all attempts."""
        return self.steps + (self.trained_to(now_s) - self.began) / self.stretch.step_work

    def saved_to(self, now_s: float) -> float:
        """Return the work in the newest checkpoint: a periodic one, or that of its beginning."""
        every = self.physics.checkpoint_s
        if self.phase is not Phase.TRAINING or every is None:
            return self.saved
        if every == 0:
            return self.trained_to(now_s)
        last_s = (self.trained_s + now_s - self.since_s) // every * every
        if not last_s or last_s < self.trained_s:
            return self.saved
        return min(self.until, self.began + self.stretch.rate * (last_s - self.trained_s))

    def train(self, now_s: float, stretch: Stretch) -> None:
        """Begin a stretch of training on the present ranks."""
        if self.phase is Phase.TRAINING:
            self._note(now_s)
        else:
            self.base = self.done
        self.began, self.since_s, self.stretch = self.done, now_s, stretch
        self._enter(Phase.TRAINING)

    def stop(self, now_s: float, phase: Phase) -> None:
        """Stop training; record the progress, and the work in the newest periodic checkpoint.

        Parameters
        ----------
        now_s : float
        phase : Phase
            The phase that follows.
        """
        self._note(now_s)
        self.began, self.since_s = self.done, now_s
        self._enter(phase)

    def saved_steps(self) -> float:
        """Return the steps in the newest checkpoint at the end of training."""
        return max(0.0, self.steps - (self.done - self.saved) / self.stretch.step_work)

    def reached(self, now_s: float) -> Progressed:
        """Return its progress, in work and in steps."""
        done, saved, steps = self.trained_to(now_s), self.saved_to(now_s), self.steps_to(now_s)
        saved_steps = max(0.0, steps - (done - saved) / self.stretch.step_work)
        return Progressed(self.order.job, self.order.op, whole(steps), whole(saved_steps), done)

    def progress(self, now_s: float, said: SelfReport | None = None) -> Progressed:
        """Report its progress, its speed and its own report; record that it did.

        Parameters
        ----------
        now_s : float
        said : SelfReport or None
            The report of the training itself.
        """
        reached = self.reached(now_s)
        trained = reached.done > self.base
        first, self.reported = trained and not self.reported, self.reported or trained
        loss = said.loss if said else None
        return replace(
            reached,
            rate=self.stretch.rate if trained else None,
            metrics={"loss": loss} if loss is not None and math.isfinite(loss) else {},
            diverged=() if loss is None or math.isfinite(loss) else ("loss",),
            resume_s={"restore_s": self.physics.resume_s} if first else None,
            goodput=said.goodput if said else None,
        )

    def chosen(self, alloc: Alloc) -> tuple[str, ...]:
        """Return the GPUs of an allocation to use, those that it trains on first."""
        left = dict(alloc)
        picked = []
        for gpu in dict.fromkeys((*self.ranks, *self.gpus)):
            node = node_of(gpu)
            if left.get(node, 0) > 0:
                left[node] -= 1
                picked.append(gpu)
        return tuple(picked)

    def nodes(self) -> Mapping[str, int]:
        """Return the number of GPUs that it trains on, by node."""
        return nodes_of(self.ranks)

    def where(self, kind: str, *, crowded: bool) -> Where:
        """Return the placement that it trains on.

        Parameters
        ----------
        kind : str
            Kind of its GPUs.
        crowded : bool
            As in :class:`~hpcext.sim.replay.physics.Where`.
        """
        return Where(tuple(sorted(self.nodes().values(), reverse=True)), kind, crowded)

    def _note(self, now_s: float) -> None:
        """Record the progress in the stretch that ends."""
        self.saved, self.steps = self.saved_to(now_s), self.steps_to(now_s)
        self.done = self.trained_to(now_s)
        if self.phase is Phase.TRAINING:
            self.trained_s += now_s - self.since_s
            self.trained_gpu_s += len(self.ranks) * (now_s - self.since_s)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.turn += 1


def whole(steps: float) -> int:
    """Return the completed steps; one that lacks only a rounding error counts."""
    return math.floor(steps + 1e-6)
