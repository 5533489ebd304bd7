"""Simulation of many cases, on several processes if requested."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Case = TypeVar("Case")
Answer = TypeVar("Answer")


def many(
    simulate: Callable[[Case], Answer], cases: Sequence[Case], workers: int = 1
) -> list[Answer]:
    """Return the result for each case, in their order, on any number of processes.

    Parameters
    ----------
    simulate : callable
        A function of a module, which depends on its case alone.
    cases : sequence
        The cases; those that take longest should come first.
    workers : int
        Number of processes.
    """
    workers = min(workers, len(cases))
    if workers < 2:
        return [simulate(case) for case in cases]
    # Not forked, because libraries have threads of their own.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return list(pool.map(simulate, cases))
