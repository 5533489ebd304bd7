"""What a change of the number of ranks costs: seconds without progress."""

from __future__ import annotations

import statistics
import time
from collections import deque

_WINDOW = 64
"""Steps; more than a new rank needs to start, which on busy cores slows those of the others."""


class Stall:
    """Watches the boundaries between steps.

    The cost of a change is the time from the last boundary before it to the first one after it,
    less the time of a step (the median of the last ones).
    """

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_WINDOW)
        self._last_s: float | None = None
        self._changing = False

    def boundary(self) -> float | None:
        """A step is done; what a change cost, if one was under way."""
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
        """The ranks change, at the boundary that was last."""
        self._changing = True

    def end(self) -> float | None:
        """No step follows the change; what it cost until now, if one was under way."""
        if not self._changing or self._last_s is None:
            return None
        return self._cost(time.perf_counter() - self._last_s)

    def _cost(self, taken_s: float) -> float:
        self._changing = False
        step_s = statistics.median(self._steps) if self._steps else 0.0
        self._steps.clear()
        return max(0.0, taken_s - step_s)
