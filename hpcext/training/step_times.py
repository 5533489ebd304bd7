"""The durations of the steps of a training, from which a manager detects that it hangs."""

from __future__ import annotations

from collections import deque

LEAST = 20
"""Fewest steps for a usual duration, since the first ones compile."""

MOST = 500


class StepTimes:
    """The durations of the last steps, without those that other work preceded."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=MOST)
        self._longest_s = 0.0
        self._began_s: float | None = None

    def pause(self) -> None:
        """Exclude the next step."""
        self._began_s = None

    def stepped(self, now_s: float) -> None:
        """Record that a step has ended, and the next one has begun."""
        if self._began_s is not None:
            took_s = now_s - self._began_s
            self._last.append(took_s)
            self._longest_s = max(self._longest_s, took_s)
        self._began_s = now_s

    def usual(self) -> tuple[float, float] | None:
        """Return their 99th percentile and the longest of all, in seconds; None for too few."""
        if len(self._last) < LEAST:
            return None
        ordered = sorted(self._last)
        usual_s = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        return float(f"{usual_s:.3g}"), float(f"{self._longest_s:.3g}")
