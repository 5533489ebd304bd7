"""ARIMA(2,2,1) of a worker's speed, a baseline of LB-BSP (section 3.2.2 and Table 3).

Coefficients minimise the conditional sum of squares, for which SciPy is enough, so that they can be
fitted again while a training runs. On hundreds of values, the maximum of the exact likelihood is
near them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcext.scaling.speed.online import Floats, Model

DIFFERENCES = 2

WITHIN = 0.999
"""Factor on the bounds within which the moving average is invertible, so that old errors are
forgotten, and on those of the triangle in which the autoregression is stationary."""

STARTS = ((0.0, 0.0, -0.5), (-0.5, -0.25, -0.95))
"""Coefficients from which the first fit starts; differences of noise look like the second."""

REMEMBERS = 200
"""Number of past iterations in a prediction: the moving average has vanished by then."""


class Arima:
    """Fitted coefficients of ``w[t] = a1 w[t-1] + a2 w[t-2] + e[t] + b e[t-1]``.

    Here w are the second differences of the speeds.
    """

    looks_back = REMEMBERS

    def __init__(self, a1: float, a2: float, b: float) -> None:
        self.coefficients = (a1, a2, b)

    def ahead(self, rows: Floats) -> float:
        """Predict the speed after these rows of speed, CPU and memory."""
        a1, a2, b = self.coefficients
        speeds = rows[:, 0]
        w = np.diff(speeds, DIFFERENCES)
        errors = residuals(np.array(self.coefficients), w)
        change = a1 * w[-1] + a2 * w[-2] + b * errors[-1]
        return float(2 * speeds[-1] - speeds[-2] + change)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"coefficients": list(self.coefficients)}


def residuals(coefficients: Floats, w: Floats) -> Floats:
    """Return the errors of one-step predictions, from the third value on.

    Parameters
    ----------
    coefficients : array of float, shape (3,)
        a1, a2 and b of :class:`Arima`.
    w : array of float, shape (n,)
        Second differences of the speeds.
    """
    from scipy.signal import lfilter  # noqa: PLC0415

    a1, a2, b = coefficients
    unexplained = w[2:] - a1 * w[1:-1] - a2 * w[:-2]
    return np.asarray(lfilter([1.0], [1.0, b], unexplained))


def fit(rows: Floats, start: Model | None) -> Arima:
    """Fit the model to observations.

    Parameters
    ----------
    rows : array of float, shape (n, 3)
        Speed, CPU and memory.
    start : Model or None
        The model from whose coefficients the search starts.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415

    w = np.diff(rows[:, 0], DIFFERENCES)
    width = float(w.std()) or 1.0
    starts = [start.coefficients] if isinstance(start, Arima) else STARTS
    found = [
        least_squares(residuals, each, args=(w / width,), bounds=(_LOWER, _UPPER))
        for each in starts
    ]
    best = min(found, key=lambda each: float(each.cost)).x
    return Arima(*map(float, best))


def loaded(state: Mapping[str, Any]) -> Arima:
    """Make a model from its state.

    Raises
    ------
    ValueError
        The state has no valid coefficients.
    """
    found = np.asarray(state["coefficients"], np.float64)
    if found.shape != (3,) or not np.all((found >= _LOWER) & (found <= _UPPER)):
        raise ValueError(f"no coefficients of ARIMA(2,2,1): {state['coefficients']}")
    return Arima(*map(float, found))


_LOWER = np.array([-2.0, -1.0, -1.0]) * WITHIN
_UPPER = np.array([2.0, 1.0, 1.0]) * WITHIN
