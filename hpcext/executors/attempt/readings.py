"""Numbers that a job wrote, as far as they make sense."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeGuard

from hpcext.text import shown

MAX_STEPS = 2**53
"""The largest integer that is exact in the JSON of other languages."""

MAX_NUMBER = 1e300
MAX_INSTANT_S = 1e11


def count(document: Mapping[str, Any], key: str) -> int:
    """Return a whole number from 0 on."""
    value = document.get(key)
    if type(value) is not int or not 0 <= value <= MAX_STEPS:
        raise ValueError(f"{key} is {shown(value)}, not an integer of at least 0")
    return value


def number(document: Mapping[str, Any], key: str, low: float = 0.0) -> float:
    """Return a finite number from `low` on.

    Parameters
    ----------
    document : mapping
    key : str
    low : float
        The least valid value.
    """
    value = document.get(key)
    # NaN compares false; compared before it is converted, since an int may be too large for that.
    if not is_number(value) or not low <= value <= MAX_NUMBER:
        raise ValueError(f"{key} is {shown(value)}, not a finite number of at least {low:g}")
    return float(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def instant(document: Mapping[str, Any], key: str) -> float | None:
    """Return seconds since the epoch; None if they are not said or make no sense."""
    value = document.get(key)
    if not is_number(value) or not 0 <= value <= MAX_INSTANT_S:
        return None
    return float(value)


def spans(*marks: tuple[str, float | None]) -> dict[str, float]:
    """Return durations between successive instants that are known, by the name of the later one.

    They are never negative, though a clock may be set back between the two.
    """
    parts = {}
    for (_, begin), (name, end) in itertools.pairwise(marks):
        if begin is not None and end is not None:
            parts[name] = max(0.0, end - begin)
    return parts
