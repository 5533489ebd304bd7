"""The cost of a change of the number of ranks: seconds without progress."""

from __future__ import annotations

import statistics
import time
from collections import deque

_WINDOW = 64
"""Number of steps of the median: more than a new rank takes to start, which slows others down on
busy cores."""


class Stall:
    """The measurement of stalls, from the boundaries between steps.

    The cost of a change is the time from the last boundary before it to the first one after it,
    minus the median time of the last steps.
    """

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_WINDOW)
        self._last_s: float | None = None
        self._changing = False

    def boundary(self) -> float | None:
        """End a step; return the cost of a change in seconds, if one was running."""
        now_s = time.perf_counter()
        taken_s = now_s - self._last_s if self._last_s is not None else None
        self._last_s = now_s
        if taken_s is None:
            return None
        if self._changing:
            return self._cost(taken_s)
        self._steps.append(taken_s)
        return None

    def begin(self) -> None:
        """Begin a change of ranks at the last boundary."""
        self._changing = True

    def end(self) -> float | None:
        """End a change that no step follows; return its cost in seconds, if one was running."""
        if not self._changing or self._last_s is None:
            return None
        return self._cost(time.perf_counter() - self._last_s)

    def _cost(self, taken_s: float) -> float:
        self._changing = False
        step_s = statistics.median(self._steps) if self._steps else 0.0
        self._steps.clear()
        return max(0.0, taken_s - step_s)
