"""The loop of a training: its place in the epochs and in the data, and its present step."""

from __future__ import annotations

from collections.abc import Callable

from hpcext.training.batching import ElasticBatches
from hpcext.training.checkpoint.position import BEFORE, Position
from hpcext.training.data.sampler import Walk
from hpcext.training.data.undivided import Observation


class Loop:
    """The loop of an attempt.

    Attributes
    ----------
    place : Position
        The place that a checkpoint records.
    phase : str
        Phase of the script. It is BEFORE until a training has begun, and remains so if its making
        failed.
    epochs : int
        Number of epochs in all.
    walks : list of Walk
        Samplers and batches that the session has made, which follow the number of ranks.
    batches : ElasticBatches or None
        The batches that are being read, if they follow the number of ranks.
    turns : int
        Number of the present step's batch in this iteration over a loader, from 1.
    validations : int
        Number of validations begun in this phase.
    validates : bool
        Whether this attempt has begun a validation.
    stepped : bool
        Whether this attempt has made a step.
    seen : Observation or None
        Observations of this rank in its first step, to be compared with other ranks.
    """

    def __init__(self) -> None:
        self.place = Position()
        self.phase = BEFORE
        self.epochs = 0
        self.walks: list[Walk] = []
        self.batches: ElasticBatches | None = None
        self.turns = 0
        self.validations = 0
        self.validates = False
        self.stepped = False
        self.seen: Observation | None = None
        self._position: Callable[[int], int] | None = None

    @property
    def in_step(self) -> bool:
        """Whether a step is running."""
        return self._position is not None

    def enter(self, phase: str) -> None:
        """Enter a phase of the script."""
        self.phase, self.validations = phase, 0

    def begin_step(self, position: Callable[[int], int], turns: int) -> None:
        """Begin a step.

        Parameters
        ----------
        position : callable
            Maps batches of this iteration to the position in the epoch.
        turns : int
            Number of batches in this iteration, including that of the step.
        """
        self._position, self.turns = position, turns

    def abandon_step(self) -> None:
        """End the present step, if there is one, as if it had not been made."""
        self._position = None

    def end_step(self) -> int:
        """End the present step; return the number of samples by which the position has moved."""
        assert self._position is not None
        before, self.place.samples = self.place.samples, self._position(self.turns)
        self.place.batch += 1
        self._position = None
        self.stepped = True
        return self.place.samples - before

    def weight(self) -> float:
        """Return the weight of this rank's mean gradient in this step."""
        return 1.0 if self.batches is None else self.batches.weight(self.turns - 1)

    def samples(self) -> int:
        """Return the number of samples of all ranks in this step."""
        assert self.batches is not None
        return self.batches.consumed(self.turns) - self.batches.consumed(self.turns - 1)
