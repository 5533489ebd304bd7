"""The losses that a job reported, thinned out to what a curve of three parameters needs."""

from __future__ import annotations

import math
from typing import NamedTuple

MOST_POINTS = 64
"""A history has no more points than this; an even number, since pairs are merged."""


class Point(NamedTuple):
    """The mean report of a stretch of steps.

    Attributes
    ----------
    first, last : int
        Steps of its first and its last report.
    step : float
        Mean of the steps that reported.
    loss : float
        Mean of their losses.
    reports : int
        How many there were.
    """

    first: int
    last: int
    step: float
    loss: float
    reports: int


def add(history: tuple[Point, ...], step: int, loss: float) -> tuple[Point, ...]:
    """Add a report to a history.

    All points but the last stand for as many reports each, or nearly; when there is no room, pairs
    are merged. A job that goes back to an earlier step, for example after a failure, repeats the
    later ones, so their reports are forgotten. A loss that is not a number, and a second report of
    the last step, change nothing.

    Parameters
    ----------
    history : tuple of Point
        As made by this function; empty at first.
    step : int
        0 or more.
    loss : float

    Raises
    ------
    ValueError
        The step is negative.
    """
    if step < 0:
        raise ValueError(f"step {step}: must be 0 or more")
    if not math.isfinite(loss) or (history and step == history[-1].last):
        return history
    while history and step <= history[-1].last:
        history = history[:-1]
    new = Point(step, step, float(step), float(loss), 1)
    if not history:
        return (new,)
    if history[-1].reports < history[0].reports:
        return (*history[:-1], _merged(history[-1], new))
    if len(history) == MOST_POINTS:
        pairs = zip(history[::2], history[1::2], strict=True)
        history = tuple(_merged(*pair) for pair in pairs)
    return (*history, new)


def _merged(a: Point, b: Point) -> Point:
    reports = a.reports + b.reports
    # By shares, for the sum of large losses may be too large.
    share = b.reports / reports
    step, loss = a.step + (b.step - a.step) * share, a.loss * (1 - share) + b.loss * share
    return Point(a.first, b.last, step, loss, reports)
