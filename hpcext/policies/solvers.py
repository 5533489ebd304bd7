"""Solvers of mixed-integer programmes, HiGHS and CBC, and programmes written for them, in PuLP.

None of them is imported before it is needed.
"""

from __future__ import annotations

import importlib
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcext.core.errors import HpcextError, InputError
from hpcext.extras import install, need

PROVEN = 1e-6
"""A value is optimal if its bound is no farther than this part of it: a solver can do no better."""

SCALE = 1e3
"""The largest coefficient of an objective as a solver gets it, since its tolerances are absolute
(1e-6 and less); CBC prints a bound with three digits after the point."""


class Limit(NamedTuple):
    """Where a search ends. Not in seconds: it shall end alike on every machine.

    Attributes
    ----------
    nodes : int or None
        Nodes of the search tree; None: as many as it takes. With 0 HiGHS does not solve the root
        either, and ends with what it began with.
    gap : float
        It is enough to be proven so near to the optimum, as a part of it, 0 <= `gap` < 1.
    """

    nodes: int | None = None
    gap: float = 0.0


class Search(NamedTuple):
    """How a search ended; the variables of the problem have the values that it found.

    Attributes
    ----------
    found, infeasible : bool
        There is a solution; it is proven that there is none. Neither, if the limit came first.
    bound : float
        No solution of the problem, a minimisation, is less; minus infinity if nothing is known.
    """

    found: bool
    infeasible: bool
    bound: float


NO_LIMIT = Limit()

Solver = Callable[[Any, Limit], Search]
"""Minimises an ``LpProblem`` of PuLP, quietly and the same way each time, from the values of its
variables as a start."""


def highs(problem: Any, limit: Limit, time_s: float | None = None) -> Search:
    """Minimise with HiGHS, in this process.

    ``LpProblem.solve`` of PuLP 3.3 takes no start for HiGHS (``warmStart`` is handed on as an
    option of HiGHS, which refuses it, unseen), fails with a KeyError where the limit of nodes is
    reached, and calls a solution *optimal* that is within the gap, or what a time limit left. So
    PuLP builds the model here, and HiGHS is asked itself for what it has found.

    Parameters
    ----------
    problem : pulp.LpProblem
        All its variables have a value.
    limit : Limit
    time_s : float, optional
        For measurements: with it the answer depends on the machine.
    """
    pulp, highspy = importlib.import_module("pulp"), importlib.import_module("highspy")
    # The gap of HiGHS is 1e-4 unless it is told; its seed is fixed.
    options = {"mip_rel_gap": limit.gap, "mip_abs_gap": 1e-6, "parallel": "off"}
    if limit.nodes is not None:
        options["mip_max_nodes"] = limit.nodes
    solver = pulp.HiGHS(msg=False, threads=1, timeLimit=time_s, **options)
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    model, variables = problem.solverModel, problem.variables()
    start = highspy.HighsSolution()
    start.col_value = [each.varValue for each in variables]
    model.setSolution(start)
    _run_highs(model, highspy)
    optimal = model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    if optimal and not _is_what_it_says(model):
        # HiGHS 1.16.0 may have found the optimum while it simplified, and then gives the start.
        model.clearSolver()
        _run_highs(model, highspy)
    status, info = model.getModelStatus(), model.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if found:
        for each, value in zip(variables, model.getSolution().col_value, strict=True):
            each.varValue = value
    none = (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
    )
    return Search(found, status in none, info.mip_dual_bound)


def _run_highs(model: Any, highspy: Any) -> None:
    if model.run() == highspy.HighsStatus.kError:
        raise HpcextError(
            "HiGHS failed", do="use one thread wherever else this process uses HiGHS, or CBC"
        )


def _is_what_it_says(model: Any) -> bool:
    """Whether the solution of HiGHS has the value that it names."""
    values, costs = model.getSolution().col_value, model.getLp().col_cost_
    value = math.fsum(cost * each for cost, each in zip(costs, values, strict=True))
    said = model.getInfo().objective_function_value
    return math.isclose(value, said, rel_tol=PROVEN, abs_tol=PROVEN)


