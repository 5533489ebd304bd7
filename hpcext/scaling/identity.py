"""Caching of functions by the identity of their arguments, which must not change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 4096
"""Number of answers to keep, with their arguments, so that no other object gets the same id."""

SOME = 1024
"""Number of answers to keep for allocations, each of which may name all nodes."""

FEW = 4
"""Number of answers to keep for large arguments, such as all nodes of a machine."""


def by_identity(function: Callable[..., T], most: int = MOST) -> Callable[..., T]:
    """Cache a function by the identity of its arguments, which must not change.

    This is for mappings and arrays that cannot be hashed, or whose comparison costs more than the
    function.

    Parameters
    ----------
    function : callable
    most : int
        Number of answers to keep.
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
""":func:`by_identity` for a function of all nodes."""

of_an_allocation = functools.partial(by_identity, most=SOME)
""":func:`by_identity` for a function of the nodes of a job, which keeps them while it runs."""
