"""Short formats of figures, for a dense page."""

from __future__ import annotations


def clock(seconds: float) -> str:
    """Format a length of time like a clock: ``0:07``, ``1:02:03``, ``2 d 3 h``."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    if hour >= 48:
        return f"{hour // 24} d {hour % 24} h"
    return f"{hour}:{minute:02}:{rest:02}" if hour else f"{minute}:{rest:02}"


def percent(share: float) -> str:
    """Format a share as whole percent."""
    return f"{share:.0%}"


def hours(value: float) -> str:
    """Format hours with two decimals."""
    return f"{value:,.2f}"


def times(count: int) -> str:
    """Format a number of times; empty for none."""
    return {0: "", 1: "once", 2: "twice"}.get(count, f"{count} times")
