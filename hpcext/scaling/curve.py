"""Scaling curves: speed by number of GPUs, as a user states it or as it was measured."""

from __future__ import annotations

from collections.abc import Mapping

NEAR_BEST = 0.02
"""Speeds that differ by less than this share are equal, for all that a scheduler can gain."""


def fewest_near_best(curve: Mapping[int, float], within: float = NEAR_BEST) -> int:
    """The fewest GPUs that run at practically the best speed.

    MARBLE (section V-D) takes a job's optimal number of GPUs from its measured curve. Measured
    curves are never quite flat where more GPUs no longer help, hence the margin.

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
