"""Figures as text for people, the same on a page, in a table and on a terminal."""

from __future__ import annotations

import math
from typing import NamedTuple

UNKNOWN = "-"

_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


class Scale(NamedTuple):
    """A unit to show values in: its divisor, and its name."""

    divisor: float
    unit: str


def time_scale(longest_s: float) -> Scale:
    """Return the largest unit in which a duration is at least 2."""
    for divisor, unit in _TIMES:
        if longest_s >= 2 * divisor:
            return Scale(divisor, unit)
    return Scale(1.0, "s")


def decimals(value: float, digits: int = 3) -> int:
    """Return how many decimals show `digits` significant digits; at most 6."""
    if not value:
        return 0
    return min(6, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def number(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, but all before the point, and commas.

    Parameters
    ----------
    value : float
    digits : int
        The number of significant digits.
    """
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.{decimals(value, digits)}f}"


def percent(share: float) -> str:
    """Format a share as whole percent."""
    return f"{share:.0%}"


def hours(value: float) -> str:
    """Format hours with two decimals."""
    return f"{value:,.2f}"


def times(count: int) -> str:
    """Format a number of times, such as ``twice``; empty for 0."""
    return {0: "", 1: "once", 2: "twice"}.get(count, f"{count} times")


def duration(seconds: float) -> str:
    """Format a duration in its largest two units.

    Examples
    --------
    >>> duration(7), duration(67), duration(3723), duration(1_000_000)
    ('7.0 s', '1 min 07 s', '1 h 02 min', '11.6 days')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hour, minutes = divmod(minutes, 60)
    if hour >= 96:
        return f"{seconds / 86_400:.1f} days"
    return f"{hour} h {minutes:02} min"


def clock(seconds: float) -> str:
    """Format a duration like a clock, for a dense page.

    Examples
    --------
    >>> clock(7), clock(3723), clock(183_600)
    ('0:07', '1:02:03', '2 d 3 h')
    """
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    if hour >= 48:
        return f"{hour // 24} d {hour % 24} h"
    return f"{hour}:{minute:02}:{rest:02}" if hour else f"{minute}:{rest:02}"
