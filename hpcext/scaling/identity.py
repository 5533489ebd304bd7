"""Remember what was computed of values that do not change, without looking at all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 4096
"""Answers that are kept, and what was asked with them, so that nothing else gets its identity."""

FEW = 4
"""The same where what was asked is large: all nodes of a machine."""


def by_identity(function: Callable[..., T], most: int = MOST) -> Callable[..., T]:
    """Answer again as before if the arguments are the same objects; nobody may change these.

    For mappings and arrays that cannot be hashed, or are dearer to compare than to compute with.
    """
    kept: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}

    @functools.wraps(function)
    def answer(*asked: Any) -> T:
        key = tuple(map(id, asked))
        found = kept.get(key)
        if found is None:
            if len(kept) >= most:
                kept.clear()
            found = kept[key] = (asked, function(*asked))
        return found[1]

    return answer


of_a_machine = functools.partial(by_identity, most=FEW)
"""The same for a function of all nodes."""
