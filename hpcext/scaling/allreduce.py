"""The speed of a training by the number of its workers: Capes et al., section 3.2.

The times of the algorithms by which workers add up their gradients (eq. 2 to 4) have one form
(eq. 5), whose coefficients are fitted to measured speeds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

COLUMNS = {1: (0,), 2: (0, 2, 3)}
"""Coefficients to fit, by the count of measured numbers of workers; all of them from three on."""


LEAST = 0.1
"""Lower limit of one worker's divided time, relative to the shortest measured time: where more
workers only slow a job down, least squares may attribute nothing to divided work."""


class AllReduce(NamedTuple):
    """The resource model of a job (eq. 5), speed = 1 / (c0 / w + c1 (w - 1) + c2 (w - 1) / w + c3).

    The paper's batch m and model size n do not depend on the number of workers, so they are part of
    the coefficients here: c0 = theta0 m, c1 = theta1, c2 = theta2 n, c3 = theta3. None is negative,
    so no speed-up exceeds the number of workers.

    Attributes
    ----------
    divided : float
        c0, the time that workers divide, for a unit of work on one worker.
    latency : float
        c1, the latency of messages, whose number grows with the workers.
    sent : float
        c2, the time to send and add up the gradients of a worker.
    constant : float
        c3.
    """

    divided: float
    latency: float
    sent: float
    constant: float

    def speed(self, workers: ArrayLike) -> Floats:
        """Return the speed on numbers of workers, in the unit of the fitted ones; 0 on no worker.

        Parameters
        ----------
        workers : int or array of int
        """
        w = np.asarray(workers, dtype=np.float64)
        return np.where(w > 0, 1.0 / (_rows(np.maximum(w, 1.0)) @ np.array(self)), 0.0)


def fit(workers: ArrayLike, speeds: ArrayLike, weights: ArrayLike | None = None) -> AllReduce:
    """Fit the coefficients to measured speeds, by non-negative least squares.

    The time of a unit of work, 1 / speed, is linear in them; its relative errors are minimised,
    and, as far as they are small, so are those of the speed.

    One number of workers says nothing about how a job scales, so perfect scaling is assumed: c0
    alone. Two determine two unknowns: a time that falls, or rises, with 1 / w towards a limit (c0,
    c2 and c3, as in Amdahl's law). A latency (c1), with which further workers become harmful at
    some number, is assumed only once three numbers show it. The columns 1 / w, (w - 1) / w and 1
    are linearly dependent, so c0, c2 and c3 together are only two unknowns, whatever is measured.
    Of the coefficients that give the same speeds, those with the smallest c2 are returned.

    Parameters
    ----------
    workers : int or array of int, shape (n,)
        At least 1; several points may have the same number.
    speeds : float or array of float, shape (n,)
        Work per time, > 0, in any unit.
    weights : float or array of float, shape (n,), optional
        Weight of each squared error, > 0.

    Returns
    -------
    AllReduce

    Raises
    ------
    ValueError
        There is no point, or one is not valid.
    """
    from scipy.optimize import nnls  # noqa: PLC0415

    counts, measured = np.atleast_1d(_workers(workers)), np.atleast_1d(speeds).astype(np.float64)
    weight = np.ones_like(measured) if weights is None else np.atleast_1d(weights).astype(float)
    if not counts.shape == measured.shape == weight.shape or counts.ndim != 1 or not len(counts):
        raise ValueError(f"{counts.shape} workers, {measured.shape} speeds, {weight.shape} weights")
    for name, values in (("speed", measured), ("weight", weight)):
        right = np.isfinite(values) & (values > 0)
        if not right.all():
            at = int(np.argmin(right))
            raise ValueError(f"point {at}: {name} {values[at]}: must be > 0 and finite")
    columns = list(COLUMNS.get(len(np.unique(counts)), (0, 1, 2, 3)))
    rows = (_rows(counts) * measured[:, None])[:, columns]
    # In normalised units, since the largest entry determines what is negligible.
    units = np.abs(rows).max(axis=0)
    units[units == 0] = 1.0
    roots = np.sqrt(weight / weight.max())
    found = np.zeros(4)
    found[0] = LEAST / measured.max()
    wanted = (1.0 - rows[:, 0] * found[0]) * roots
    found[columns] += nnls(rows / units * roots[:, None], wanted)[0] / units
    c0, c1, c2, c3 = found.tolist()
    both = min(c0, c2)
    return AllReduce(c0 - both, c1, c2 - both, c3 + both)


def _rows(w: Floats) -> Floats:
    """Return the factors of the coefficients, shape (..., 4)."""
    return np.stack([1.0 / w, w - 1.0, (w - 1.0) / w, np.ones_like(w)], axis=-1)


def _workers(workers: ArrayLike) -> Floats:
    w = np.asarray(workers, dtype=np.float64)
    if not (w >= 1).all():
        raise ValueError(f"{w[~(w >= 1)].flat[0]:g} workers: must be at least 1")
    return w
