"""Scaling curves: speed by number of GPUs, stated by a user or measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

NEAR_BEST = 0.02
"""Relative difference below which speeds are equal for the purposes of a scheduler."""


def fewest_near_best(curve: Mapping[int, float], within: float = NEAR_BEST) -> int:
    """Return the smallest number of GPUs that runs at practically the best speed.

    MARBLE (section V-D) takes a job's optimal number of GPUs from its measured curve. Measured
    curves are never quite flat where further GPUs no longer help, hence the margin.

    Parameters
    ----------
    curve : Mapping[int, float]
        GPUs → speed > 0, in any one unit; points may be missing.
    within : float
        Share of the best speed that may be given up, 0 <= `within` < 1.

    Returns
    -------
    int
        A key of `curve`.

    Raises
    ------
    ValueError
        The curve is empty, or `within` is out of range.

    Examples
    --------
    >>> fewest_near_best({1: 1.0, 2: 1.9, 4: 3.0, 6: 3.02})
    4
    """
    if not curve:
        raise ValueError("an empty curve has no best")
    if not 0 <= within < 1:
        raise ValueError(f"within={within}: must be in [0, 1)")
    enough = (1 - within) * max(curve.values())
    return min(gpus for gpus, speed in curve.items() if speed >= enough)


def interpolate(curve: Mapping[int, float], gpus: float) -> float:
    """Return the speed on any number of GPUs, interpolated on a curve.

    Interpolation is linear between two points, and below the first one (towards no speed on no
    GPU). Beyond the last point the curve is flat.

    Parameters
    ----------
    curve : Mapping[int, float]
        GPUs > 0 → speed; at least one.
    gpus : float
        0 or more.

    Examples
    --------
    >>> interpolate({2: 4.0, 4: 6.0}, 3)
    5.0
    """
    below = max((point for point in curve if point <= gpus), default=0)
    above = min((point for point in curve if point >= gpus), default=0)
    low = curve[below] if below else 0.0
    if below == above or not above:
        return low
    return low + (curve[above] - low) * (gpus - below) / (above - below)


def robust_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean without the value that is farthest from the median.

    One measurement on a disturbed node, however long it took, must not move a curve. So of three
    values or more one is left out, and the result lies among the others.

    Parameters
    ----------
    values : sequence of float
        Values, at least one.
    weights : sequence of float
        Weight of each value, > 0.

    Returns
    -------
    float

    Examples
    --------
    >>> robust_mean([10.0, 2.0, 11.0], [1, 100, 1])
    10.5
    """
    kept = list(range(len(values)))
    if len(kept) > 2:
        middle = statistics.median(values)
        # Of two equally far ones, drop the earlier: the latest measurement is worth more.
        kept.remove(max(kept, key=lambda index: abs(values[index] - middle)))
    total = sum(weights[index] for index in kept)
    return sum(values[index] * (weights[index] / total) for index in kept)


def shape(curve: Mapping[int, float]) -> dict[int, float]:
    """Return a curve without its unit: the speed on the fewest GPUs is 1.

    Examples
    --------
    >>> shape({2: 5.0, 1: 4.0})
    {1: 1.0, 2: 1.25}
    """
    ordered = dict(sorted(curve.items()))
    base = next(iter(ordered.values()), 1.0)
    return {gpus: speed / base for gpus, speed in ordered.items()}
