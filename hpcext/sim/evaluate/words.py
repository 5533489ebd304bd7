"""Formatting of figures for people, the same in a report and on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpcext.sim.evaluate.measures import Measure
from hpcext.sim.evaluate.metrics import HOUR_S, Over

UNKNOWN = "-"

_TIMES: tuple[tuple[float, str], ...] = ((86400.0, "d"), (HOUR_S, "h"), (60.0, "min"), (1.0, "s"))


class Scale(NamedTuple):
    """A unit to show values in: its divisor, and its name."""

    divisor: float
    unit: str


def time_scale(longest_s: float) -> Scale:
    """Return the largest unit in which a length of time is at least 2."""
    for divisor, unit in _TIMES:
        if longest_s >= 2 * divisor:
            return Scale(divisor, unit)
    return Scale(1.0, "s")


def scale_of(measure: Measure, columns: Iterable[Mapping[str, Over | None]]) -> Scale:
    """Return one unit for a measure in all columns of a table, so that they can be compared.

    Parameters
    ----------
    measure : Measure
    columns : iterable of Mapping
        Figures by the measure's key, for each column. The mean, the median and the tail of a time
        get one unit too, that of its 90th percentile.
    """
    if measure.unit == "s" and measure.key != "idle_gpu_s":
        key = f"{measure.key.partition('_')[0]}_p90_s"
        known = [figure for each in columns if (figure := each.get(key, each.get(measure.key)))]
        return time_scale(max((figure.mean for figure in known), default=0.0))
    if measure.unit == "share":
        return Scale(0.01, "%")
    return Scale(1.0, {"h": "h", "s": "s"}.get(measure.unit, ""))


def number(value: float, digits: int = 3) -> str:
    """Format with `digits` significant digits, or all before the point; group thousands."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.{_decimals(value, digits)}f}"


def spread(value: Over | None, scale: Scale, known_of: int = 0) -> str:
    """Return ``12.3 ± 0.4``, with the number of seeds where only some are known.

    Parameters
    ----------
    value : Over or None
    scale : Scale
    known_of : int
        Number of seeds for which it should be known.
    """
    if value is None:
        return UNKNOWN
    mean = value.mean / scale.divisor
    text = number(mean)
    if value.spread is not None:
        text += f" ± {value.spread / scale.divisor:,.{_decimals(mean, 3)}f}"
    return text if value.seeds >= known_of else f"{text} ({value.seeds} of {known_of})"


def count(value: Over | None) -> str:
    """Format a number of things, with a decimal only where seeds differ."""
    if value is None:
        return UNKNOWN
    return f"{value.mean:,.0f}" if value.mean == round(value.mean) else f"{value.mean:,.1f}"


def change(ratio: Over | None) -> str:
    """Format a ratio to the baseline as ``-12.3 % ± 0.5``; from 2 on as ``3.1 times``."""
    if ratio is None:
        return UNKNOWN
    if ratio.mean >= 2:
        return f"{spread(ratio, Scale(1.0, ''))} times"
    text = f"{100 * (ratio.mean - 1):+.1f} %"
    return text if ratio.spread is None else f"{text} ± {100 * ratio.spread:.1f}"


def measured(measure: Measure, value: Over | None, scale: Scale, known_of: int = 0) -> str:
    """Format a figure without its unit, which the heading has."""
    if measure.unit == "jobs":
        return count(value)
    return spread(value, scale, known_of)


def _decimals(value: float, digits: int) -> int:
    if not value:
        return 0
    return min(6, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
