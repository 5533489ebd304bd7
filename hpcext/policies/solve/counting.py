"""The division of a resource under constraints of a site, by an integer programme.

The problem and the tables are those of :mod:`hpcext.policies.solve.apportion`, with one binary
variable for each count that a job can have. In addition to the total, there are linear constraints
on the counts and on which jobs run: a quota for a user's jobs, a minimum for a group, licences of
which each running job takes one. Without constraints, the kernel finds the same value sooner.

The paper's own model (:mod:`hpcext.policies.solve.milp`) is solved by the same solvers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.solvers import NO_LIMIT, Programme, SearchLimit, Solver, find_solver
from hpcext.policies.solve.tables import ValueTable


class Constraint(NamedTuple):
    """A constraint ``least <= sum of units[j] * n_j + sum of runs[j] * [n_j > 0] <= most``.

    A quota of 8 units for jobs 0 and 2: ``Constraint("quota", {0: 1, 2: 1}, most=8)``. One licence
    for jobs 1 and 2: ``Constraint("licences", runs={1: 1, 2: 1}, most=1)``.

    Attributes
    ----------
    name : str
        Name in messages.
    units, runs : mapping of int to float
        Coefficient of a job's count, and of its running at all, by job; 0 for the others.
    least, most : float, optional
        At least one of them is given.
    """

    name: str
    units: Mapping[int, float] = {}
    runs: Mapping[int, float] = {}
    least: float | None = None
    most: float | None = None

    def load(self, job: int, size: int) -> float:
        """Return the contribution of a job with `size` units to the sum.

        Parameters
        ----------
        job : int
            Index of the job.
        size : int
        """
        return self.units.get(job, 0.0) * size + (self.runs.get(job, 0.0) if size else 0.0)


class CountAnswer(NamedTuple):
    """The result of a search for the best division.

    Attributes
    ----------
    counts : tuple of int
        Units of each job. Of several best divisions, any one, but always the same.
    value : float
        Sum of the jobs' values with these counts.
    bound : float
        An upper bound on any division; infinite if the solver states none.
    proven : bool
        Whether the division is proven optimal: its value is the bound, to `PROVEN`.
    """

    counts: tuple[int, ...]
    value: float
    bound: float
    proven: bool


def solve_counts(
    tables: Sequence[ValueTable],
    total: int,
    constraints: Sequence[Constraint] = (),
    limit: SearchLimit = NO_LIMIT,
    solver: Solver | None = None,
) -> CountAnswer:
    """Divide `total` units among jobs so that the sum of their values is largest.

    Parameters
    ----------
    tables : sequence of ValueTable
        One for each job.
    total : int
    constraints : sequence of Constraint
        The division satisfies all of them, to the tolerance of solvers (1e-6).
    limit : SearchLimit
        If it ends the search, the best division so far is the answer. The search starts from the
        one in which no job has a unit; that is the answer if it found no other and the constraints
        allow it.
    solver : Solver, optional
        `highs` or `cbc`; by default that of :func:`find_solver`.

    Returns
    -------
    CountAnswer

    Raises
    ------
    ValueError
        A table, a constraint or the limit is not valid; no division satisfies the constraints, and
        the message names some that conflict, if the limit allows finding them; or none was found
        within the limit.
    HpcextError
        There is no solver, or it failed.
    """
    # The kernel checks the tables; with 0 units it is done at once.
    apportion(tables, 0)
    if total < 0:
        raise ValueError(f"{total} units cannot be divided")
    for constraint in constraints:
        _check(constraint, len(tables))
    if not tables:
        return CountAnswer((), 0.0, 0.0, True)
    solver = solver or find_solver()
    programme, options = _count(tables, total, constraints)
    search = programme.maximize(solver, limit)
    if search.infeasible:
        raise ValueError(_conflict(tables, total, constraints, limit, solver))
    if not search.found:
        raise ValueError(f"no division that satisfies the constraints was found within {limit}")
    chosen = [[round(option.varValue) for option in row].index(1) for row in options]
    value = math.fsum(table.values[at] for table, at in zip(tables, chosen, strict=True))
    counts = tuple(int(table.sizes[at]) for table, at in zip(tables, chosen, strict=True))
    proven = programme.proven(value, search.bound)
    return CountAnswer(counts, value, max(value, search.bound), proven)


def _count(
    tables: Sequence[ValueTable], total: int, constraints: Sequence[Constraint]
) -> tuple[Programme, list[list[Any]]]:
    """Build the programme, and for each job the variables of its options within the total."""
    programme, rows = Programme(), []
    for job, table in enumerate(tables):
        fits = table.sizes <= total
        row = [programme.binary(f"x_{job}_{n}", not n) for n in table.sizes[fits].tolist()]
        programme.hold(programme.sum(row) == 1)
        for option, value in zip(row, table.values[fits].tolist(), strict=True):
            programme.gain(option, value)
        rows.append(row)
    options = [
        (job, size, option)
        for job, (table, row) in enumerate(zip(tables, rows, strict=True))
        for size, option in zip(table.sizes.tolist(), row, strict=False)
    ]
    variables = [option for *_, option in options]
    programme.hold(programme.sum(variables, [size for _, size, _ in options]) <= total)
    for constraint in constraints:
        loads = [constraint.load(job, size) for job, size, _ in options]
        if constraint.least is not None:
            programme.hold(programme.sum(variables, loads) >= constraint.least)
        if constraint.most is not None:
            programme.hold(programme.sum(variables, loads) <= constraint.most)
    return programme, rows


def _check(constraint: Constraint, jobs: int) -> None:
    where = f"constraint {constraint.name!r}"
    coefficients = {**constraint.units, **constraint.runs}
    if not coefficients:
        raise ValueError(f"{where} has no coefficient, in neither units nor runs")
    strange = [job for job in coefficients if not 0 <= job < jobs]
    if strange:
        raise ValueError(f"{where}: there is no job {strange[0]!r}, only 0 to {jobs - 1}")
    limits = [each for each in (constraint.least, constraint.most) if each is not None]
    if not limits:
        raise ValueError(f"{where} has neither least nor most")
    values = (*constraint.units.values(), *constraint.runs.values(), *limits)
    if not all(math.isfinite(each) for each in values):
        raise ValueError(f"{where}: coefficients and limits must be finite")
    if limits[0] > limits[-1]:
        raise ValueError(f"{where}: least {limits[0]} is more than most {limits[-1]}")


def _conflict(
    tables: Sequence[ValueTable],
    total: int,
    constraints: Sequence[Constraint],
    limit: SearchLimit,
    solver: Solver,
) -> str:
    """Return a message about constraints that cannot hold together.

    Each is left out in turn, for good if the others still conflict. Those that remain conflict, but
    no part of them does (as far as the limit let the solver prove it).
    """
    kept = list(constraints)
    for each in constraints:
        fewer = [other for other in kept if other is not each]
        programme, _ = _count(tables, total, fewer)
        if programme.maximize(solver, limit).infeasible:
            kept = fewer
    names = ", ".join(repr(each.name) for each in kept)
    if len(kept) > 1:
        return f"no division of {total} units satisfies these constraints together: {names}"
    loads = [
        (table, np.array([kept[0].load(job, n) for n in table.sizes.tolist()]))
        for job, table in enumerate(tables)
    ]
    # The smallest and largest possible sum, by the kernel.
    low, high = (
        sign
        * apportion([ValueTable(table.sizes, sign * load) for table, load in loads], total).value
        + 0.0
        for sign in (-1, 1)
    )
    limits = {"at least": kept[0].least, "at most": kept[0].most}
    asked = " and ".join(f"{words} {each:g}" for words, each in limits.items() if each is not None)
    return (
        f"no division of {total} units satisfies constraint {names}: its sum can be {low:g} to"
        f" {high:g}, must be {asked}"
    )
