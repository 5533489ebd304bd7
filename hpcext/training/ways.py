"""Ways to make a step of a training that adapts its batch, and how long each took.

No framework is needed.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

KEPT = 15
"""Times that are kept of a way to train. Their median stands for it, whatever a pause did."""

WAYS = 256
"""Ways to train that are kept, so that a checkpoint stays small."""


class Split(NamedTuple):
    """How the samples of a step are divided.

    Attributes
    ----------
    total : int
        Of all GPUs.
    per_gpu : int
        Most samples of a GPU in a pass.
    """

    total: int
    per_gpu: int

    def passes(self, gpus: int) -> int:
        """Of a GPU in a step."""
        return ceil(ceil(self.total, gpus), self.per_gpu)


class Bounds(NamedTuple):
    """What a user allows; fields as those of :class:`hpcext.core.estimate.GoodputReport`."""

    initial_batch: int
    most_batch: int
    least_per_gpu: int = 1
    most_per_gpu: int | None = None
    accumulates: bool = True

    def split(self, total: int, gpus: int, tried: int | None = None) -> Split:
        """A total batch on so many GPUs, or the next one that these bounds allow.

        With `tried`, so many samples of a GPU in a pass are known to have room.
        """
        total = min(max(total, self.initial_batch, self.least_per_gpu * gpus), self.most_batch)
        room = self.most_per_gpu
        if tried is not None:
            room = tried if room is None else min(tried, room)
        if room is not None and not self.accumulates:
            # One that was chosen for more GPUs. The initial batch is taken in passes if need be.
            total = max(self.initial_batch, min(total, room * gpus))
        share = ceil(total, gpus)
        passes = 1 if room is None else ceil(share, room)
        return Split(total, ceil(share, passes))


class Way(NamedTuple):
    """A way to train whose steps were timed."""

    gpus: int
    nodes: int
    per_gpu: int
    accumulation: int


class Profile:
    """Seconds of a step, by the way it was made."""

    def __init__(self) -> None:
        self._times: dict[Way, list[float]] = {}

    def add(self, way: Way, step_s: float) -> None:
        """Take a time in, if it is one."""
        if not (math.isfinite(step_s) and step_s > 0):
            return
        times = self._times.pop(way, [])
        # The newest last: the oldest way goes first.
        self._times[way] = [*times[1 - KEPT :], step_s]
        if len(self._times) > WAYS:
            del self._times[next(iter(self._times))]

    def times(self) -> dict[Way, float]:
        """The time of each way."""
        return {way: statistics.median(times) for way, times in self._times.items()}

    def state(self) -> list[Any]:
        """As JSON values."""
        return [[list(way), times] for way, times in self._times.items()]

    def restore(self, saved: list[Any]) -> None:
        """Go on from what :meth:`state` gave."""
        self._times = {Way(*way): list(times) for way, times in saved}


def ceil(above: int, below: int) -> int:
    """A quotient of whole numbers, rounded up."""
    return -(-above // below)
