"""The reduction of curves to a number of points that a page can hold, whatever the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcext.sim.evaluate.metrics import Floats
from hpcext.sim.evaluate.outcome import Span

MOST_POINTS = 600
"""Largest number of points of a curve: more than the visible resolution of a plot."""


def thinned(spans: Sequence[Span], fields: Sequence[str], most: int = MOST_POINTS) -> Floats:
    """Average fields of the spans over at most `most` stretches of time.

    Parameters
    ----------
    spans : sequence of Span
        In order, without gaps.
    fields : sequence of str
    most : int

    Returns
    -------
    ndarray of shape (1 + len(fields), n + 1)
        Row 0 has the beginning of each stretch in seconds, and the end of the last one. The other
        rows have the mean over it, weighted by time, with the last one repeated. n is 0 if there
        are no spans of positive length.
    """
    spans = [span for span in spans if span.end_s > span.start_s]
    if not spans:
        return np.empty((1 + len(fields), 0))
    edges = np.array([span.start_s for span in spans] + [spans[-1].end_s])
    values = np.array([[getattr(span, field) for span in spans] for field in fields])
    if len(spans) > most:
        # The integral is linear between the edges, so its differences are exact means.
        area = np.concatenate(
            [np.zeros((len(fields), 1)), np.cumsum(values * np.diff(edges), axis=1)], axis=1
        )
        fewer = np.linspace(edges[0], edges[-1], most + 1)
        values = np.array([np.diff(np.interp(fewer, edges, row)) for row in area]) / np.diff(fewer)
        edges = fewer
    return np.vstack([edges, np.column_stack([values, values[:, -1]])])


def distribution(values: Floats, of: int, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """Return the cumulative distribution of values, as the corners of a step curve.

    Parameters
    ----------
    values : ndarray
    of : int
        The total of which shares are taken. If it exceeds the number of values, the curve ends
        below 1.
    most : int
        Largest number of points: of more values, the smallest, the largest and evenly spaced ones
        are used.

    Returns
    -------
    x, y : ndarray
        Values, and the shares, 0 to 1, to which the distribution rises at each.
    """
    ordered = np.sort(values)
    if len(ordered) > most:
        picked = np.unique(np.linspace(0, len(ordered) - 1, most).round().astype(int))
    else:
        picked = np.arange(len(ordered))
    return ordered[picked], (picked + 1) / max(1, of)
