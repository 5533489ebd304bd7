"""The place of a training in its epochs, as a checkpoint records it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

BEFORE, EPOCH, AFTER = "before", "epoch", "after"
"""Phases of a script: before, in and after the loop over epochs."""


@dataclasses.dataclass
class Position:
    """The place of a training in its epochs.

    Attributes
    ----------
    phase : {"before", "epoch", "after"}
    epoch : int
        Epoch of the loop, from 0; after the loop, the number of epochs.
    batch : int
        Number of batches that each rank has consumed in this epoch.
    samples : int
        Position of a :class:`~hpcext.training.data.sampler.ResumableSampler` in the epoch.
    carried : int
        Number of samples of the previous epoch with which this one begins.
    trained : bool
        Whether the loop over this epoch's batches has ended.
    validation : int
        Number of the validation that is running, from 1 in each epoch; 0 if none is.
    rest : int
        Number of samples that this epoch leaves to the next one, once it is trained.
    """

    phase: str = BEFORE
    epoch: int = 0
    batch: int = 0
    samples: int = 0
    carried: int = 0
    trained: bool = False
    validation: int = 0
    rest: int = 0

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Position:
        """Return the place that a manifest records."""
        # Release 0.1 does not record what is left.
        recorded = {"rest": 0, **manifest}
        return cls(**{field.name: recorded[field.name] for field in dataclasses.fields(cls)})

    def as_dict(self) -> dict[str, Any]:
        """Return the place as JSON values."""
        return dataclasses.asdict(self)
