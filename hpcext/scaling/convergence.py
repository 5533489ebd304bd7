"""The predicted convergence of a training: Capes et al., section 3.1, after Optimus.

Stochastic gradient descent converges as 1 / k, so the loss after k steps is modelled as

    l = 1 / (beta0 k + beta1) + beta2                                           (eq. 1)

whose coefficients are fitted while the loss is reported. Losses are noisy, so predictions are
intervals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcext.core.history.losses import Point

Floats = NDArray[np.float64]

LEAST_POINTS = 8
"""Fewest points to which a curve is fitted."""

UNKNOWNS = 3

RATIOS = np.geomspace(1e-3, 1e2, 41)
"""Values of beta1 / beta0 to start from, in units of the steps made. Above them, a curve cannot be
distinguished from a straight line; below them, beta1 is negligible."""

OUTLIER = 5.0
"""Standard deviations from the curve beyond which a point is an outlier."""

NORMAL = 1.4826
"""Standard deviation of normal noise, in units of its median absolute deviation."""

ROUNDING = 1e-9
"""Negligible difference, relative to the largest loss."""

ROUNDS = 5
"""Largest number of rounds of outlier removal; each fit without outliers may show others."""

BELOW = 10.0
"""Largest distance of the limit below losses that can be negative, in units of their fall."""

FALLS = 0.95
"""Confidence with which a loss must fall: in the other cases, chance would make it seem so."""

MOST_FOLLOWING = 0.9
"""Largest autocorrelation of noise to allow for, since it is badly known from few points."""

SECTIONS = 20
"""Golden sections in the search for a ratio: they narrow its bracket to 1e-4."""

GOLDEN = (math.sqrt(5) - 1) / 2

SCALES = 32
"""Numbers of steps to try on either side of the best one."""

FAR = 1e9
"""Multiple of the steps made that counts as never reached."""


class Interval(NamedTuple):
    """An estimate with the bounds of its confidence interval."""

    low: float
    best: float
    high: float


class Convergence(NamedTuple):
    """A fitted curve.

    Attributes
    ----------
    beta0, beta1, beta2 : float
        Coefficients of eq. 1; beta0 > 0, beta1 >= 0. The loss falls towards beta2.
    noise : float
        Standard deviation of a single reported loss from the curve.
    used : tuple of Point
        The points to which it was fitted: those of the history without outliers.
    """

    beta0: float
    beta1: float
    beta2: float
    noise: float
    used: tuple[Point, ...]

    def loss(self, steps: ArrayLike) -> Floats:
        """Return the loss after these numbers of steps, without noise."""
        k = np.asarray(steps, dtype=np.float64)
        return np.asarray(1.0 / (self.beta0 * k + self.beta1) + self.beta2)

    def steps_to(self, loss: float, share: float = 0.9) -> Interval:
        """Return the number of steps after which the curve is as low as a given loss.

        The interval is that of the profile likelihood: it holds the k for which some curve with
        l(k) = `loss` fits the reports not significantly worse than the best one, by an F test. It
        assumes that eq. 1 holds; where a loss falls faster, as when the learning rate decays, all
        bounds are too high. Autocorrelation of the noise is allowed for by its first coefficient.

        Parameters
        ----------
        loss : float
        share : float
            In (0, 1): confidence level, the share of cases in which the interval holds the true
            number.

        Returns
        -------
        Interval
            In steps since the start of the training, 0 or more. `best` is infinite if the loss is
            not above the limit of the curve, and `high` if it may not be.

        Raises
        ------
        ValueError
            `share` is out of range.
        """
        if not 0 < share < 1:
            raise ValueError(f"share={share}: must be in (0, 1)")
        curves = _Curves(self.used)
        best = math.inf
        if loss > self.beta2:
            best = max(0.0, (1.0 / (loss - self.beta2) - self.beta1) / self.beta0)
        # On all scales around the best one, which may be known well or hardly at all.
        scales = np.geomspace(1e-6, math.log(FAR), SCALES)
        steps = best * np.exp(np.r_[-scales[::-1], 0.0, scales])
        if not 0.0 < best < math.inf:
            steps = curves.unit * np.geomspace(1 / FAR, FAR, 2 * SCALES)
        errors = curves.through(steps / curves.unit, loss) / (len(self.used) - UNKNOWNS)
        excess = np.sqrt(np.maximum(errors - self.noise**2, 0.0))
        return _interval(steps, excess, best, self._bound(share))

    def _bound(self, share: float) -> float:
        """Return how far beyond `noise`, in quadrature, losses may be from a likely curve."""
        from scipy.special import stdtrit  # noqa: PLC0415

        free = len(self.used) - UNKNOWNS
        off = _Curves(self.used).off(self)
        follows = float(off[1:] @ off[:-1]) / max(float(off @ off), float(np.finfo(float).tiny))
        follows = min(max(0.0, follows), MOST_FOLLOWING)
        longer = math.sqrt((1 + follows) / (1 - follows))
        return self.noise * float(stdtrit(free, (1 + share) / 2)) * longer / math.sqrt(free)


def _interval(steps: Floats, excess: Floats, best: float, bound: float) -> Interval:
    """Return the interval of ascending steps at which the excess is within the bound."""
    inside = np.flatnonzero(excess <= bound)
    if not len(inside):
        return Interval(best, best, best)

    def crossing(within: int, beyond: int) -> float:
        # Interpolated over the logarithm of the steps, in which the excess is nearly linear.
        part = (bound - excess[within]) / (excess[beyond] - excess[within])
        return float(steps[within] * (steps[beyond] / steps[within]) ** part)

    first, last = int(inside[0]), int(inside[-1])
    low = crossing(first, first - 1) if first else 0.0
    high = crossing(last, last + 1) if last + 1 < len(steps) else math.inf
    return Interval(min(low, best), best, max(high, best))


def fit(history: Sequence[Point]) -> Convergence | None:
    """Fit the curve that explains a history best.

    For a given beta1 / beta0 the loss is linear in 1 / beta0 and beta2. These are found by
    non-negative least squares, weighted by the number of reports, and that ratio by a search in one
    dimension. So the errors of the loss itself are minimised. (With beta2 given, eq. 1 is linear in
    beta0 and beta1 as well; but then the errors are those of 1 / (l - beta2), which is biased where
    the noise is as large as the remaining fall, and undefined for points below beta2.)

    beta2 is not negative if no loss is; otherwise it is at most `BELOW` times as far below the
    lowest loss as that is below the highest. As in Optimus, outliers are left out: points that are
    more than `OUTLIER` standard deviations from the curve, as estimated from their median
    deviation.

    Parameters
    ----------
    history : sequence of Point
        In the order of their steps.

    Returns
    -------
    Convergence or None
        None if fewer than `LEAST_POINTS` are left, or the loss does not fall significantly (an F
        test against a constant).
    """
    from scipy.special import fdtri  # noqa: PLC0415

    points = tuple(history)
    if len(points) < LEAST_POINTS:
        return None
    everything = _Curves(points)
    # A spike may tilt a curve so far that it seems to lie on it, and a steep fall may look like a
    # spike. So the search starts from all points, and from those near their neighbours.
    starts = dict.fromkeys((points, everything.smooth()))
    tried = [_without_outliers(everything, start) for start in starts]
    found = [each for each in tried if each is not None]
    if not found:
        return None
    offs = [np.abs(everything.off(each)) for each in found]
    most = min(everything.bound(off) for off in offs)
    best = found[int(np.argmin([(np.minimum(off, most) ** 2).sum() for off in offs]))]
    free = len(best.used) - UNKNOWNS
    gained = _Curves(best.used).spread - best.noise**2 * free
    worth = float(fdtri(UNKNOWNS - 1, free, FALLS)) * (UNKNOWNS - 1) * best.noise**2
    return best if gained > max(worth, everything.rounding**2) else None


def _without_outliers(everything: _Curves, used: tuple[Point, ...]) -> Convergence | None:
    """Fit, and leave out the outliers among all points, until nothing changes."""
    found = None
    for _ in range(ROUNDS):
        if len(used) < LEAST_POINTS:
            break
        found = _Curves(used).fit()
        if found is None:
            break
        kept = everything.near(np.abs(everything.off(found)))
        if kept == used:
            break
        used = kept
    return found


class _Curves:
    """The points to which curves are fitted, in units in which the last step made is 1.

    Attributes
    ----------
    unit : float
        Number of steps made.
    floor : float
        Lower limit of beta2.
    spread : float
        Sum of the squared errors of the best constant.
    rounding : float
        Distance from a curve within which a point is never an outlier.
    """

    def __init__(self, points: tuple[Point, ...]) -> None:
        self.points = points
        first, last, step, self.loss, self.weight = np.array(points, dtype=np.float64).T
        self.unit = max(1.0, float(last[-1]))
        self.first, self.width, self.step = (
            each / self.unit for each in (first, last - first, step)
        )
        lowest, highest = float(self.loss.min()), float(self.loss.max())
        self.floor = 0.0 if lowest >= 0 else lowest - BELOW * (highest - lowest)
        self.total = float(self.weight.sum())
        self.mean = float(self.loss @ self.weight) / self.total
        self.centred = self.loss - self.mean
        self.spread = float(self.centred**2 @ self.weight)
        self.rounding = ROUNDING * float(np.abs(self.loss).max())

    def bound(self, off: Floats) -> float:
        """Return the distance from the curve beyond which a point is an outlier."""
        return OUTLIER * max(NORMAL * float(np.median(off)), self.rounding)

    def near(self, off: Floats) -> tuple[Point, ...]:
        """Return the points without outliers, given the distance of each.

        Parameters
        ----------
        off : array of float, shape (n,)
            Distances from a curve, as of :meth:`off`.
        """
        within = (off <= self.bound(off)).tolist()
        return tuple(itertools.compress(self.points, within))

    def smooth(self) -> tuple[Point, ...]:
        """Return the points that are near the median of their neighbours, three on each side."""
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(self.loss, 3, mode="reflect"), 7)
        return self.near(np.abs(self.loss - np.median(windows, axis=1)) * np.sqrt(self.weight))

    def inverse(self, ratio: Floats) -> Floats:
        """Return the mean of 1 / (k + ratio) over each stretch, shape (..., n)."""
        ratio = np.asarray(ratio)[..., None]
        width = np.where(self.width > 0, self.width, 1.0)
        over = np.log1p(width / (self.first + ratio)) / width
        return np.asarray(np.where(self.width > 0, over, 1.0 / (self.step + ratio)))

    def fit(self) -> Convergence | None:
        """Return the best curve, or None if that is a constant."""
        from scipy.optimize import minimize_scalar, nnls  # noqa: PLC0415

        roots = np.sqrt(self.weight)
        wanted = (self.loss - self.floor) * roots

        def best(log_ratio: float) -> tuple[float, float, float]:
            """Return 1 / beta0, beta2 above its floor, and the root of the squared errors."""
            inverse = self.inverse(np.exp(log_ratio))
            # Both columns are about 1.
            scale = float(inverse.max())
            (slope, limit), error = nnls(
                np.stack([inverse / scale, np.ones_like(roots)], 1) * roots[:, None], wanted
            )
            return float(slope) / scale, float(limit), float(error)

        logs = np.log(RATIOS)
        at = int(np.argmin([best(each)[2] for each in logs]))
        found = minimize_scalar(
            lambda each: best(each)[2],
            bounds=(logs[max(at - 1, 0)], logs[min(at + 1, len(logs) - 1)]),
            method="bounded",
            options={"xatol": 1e-9},
        )
        slope, limit, error = best(found.x)
        if slope <= 0:
            return None
        beta0 = 1.0 / (slope * self.unit)
        noise = error / math.sqrt(len(self.points) - UNKNOWNS)
        beta1 = math.exp(found.x) * self.unit * beta0
        return Convergence(beta0, beta1, limit + self.floor, noise, self.points)

    def off(self, found: Convergence) -> Floats:
        """Return the distances of the points from a curve, in units of one report's noise, (n,)."""
        slope = 1.0 / (found.beta0 * self.unit)
        inverse = self.inverse(np.asarray(found.beta1 * slope))
        return np.asarray((self.loss - slope * inverse - found.beta2) * np.sqrt(self.weight))

    def through(self, steps: Floats, loss: float) -> Floats:
        """Return the smallest squared errors of curves through a loss at given steps, shape (g,).

        They are found by golden sections in the logarithm of the ratio, for all steps at once.
        """
        coarse = self._errors(RATIOS, steps[:, None], loss)
        at = np.argmin(coarse, axis=1)
        low, high = (np.log(RATIOS[np.clip(at + each, 0, len(RATIOS) - 1)]) for each in (-1, 1))
        for _ in range(SECTIONS):
            left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
            lower = self._errors(np.exp(left), steps, loss) < self._errors(
                np.exp(right), steps, loss
            )
            low, high = np.where(lower, low, left), np.where(lower, right, high)
        return self._errors(np.exp((low + high) / 2), steps, loss)

    def _errors(self, ratio: Floats, steps: Floats, loss: float) -> Floats:
        """Return squared errors of the best curve with a ratio through a point; both broadcast."""
        inverse = self.inverse(ratio)
        mean = inverse @ self.weight / self.total
        centred = inverse - mean[..., None]
        square = centred**2 @ self.weight
        product = centred @ (self.weight * self.centred)
        above, apart = self.mean - loss, mean - 1.0 / (steps + ratio)
        most = np.maximum(0.0, (loss - self.floor) * (steps + ratio))
        slope = product + self.total * above * apart
        slope = np.clip(slope / (square + self.total * apart**2), 0.0, most)
        around = self.spread + slope * (slope * square - 2 * product)
        return np.asarray(around + self.total * (above - slope * apart) ** 2)