def cbc(problem: Any, limit: Limit, time_s: float | None = None) -> Search:
    """Minimise with CBC: the one that PuLP has with it, else the ``cbc`` of the search path.

    PuLP gives CBC the start (``warmStart``), and its status *optimal* is not enough here either,
    hence the status of the solution, and the log for the bound.

    Parameters
    ----------
    problem : pulp.LpProblem
        All its variables have a value.
    limit : Limit
    time_s : float, optional
        For measurements: with it the answer depends on the machine.
    """
    pulp = importlib.import_module("pulp")
    with tempfile.TemporaryDirectory(prefix="hpcext-cbc-") as place:
        log = Path(place) / "log"
        # Its preprocessing may cut off the optimum and prove the rest (2.10.3, of a sum that is to
        # be 0 to 3.5), and without it may crash where there is no solution.
        for options in (["preprocess off"], []):
            # One thread and a fixed seed are what CBC does unless it is told otherwise.
            solver = pulp.COIN_CMD(
                path=_cbc_path(), msg=False, timeLimit=time_s, logPath=str(log), warmStart=True,
                gapRel=limit.gap, maxNodes=limit.nodes, options=options,
            )  # fmt: skip
            solver.tmpDir = place
            try:
                problem.solve(solver)
                break
            except pulp.PulpSolverError as error:
                failure = error
        else:
            # It crashes, for one, where the working directory has been removed.
            raise HpcextError(
                f"CBC failed: {failure}", do="see that the working directory is there"
            )
        printed = dict(
            re.findall(r"^(Objective value|Lower bound): +(\S+)$", log.read_text(), re.M)
        )
    found = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    bound = -math.inf
    if "Lower bound" in printed:
        bound = float(printed["Lower bound"]) - 5e-4
    elif problem.sol_status == pulp.LpSolutionOptimal:
        bound = float(printed.get("Objective value", bound))
    # "Integer infeasible" has this status, and a status of the solution that says nothing.
    return Search(found, problem.status == pulp.LpStatusInfeasible, bound)


def _cbc_path() -> str | None:
    """Where CBC is; None if it is nowhere."""
    pulp = importlib.import_module("pulp")
    # PULP_CBC_CMD itself warns that PuLP 4 will not have it.
    legacy = getattr(pulp, "PULP_CBC_CMD", None)
    paths = ([legacy.pulp_cbc_path] if legacy else []) + [pulp.COIN_CMD().path]
    found = (pulp.COIN_CMD.executable(path) for path in paths)
    return next((path for path in found if path), None)


def find_solver() -> Solver:
    """HiGHS if it is installed, else CBC.

    Raises
    ------
    InputError
        Neither is; it says what to install.
    """
    pulp = need("pulp")
    if pulp.HiGHS().available():
        return highs
    if _cbc_path():
        return cbc
    raise InputError("PuLP finds neither HiGHS nor CBC", do=install("milp"))


class Programme:
    """A maximisation, written for a solver.

    Attributes
    ----------
    problem : pulp.LpProblem
        The minimisation of the opposite, scaled.
    largest : float
        Of the coefficients of the objective.
    """

    def __init__(self) -> None:
        self.pulp = importlib.import_module("pulp")
        self.problem = self.pulp.LpProblem("hpcext", self.pulp.LpMinimize)
        self.largest = 0.0
        self._terms: list[tuple[Any, float]] = []

    def binary(self, name: str, start: bool) -> Any:
        """A variable that is 0 or 1, and the value that the search starts with."""
        return self._variable(name, 1, self.pulp.LpBinary, int(start))

    def real(self, name: str, most: float, start: float) -> Any:
        """A variable from 0 to `most`, and the value that the search starts with."""
        return self._variable(name, most, self.pulp.LpContinuous, start)

    def _variable(self, name: str, most: float, kind: str, start: float) -> Any:
        variable = self.problem.add_variable(name, 0, most, kind)
        variable.varValue = start
        return variable

    def sum(self, variables: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        """As an expression."""
        ones = [1.0] * len(variables)
        pairs = zip(variables, ones if weights is None else weights, strict=True)
        return self.pulp.LpAffineExpression(list(pairs))

    def hold(self, *constraints: Any) -> None:
        """Add constraints."""
        for each in constraints:
            self.problem += each

    def gain(self, variable: Any, coefficient: float) -> None:
        """Add to the objective."""
        self._terms.append((variable, coefficient))
        self.largest = max(self.largest, abs(coefficient))

    def proven(self, value: float, bound: float) -> bool:
        """What a solver can prove of a value."""
        return bound - value <= PROVEN * max(abs(value), self.largest)

    def maximize(self, solver: Solver, limit: Limit) -> Search:
        """Search; the bound is that of the gains, an upper one.

        Raises
        ------
        ValueError
            The limit is none.
        HpcextError
            The solver failed.
        """
        if (limit.nodes is not None and limit.nodes < 0) or not 0 <= limit.gap < 1:
            raise ValueError(f"{limit}: nodes must be None, 0 or more, and the gap in [0, 1)")
        scale = SCALE / (self.largest or 1.0)
        terms = [(variable, -scale * coefficient) for variable, coefficient in self._terms]
        self.problem += self.pulp.LpAffineExpression(terms)
        found, infeasible, bound = solver(self.problem, limit)
        return Search(found, infeasible, -bound / scale)
