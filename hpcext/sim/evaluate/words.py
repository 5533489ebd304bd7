"""Figures over several runs as text: a mean, its spread, a change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcext.render.words import UNKNOWN, Scale, decimals, number, time_scale
from hpcext.sim.evaluate.measures import Measure
from hpcext.sim.evaluate.metrics import Over


def scale_of(measure: Measure, columns: Iterable[Mapping[str, Over | None]]) -> Scale:
    """Return one unit for a measure in all columns of a table, so that they can be compared.

    Parameters
    ----------
    measure : Measure
    columns : iterable of Mapping
        Figures by the measure's key, for each column. The mean, the median and the tail of a time
        have the same unit, that of its 90th percentile.
    """
    if measure.unit == "s" and measure.key != "idle_gpu_s":
        key = f"{measure.key.partition('_')[0]}_p90_s"
        known = [figure for each in columns if (figure := each.get(key, each.get(measure.key)))]
        return time_scale(max((figure.mean for figure in known), default=0.0))
    if measure.unit == "share":
        return Scale(0.01, "%")
    return Scale(1.0, {"h": "h", "s": "s"}.get(measure.unit, ""))


def spread(value: Over | None, scale: Scale, known_of: int = 0) -> str:
    """Return ``12.3 ± 0.4``, with the number of seeds if it is known for only some.

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
        text += f" ± {value.spread / scale.divisor:,.{decimals(mean)}f}"
    return text if value.seeds >= known_of else f"{text} ({value.seeds} of {known_of})"


def count(value: Over | None) -> str:
    """Format a count, with a decimal only if seeds differ."""
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
    """Format a figure without its unit, which the heading has.

    Parameters
    ----------
    measure : Measure
    value : Over or None
    scale : Scale
    known_of : int
        Number of seeds for which it should be known.
    """
    if measure.unit == "jobs":
        return count(value)
    return spread(value, scale, known_of)
