"""Simulation of many cases, on several processes if requested."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Case = TypeVar("Case", bound=Hashable)
Answer = TypeVar("Answer")


def many(
    simulate: Callable[[Case], Answer], cases: Iterable[Case], workers: int = 1
) -> dict[Case, Answer]:
    """Return the result of each case, in their order, on any number of processes.

    Parameters
    ----------
    simulate : callable
        A function of a module, which depends on its case alone.
    cases : iterable
        The cases; those that take longest should come first.
    workers : int
        Number of processes.
    """
    every = list(dict.fromkeys(cases))
    workers = min(workers, len(every))
    if workers < 2:
        return {case: simulate(case) for case in every}
    # Not forked, because libraries have threads of their own.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return dict(zip(every, pool.map(simulate, every), strict=True))
