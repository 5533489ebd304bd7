"""Solvers of mixed-integer programmes, HiGHS and CBC, and programmes for them, in PuLP.

No solver is imported before it is needed.
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
"""Relative distance from its bound within which a value is optimal; solvers prove no less."""

SCALE = 1e3
"""Largest coefficient of a scaled objective: the tolerances of solvers are absolute (1e-6 and
less), and CBC prints a bound with three digits after the point."""


class SearchLimit(NamedTuple):
    """A limit of a search, not in seconds, so that its result is the same on every machine.

    Attributes
    ----------
    nodes : int or None
        Nodes of the search tree; None: no limit. With 0, HiGHS does not solve the root either, and
        returns the start.
    gap : float
        Relative gap to the optimum that is good enough, 0 <= `gap` < 1.
    """

    nodes: int | None = None
    gap: float = 0.0


class Search(NamedTuple):
    """The outcome of a search; the variables of the problem have the values that it found.

    Attributes
    ----------
    found, infeasible : bool
        Whether there is a solution, and whether it is proven that there is none. Neither if the
        limit came first.
    bound : float
        Lower bound on the solutions of the problem, a minimisation; minus infinity if unknown.
    """

    found: bool
    infeasible: bool
    bound: float


NO_LIMIT = SearchLimit()

Solver = Callable[[Any, SearchLimit], Search]
"""A function that minimises an ``LpProblem`` of PuLP, quietly and deterministically, starting from
the values of its variables."""


def highs(problem: Any, limit: SearchLimit, time_s: float | None = None) -> Search:
    """Minimise with HiGHS, in this process.

    ``LpProblem.solve`` of PuLP 3.3 takes no start for HiGHS (it passes ``warmStart`` on as an
    option, which HiGHS silently refuses), fails with a KeyError when the limit of nodes is reached,
    and calls a solution *optimal* that is within the gap or was found by a time limit. So PuLP only
    builds the model here, and HiGHS itself is asked for its result.

    Parameters
    ----------
    problem : pulp.LpProblem
        All its variables have a value.
    limit : SearchLimit
    time_s : float, optional
        For measurements: with it the answer depends on the machine.
    """
    pulp, highspy = importlib.import_module("pulp"), importlib.import_module("highspy")
    # The gap of HiGHS is 1e-4 by default; its seed is fixed.
    options = {"mip_rel_gap": limit.gap, "mip_abs_gap": 1e-6, "parallel": "off", "threads": 1}
    if limit.nodes is not None:
        options["mip_max_nodes"] = limit.nodes
    if time_s is not None:
        options["time_limit"] = time_s
    model, variables = _quiet_highs(highspy), problem.variables()
    for option, value in options.items():
        model.setOptionValue(option, value)
    problem.solverModel = model
    pulp.HiGHS(msg=False).buildSolverModel(problem)
    start = highspy.HighsSolution()
    start.col_value = [each.varValue for each in variables]
    model.setSolution(start)
    _run_highs(model, highspy)
    optimal = model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    if optimal and not _is_what_it_says(model):
        # HiGHS 1.16.0 may find the optimum in presolve, and then return the start.
        model.clearSolver()
        _run_highs(model, highspy)
    status, info = model.getModelStatus(), model.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if found:
        for each, value in zip(variables, model.getSolution().col_value, strict=True):
            each.varValue = value
    none = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    return Search(found, status in none, info.mip_dual_bound)


def _quiet_highs(highspy: Any) -> Any:
    """Return a model of HiGHS that prints nothing.

    HiGHS 1.16.0 prints two lines while its constructor enables callbacks, where a caller can set no
    option yet.
    """

    def enable(model: Any) -> None:
        model.setOptionValue("output_flag", False)
        highspy.Highs.enableCallbacks(model)

    quiet = type("QuietHighs", (highspy.Highs,), {"enableCallbacks": enable})()
    # Other releases may enable callbacks later, or never.
    quiet.setOptionValue("output_flag", False)
    return quiet


def _run_highs(model: Any, highspy: Any) -> None:
    if model.run() == highspy.HighsStatus.kError:
        raise HpcextError(
            "HiGHS failed",
            do="use CBC, or have the rest of this process use HiGHS with one thread only",
        )


def _is_what_it_says(model: Any) -> bool:
    """Return whether the solution of HiGHS has the objective value that HiGHS states."""
    values, costs = model.getSolution().col_value, model.getLp().col_cost_
    value = math.fsum(cost * each for cost, each in zip(costs, values, strict=True))
    said = model.getInfo().objective_function_value
    return math.isclose(value, said, rel_tol=PROVEN, abs_tol=PROVEN)


def cbc(problem: Any, limit: SearchLimit, time_s: float | None = None) -> Search:
    """Minimise with CBC: the one that comes with PuLP, else ``cbc`` of the search path.

    PuLP passes the start to CBC (``warmStart``), but its status *optimal* is not reliable here
    either; hence the status of the solution, and the log for the bound.

    Parameters
    ----------
    problem : pulp.LpProblem
        All its variables have a value.
    limit : SearchLimit
    time_s : float, optional
        For measurements: with it the answer depends on the machine.
    """
    pulp = importlib.import_module("pulp")
    with tempfile.TemporaryDirectory(prefix="hpcext-cbc-") as place:
        log = Path(place) / "log"
        # Its preprocessing may cut off the optimum and prove the rest optimal (2.10.3, with a sum
        # in 0 to 3.5), and without preprocessing it may crash where there is no solution.
        for options in (["preprocess off"], []):
            # By default CBC uses one thread and a fixed seed.
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
            # For example, it crashes where the working directory has been removed.
            raise HpcextError(
                f"CBC failed: {failure}", do="check that the working directory exists"
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
    # "Integer infeasible" has this status, and an unspecific status of the solution.
    return Search(found, problem.status == pulp.LpStatusInfeasible, bound)


def _cbc_path() -> str | None:
    """Return the path of CBC; None if it is not installed."""
    pulp = importlib.import_module("pulp")
    # PULP_CBC_CMD warns that PuLP 4 will no longer have it.
    legacy = getattr(pulp, "PULP_CBC_CMD", None)
    paths = ([legacy.pulp_cbc_path] if legacy else []) + [pulp.COIN_CMD().path]
    found = (pulp.COIN_CMD.executable(path) for path in paths)
    return next((path for path in found if path), None)


def find_solver() -> Solver:
    """Return HiGHS if it is installed, else CBC.

    Raises
    ------
    InputError
        Neither is installed; the message says what to install.
    """
    pulp = need("pulp")
    if pulp.HiGHS().available():
        return highs
    if _cbc_path():
        return cbc
    raise InputError("PuLP finds neither HiGHS nor CBC", do=install("milp"))


class Programme:
    """A maximisation, formulated for a solver.

    Attributes
    ----------
    problem : pulp.LpProblem
        The minimisation of the negative objective, scaled.
    largest : float
        Largest coefficient of the objective.
    """

    def __init__(self) -> None:
        self.pulp = importlib.import_module("pulp")
        self.problem = self.pulp.LpProblem("hpcext", self.pulp.LpMinimize)
        self.largest = 0.0
        self._terms: list[tuple[Any, float]] = []

    def binary(self, name: str, start: bool) -> Any:
        """Add a variable that is 0 or 1, with a start value."""
        return self._variable(name, 1, self.pulp.LpBinary, int(start))

    def real(self, name: str, most: float, start: float) -> Any:
        """Add a variable from 0 to `most`, with a start value.

        Parameters
        ----------
        name : str
        most, start : float
        """
        return self._variable(name, most, self.pulp.LpContinuous, start)

    def _variable(self, name: str, most: float, kind: str, start: float) -> Any:
        variable = self.problem.add_variable(name, 0, most, kind)
        variable.varValue = start
        return variable

    def sum(self, variables: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        """Return the weighted sum of variables as an expression."""
        ones = [1.0] * len(variables)
        pairs = zip(variables, ones if weights is None else weights, strict=True)
        return self.pulp.LpAffineExpression(list(pairs))

    def hold(self, *constraints: Any) -> None:
        """Add constraints."""
        for each in constraints:
            self.problem += each

    def gain(self, variable: Any, coefficient: float) -> None:
        """Add a term to the objective."""
        self._terms.append((variable, coefficient))
        self.largest = max(self.largest, abs(coefficient))

    def proven(self, value: float, bound: float) -> bool:
        """Return whether a value is as close to its bound as a solver can prove."""
        return bound - value <= PROVEN * max(abs(value), self.largest)

    def maximize(self, solver: Solver, limit: SearchLimit) -> Search:
        """Search for the maximum; the bound is an upper one on the objective.

        Raises
        ------
        ValueError
            The limit is not valid.
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
