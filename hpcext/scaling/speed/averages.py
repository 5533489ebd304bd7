"""Predictors that average the past speeds of a worker: the baselines of LB-BSP's Table 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

ALPHA = 0.2
"""Weight of the last iteration in the exponential moving average (Table 3)."""

LEAST_SPEED = 1e-6
"""Lowest speed that counts as observed, so that no sum of speeds is zero."""


class Memoryless:
    """A :class:`~hpcext.scaling.speed.Predictor` of the last observed speed."""

    def __init__(self) -> None:
        self._speed = math.nan

    def observe(self, speed: float, cpu: float, memory: float) -> None:
        """Record the speed in the last iteration."""
        if is_speed(speed):
            self._speed = float(speed)

    def predict(self) -> float:
        """Predict the last observed speed, or the average of speeds."""
        return self._speed

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"speed": to_json(self._speed)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._speed = speed_in(state)


class Ema(Memoryless):
    """A predictor of the exponential moving average of speeds."""

    def observe(self, speed: float, cpu: float, memory: float) -> None:
        """Record the speed in the last iteration."""
        if math.isnan(self._speed):
            super().observe(speed, cpu, memory)
        elif is_speed(speed):
            self._speed += ALPHA * (speed - self._speed)


def is_speed(speed: float) -> bool:
    """Return whether a number is a possible speed of a worker."""
    return math.isfinite(speed) and speed > LEAST_SPEED


def to_json(speed: float) -> float | None:
    """Return a speed as a JSON value: null for NaN, which JSON lacks."""
    return None if math.isnan(speed) else speed


def speed_in(state: Mapping[str, Any]) -> float:
    """Return the speed in a state.

    Raises
    ------
    ValueError
        The state has no speed.
    """
    try:
        speed = state["speed"]
    except (KeyError, TypeError):
        raise ValueError("no state of a predictor: it says no speed") from None
    if speed is None:
        return math.nan
    if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not is_speed(speed):
        raise ValueError(f"no state of a predictor: its speed is {speed!r}")
    return float(speed)
