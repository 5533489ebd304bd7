"""How many times as fast as on one GPU a job is, by what is known of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcext.core.estimate import Estimate


def speedups(known: Estimate, sizes: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Speed on so many GPUs, as a multiple of that on one; None where no speed is known.

    By what the job states, else by what was measured; between its points, before and behind them
    as :func:`~hpcext.scaling.curve.interpolate` has it. Of a curve that does not begin at one GPU,
    the first point is taken for as many times the speed of one.

    Examples
    --------
    >>> speedups(Estimate(stated={1: 4.0, 2: 6.0}), np.array([0, 1, 2, 4])).tolist()
    [0.0, 1.0, 1.5, 1.5]
    """
    curve = sorted((known.stated or known.measured).items())
    if not curve:
        return None
    points, speeds = zip((0, 0.0), *curve, strict=True)
    found: NDArray[np.float64] = np.interp(sizes, points, speeds)
    return found / float(np.interp(1, points, speeds))
