"""The durations of a training's steps, by configuration, without those that are untypical."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from hpcext.training.adapt.configurations import Configuration, StepTimes

SKIPPED = 2
"""Steps after a change that are not timed, because they are untypically slow."""


class Timing:
    """The step times of one training on one kind of GPU.

    Attributes
    ----------
    whole : StepTimes
        Of steps without a measurement of the noise.
    halves : StepTimes
        Of measured steps, which one GPU made in two passes.
    last_s : float
        Mean duration of the steps that were added last; 0 before the first.
    fresh : bool
        Whether the present division of steps has not been timed yet.
    """

    def __init__(self) -> None:
        self.whole, self.halves = StepTimes(), StepTimes()
        self.last_s = 0.0
        self._window: list[float] = []
        self.change()

    def change(self) -> None:
        """Begin anew, with another division of steps."""
        self._skip, self._window, self.fresh = SKIPPED, [], True

    def timed(self, step_s: float) -> None:
        """Record the duration of a step without a measurement."""
        if not self._skips():
            self._window.append(step_s)

    def halved(self, step_s: float, half: Configuration) -> None:
        """Record the duration of a measured step in two passes.

        Parameters
        ----------
        step_s : float
        half : Configuration
            With half of the samples in a pass.
        """
        if not self._skips():
            self.halves.add(half, step_s)

    def add(self, way: Configuration) -> None:
        """Add the mean duration of the steps that were timed since the last call.

        Single steps are not meaningful on a GPU, which computes asynchronously.
        """
        if self._window:
            self.last_s, self.fresh = statistics.fmean(self._window), False
            self.whole.add(way, self.last_s)
        self._window = []

    def times(self) -> dict[Configuration, float]:
        """Return the seconds per step of each configuration.

        Measured steps include the cost of measuring, so their times are used only if there are
        no others.
        """
        times = self.whole.times()
        alone = len({way.per_gpu for way in times}) <= 1
        return times | self.halves.times() if alone else times

    def _skips(self) -> bool:
        skips = self._skip > 0
        self._skip -= skips
        return skips

    # In checkpoints.

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"profile": self.whole.state(), "halves": self.halves.state()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.whole.restore(saved["profile"])
        self.halves.restore(saved["halves"])
