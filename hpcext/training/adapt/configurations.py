"""Configurations of a step of a training that adapts its batch, and the time of each.

No framework is needed.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

KEPT = 15
"""Number of newest times kept for a configuration. Their median represents it, so that a pause does
not matter."""

WAYS = 256
"""Largest number of configurations to keep, so that a checkpoint stays small."""


class Split(NamedTuple):
    """The division of a step's samples.

    Attributes
    ----------
    total : int
        Samples of all GPUs in a step.
    per_gpu : int
        Largest number of samples on a GPU in a pass.
    """

    total: int
    per_gpu: int

    def passes(self, gpus: int) -> int:
        """Return the number of passes of a GPU in a step."""
        return ceil(ceil(self.total, gpus), self.per_gpu)


class BatchBounds(NamedTuple):
    """The user's bounds on batches; fields as in :class:`hpcext.core.estimate.GoodputReport`."""

    initial_batch: int
    most_batch: int
    least_per_gpu: int = 1
    most_per_gpu: int | None = None
    accumulates: bool = True

    def split(self, total: int, gpus: int, tried: int | None = None) -> Split:
        """Split a total batch over GPUs, or the nearest batch that these bounds allow.

        Parameters
        ----------
        total : int
            Samples in a step.
        gpus : int
        tried : int, optional
            Samples on a GPU in a pass that are known to fit in its memory.
        """
        total = min(max(total, self.initial_batch, self.least_per_gpu * gpus), self.most_batch)
        room = self.most_per_gpu
        if tried is not None:
            room = tried if room is None else min(tried, room)
        if room is not None and not self.accumulates:
            # The batch was chosen for more GPUs. The initial batch takes several passes if
            # necessary.
            total = max(self.initial_batch, min(total, room * gpus))
        share = ceil(total, gpus)
        passes = 1 if room is None else ceil(share, room)
        return Split(total, ceil(share, passes))


class Configuration(NamedTuple):
    """A configuration of a step: GPUs, nodes, samples on a GPU in a pass, further passes."""

    gpus: int
    nodes: int
    per_gpu: int
    accumulation: int


class StepTimes:
    """Seconds per step, by configuration."""

    def __init__(self) -> None:
        self._times: dict[Configuration, list[float]] = {}

    def add(self, way: Configuration, step_s: float) -> None:
        """Add the time of a step, if it is positive and finite."""
        if not (math.isfinite(step_s) and step_s > 0):
            return
        times = self._times.pop(way, [])
        # The newest configuration is last; the oldest is dropped first.
        self._times[way] = [*times[1 - KEPT :], step_s]
        if len(self._times) > WAYS:
            del self._times[next(iter(self._times))]

    def times(self) -> dict[Configuration, float]:
        """Return the median time of each configuration, in seconds."""
        return {way: statistics.median(times) for way, times in self._times.items()}

    def state(self) -> list[Any]:
        """Return the state as JSON values."""
        return [[list(way), times] for way, times in self._times.items()]

    def restore(self, saved: list[Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._times = {Configuration(*way): list(times) for way, times in saved}


def ceil(above: int, below: int) -> int:
    """Return the quotient of two integers, rounded up."""
    return -(-above // below)
