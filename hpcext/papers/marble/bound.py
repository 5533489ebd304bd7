"""A lower bound on the time of a set of jobs under a clairvoyant schedule.

All jobs are there from the beginning and may have any number of GPUs at any time. So only the
duration of each *configuration* matters, the numbers of GPUs that all jobs have at one time, and
not the order: a linear programme. If changes of size cost nothing, its solution would be the
optimum; since they do, no schedule is shorter.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.tables import ValueTable

NEAR = 1e-9
"""Relative distance of a schedule from the bound within which it is proven optimal."""


class Work(NamedTuple):
    """A job.

    Attributes
    ----------
    speed : Mapping[int, float]
        Work per second by number of GPUs.
    work : float
    """

    speed: Mapping[int, float]
    work: float


def least_s(jobs: Sequence[Work], gpus: int) -> float:
    """Return the shortest time in which all jobs can be done, without costs of changes.

    Configurations are added until no other one would help. The one that helps most is the exact
    division of the GPUs (:mod:`hpcext.policies.solve.apportion`) at the prices of the programme.

    Parameters
    ----------
    jobs : sequence of Work
    gpus : int

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    RuntimeError
        The programme has no solution, because some job can run on no possible number of GPUs.
    """
    tables = [_table(job, gpus) for job in jobs]
    found = [
        np.array([max(job.speed[n] for n in job.speed if n <= gpus) * (row == at)
                  for at, job in enumerate(jobs)])
        for row in range(len(jobs))
    ]  # fmt: skip
    work = np.array([job.work for job in jobs])
    while True:
        rates = np.array(found).T
        solved = linprog(np.ones(len(found)), A_ub=-rates, b_ub=-work, method="highs")
        if not solved.success:
            raise RuntimeError(f"no schedule: {solved.message}")
        # The value of a unit of each job's work, in seconds.
        prices = -solved.ineqlin.marginals
        priced = [
            ValueTable(table.sizes, table.values * price)
            for table, price in zip(tables, prices, strict=True)
        ]
        division = apportion(priced, gpus)
        # At these prices no configuration earns more than this per second.
        earns = max(1.0, division.value)
        if earns <= 1 + NEAR:
            return float(solved.fun)
        found.append(
            np.array([job.speed.get(n, 0.0) for job, n in zip(jobs, division.counts, strict=True)])
        )


def shortest_unsuspended_s(jobs: Sequence[Work], gpus: int) -> float:
    """Return the duration of the shortest schedule in which each job keeps one size.

    All are tried: every size of each job, and every order, in which each job starts as soon as
    there is room (an optimal schedule is among these). This is for few jobs.

    Parameters
    ----------
    jobs : sequence of Work
    gpus : int
    """
    best = np.inf
    options = [[(n, job.work / speed) for n, speed in job.speed.items()] for job in jobs]
    for chosen in itertools.product(*options):
        for order in itertools.permutations(chosen):
            best = min(best, _ends_s(order, gpus, float(best)))
    return float(best)


def _ends_s(order: Sequence[tuple[int, float]], gpus: int, enough_s: float) -> float:
    """Return the last end if each job, in this order, starts as soon as there is room."""
    placed: list[tuple[float, float, int]] = []
    ends_s = 0.0
    for size, takes_s in order:
        if size > gpus:
            return float("inf")
        instants = sorted({0.0, *(end for _, end, _ in placed)})
        start_s = next(s for s in instants if _room(placed, s, s + takes_s, gpus) >= size)
        placed.append((start_s, start_s + takes_s, size))
        ends_s = max(ends_s, start_s + takes_s)
        if ends_s >= enough_s:
            return ends_s
    return ends_s


def _room(placed: Sequence[tuple[float, float, int]], begin: float, end: float, gpus: int) -> int:
    """Return the GPUs that are free throughout an interval."""
    changes = [begin, *(start for start, _, _ in placed if begin < start < end)]
    return min(
        gpus - sum(size for start, stop, size in placed if start <= when < stop) for when in changes
    )


def _table(job: Work, gpus: int) -> ValueTable:
    sizes = sorted(n for n in job.speed if n <= gpus)
    return ValueTable(np.array([0, *sizes]), np.array([0.0, *(job.speed[n] for n in sizes)]))
