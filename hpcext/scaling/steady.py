"""The steady speed of a training, from its progress reports, without the warm-up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

WINDOWS = 5
"""Fewest windows for a steady speed."""

STEADY = 0.02
"""Largest relative half-width of a steady speed's interval: speeds that differ by less are equal
for a scheduler (:data:`hpcext.scaling.curve.NEAR_BEST`)."""

STUDENT_T = 2.776
"""Two-sided 95 % quantile with 4 degrees of freedom; conservative for more than five windows."""


class Mark(NamedTuple):
    """The progress of a training at an instant: seconds on any clock, steps, work."""

    at_s: float
    step: int
    done: float


class Speed(NamedTuple):
    """The speed by a series of marks.

    Attributes
    ----------
    steps_per_s, done_per_s : float
    seconds : float
        Length of the part on which it was measured.
    half_width : float
        Half-width of the 95 % interval, relative to the speed; infinite on fewer than `WINDOWS`
        windows.
    """

    steps_per_s: float
    done_per_s: float
    seconds: float
    half_width: float

    @property
    def steady(self) -> bool:
        """Whether the speed is known precisely enough for a scheduler."""
        return self.half_width <= STEADY


def speed(marks: Sequence[Mark]) -> Speed | None:
    """Return the speed in the later half of a series.

    The earlier half is the warm-up: however long that really is (autotuning, caches, a file system
    that wakes up), the later half no longer contains it as the series grows.

    Parameters
    ----------
    marks : sequence of Mark
        Instants and steps both increase.

    Returns
    -------
    Speed or None
        None if there are fewer than two marks in the later half.

    Examples
    --------
    >>> speed([Mark(0, 1, 1), Mark(9, 2, 2), Mark(10, 6, 6)])
    Speed(steps_per_s=4.0, done_per_s=4.0, seconds=1, half_width=inf)
    """
    later = marks[(len(marks) - 1) // 2 :]
    if len(later) < 2:
        return None
    first, last = later[0], later[-1]
    seconds = last.at_s - first.at_s
    steps_per_s = (last.step - first.step) / seconds
    rates = [(b.step - a.step) / (b.at_s - a.at_s) for a, b in pairwise(later)]
    half_width = math.inf
    if len(rates) >= WINDOWS:
        half_width = STUDENT_T * statistics.stdev(rates) / math.sqrt(len(rates)) / steps_per_s
    return Speed(steps_per_s, (last.done - first.done) / seconds, seconds, half_width)
