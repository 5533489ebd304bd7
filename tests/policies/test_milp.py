"""The paper's integer programme and the counting model, against the kernel and all divisions."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core.errors import HpcextError, InputError
from hpcext.policies.solve import milp, solvers
from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.counting import Constraint, solve_counts
from hpcext.policies.solve.milp import MapAnswer, Trainer, gain_table, solve_map
from hpcext.policies.solve.solvers import Search, SearchLimit, Solver, cbc, find_solver, highs
from hpcext.policies.solve.tables import ValueTable

pytestmark = pytest.mark.filterwarnings("error")

SOLVERS = [highs, cbc]
Map = np.ndarray[Any, np.dtype[np.bool_]]


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Trainer], Map, float]:
    """Curves of any shape, whole speeds for ties, maps that are feasible, nodes in any order."""
    nodes = draw(st.integers(0, 12))
    current = np.zeros((draw(st.integers(1, 4)), nodes), dtype=bool)
    free = list(draw(st.permutations(range(nodes))))
    speed = draw(st.sampled_from([st.integers(0, 5).map(float), st.floats(0, 100)]))
    cost_s = st.sampled_from([0.0, 5.0, 20.0, 300.0])
    trainers = []
    for row in current:
        points = sorted(draw(st.sets(st.integers(1, 14), min_size=1, max_size=4)))
        speeds = {0: 0.0, **{point: round(draw(speed), 3) for point in points}}
        least, most = sorted(draw(st.tuples(*[st.integers(1, points[-1])] * 2)))
        trainers.append(Trainer(least, most, speeds, draw(cost_s), draw(cost_s)))
        if least <= len(free) and draw(st.booleans()):
            for _ in range(draw(st.integers(least, min(most, len(free))))):
                row[free.pop()] = True
    return trainers, current, draw(st.sampled_from([0.0, 30.0, 120.0]))


def straight(speeds: dict[int, float], count: int) -> float:
    """Eq. 12, written again."""
    points = sorted(speeds.items())
    for (n, low), (m, high) in itertools.pairwise(points):
        if n <= count <= m:
            return low + (high - low) * (count - n) / (m - n)
    raise AssertionError(count)


def follows_the_paper(
    answer: MapAnswer, trainers: Sequence[Trainer], current: Map, forward_s: float
) -> None:
    """Eq. 3, 5, 6 of the map that is the answer; Eq. 16 of its value."""
    value = 0.0
    assert answer.map.shape == current.shape
    assert (answer.map.sum(axis=0) <= 1).all()
    for trainer, before, after, count in zip(
        trainers, current, answer.map, answer.counts, strict=True
    ):
        has = int(before.sum())
        assert count == after.sum()
        assert count == 0 or trainer.least <= count <= trainer.most
        assert (before != after).sum() == abs(count - has)
        cost_s = trainer.up_s if count > has else trainer.down_s if count < has else 0.0
        speeds = dict(trainer.speeds)
        value += forward_s * straight(speeds, count) - cost_s * straight(speeds, has)
    assert answer.value == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert answer.bound >= answer.value


def tables_of(trainers: Sequence[Trainer], current: Map, forward_s: float) -> list[ValueTable]:
    pairs = zip(trainers, current.sum(axis=1).tolist(), strict=True)
    return [gain_table(trainer, has, forward_s) for trainer, has in pairs]


def agree(problem: tuple[list[Trainer], Map, float], solver: Solver) -> None:
    nodes = problem[1].shape[1]
    answer = solve_map(*problem, solver=solver)
    follows_the_paper(answer, *problem)
    tables = tables_of(*problem)
    exact = pytest.approx(apportion(tables, nodes).value, rel=1e-6, abs=1e-9)
    counted = solve_counts(tables, nodes, solver=solver)
    assert answer.value == exact
    assert counted.value == exact
    assert answer.proven
    assert counted.proven


@pytest.mark.cases(1)
@pytest.mark.parametrize("solver", SOLVERS)
def test_three_ways_to_one_optimum(solver: Solver) -> None:
    @given(problems())
    @settings(max_examples=40, deadline=None)
    def one(problem: tuple[list[Trainer], Map, float]) -> None:
        agree(problem, solver)

    one()


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_optimum_that_is_found_while_the_problem_is_simplified(solver: Solver) -> None:
    """HiGHS 1.16.0 names its value, and gives the start as its solution."""
    idle, one = Trainer(1, 2, {0: 0.0, 2: 0.0}, 0.0, 0.0), Trainer(1, 1, {0: 0.0, 1: 1.0}, 0.0, 0.0)
    agree(([idle, one], np.array([[False, True, True], [False] * 3]), 30.0), solver)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("solver", SOLVERS)
def test_three_ways_to_one_optimum_thousands_of_times(solver: Solver) -> None:
    @given(problems())
    @settings(max_examples=3000, deadline=None)
    def one(problem: tuple[list[Trainer], Map, float]) -> None:
        agree(problem, solver)

    one()


def saturating(jobs: int, seed: int, most: int = 64) -> list[Trainer]:
    """Trainers like those of the paper: points at powers of two, an efficiency that falls."""
    rng = np.random.default_rng(seed)
    points = [0, *(2**k for k in range(most.bit_length()) if 2**k <= most)]
    found = []
    for _ in range(jobs):
        first, power = rng.uniform(1e3, 7e3), rng.uniform(0.8, 0.99)
        speeds = {n: first * n**power for n in points}
        found.append(Trainer(1, points[-1], speeds, 20.0, 5.0))
    return found


def feasible(trainers: Sequence[Trainer], nodes: int, seed: int) -> Map:
    rng = np.random.default_rng(seed)
    current = np.zeros((len(trainers), nodes), dtype=bool)
    free = rng.permutation(nodes).tolist()
    for row, trainer in zip(current, trainers, strict=True):
        if len(free) >= trainer.least and rng.random() < 0.7:
            most = min(trainer.most, len(free))
            for _ in range(int(rng.integers(trainer.least, most + 1))):
                row[free.pop()] = True
    return current


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("jobs", "nodes"), [(10, 100), (30, 400)])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_sizes_of_the_paper(solver: Solver, jobs: int, nodes: int) -> None:
    trainers = saturating(jobs, 1)
    current = feasible(trainers, nodes, 2)
    answer = solve_map(trainers, current, 120.0, SearchLimit(gap=0.01), solver)
    follows_the_paper(answer, trainers, current, 120.0)
    exact = apportion(tables_of(trainers, current, 120.0), nodes)
    assert answer.bound >= exact.value * (1 - 1e-6)
    assert exact.value * 0.99 <= answer.value <= exact.value * (1 + 1e-9)


# Of Eq. 10, 4, 11-12, 16 and section 3.6, what was easy to get wrong.


def test_an_m_of_one_more_than_the_nodes_loses_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [Trainer(8, 10, {0: 0.0, 10: 10.0}, 20.0, 5.0)]
    problem = waits, np.zeros((1, 10), dtype=bool), 120.0
    assert solve_map(*problem).counts == (10,)
    # More than |N|, as the paper asks.
    monkeypatch.setattr(milp, "_big_m", lambda trainers, nodes: nodes + 1)
    assert solve_map(*problem).counts == (0,)


def test_a_trainer_that_wants_more_nodes_than_there_are_waits() -> None:
    large = Trainer(50, 60, {0: 0.0, 60: 1e3}, 20.0, 5.0)
    small = Trainer(1, 4, {0: 0.0, 4: 8.0}, 20.0, 5.0)
    answer = solve_map([large, small], np.zeros((2, 5), dtype=bool), 120.0)
    assert answer.counts == (0, 4)
    assert answer.value == 120 * 8.0


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_speed_between_points_is_that_of_the_two_next_to_it(solver: Solver) -> None:
    # Convex: without adjacency 3 nodes of the first would be worth three quarters of 12.
    convex = Trainer(1, 4, {0: 0.0, 2: 1.0, 4: 12.0}, 0.0, 0.0)
    line = Trainer(1, 4, {0: 0.0, 4: 10.0}, 0.0, 0.0)
    answer = solve_map([convex, line], np.zeros((2, 3), dtype=bool), 1.0, solver=solver)
    assert answer.counts == (0, 3)
    assert answer.bound == pytest.approx(7.5)


def test_a_start_is_free_and_a_change_is_not() -> None:
    curve = {0: 0.0, 1: 1.0, 2: 1.5}
    dear = Trainer(1, 2, curve, 1e6, 1e6)
    assert solve_map([dear], np.zeros((1, 2), dtype=bool), 10.0).counts == (2,)
    assert solve_map([dear], np.array([[True, False]]), 10.0).counts == (1,)


def test_a_trainer_keeps_its_nodes() -> None:
    trainers = [Trainer(1, 3, {0: 0.0, 3: 3.0}, 1.0, 1.0)] * 2
    current = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]], dtype=bool)
    answer = solve_map(trainers, current, 120.0)
    assert answer.map[current].all()
    assert sum(answer.counts) == 5


# Limits and starts.


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_search_starts_from_the_current_map(
    solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = saturating(4, 3, 16)
    current = feasible(trainers, 30, 3)
    logs, read = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: logs.append(read(path)) or logs[-1])
    searches = []

    def kept(problem: Any, limit: SearchLimit) -> Search:
        searches.append(solver(problem, limit))
        return searches[-1]

    answer = solve_map(trainers, current, 120.0, SearchLimit(nodes=0), kept)
    if solver is cbc:
        assert "MIPStart provided solution with cost" in logs[0]
    else:
        # It has not even solved the root, and has a solution.
        assert searches == [Search(True, False, -math.inf)]
        assert (answer.map == current).all()
        assert not answer.proven


@pytest.mark.cases(1)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_limit_of_nodes_leaves_a_map_that_is_as_good_as_the_current_one(solver: Solver) -> None:
    trainers = [
        each._replace(least=least)
        for each, least in zip(saturating(8, 3, 32), (6, 1, 2, 2, 2, 6, 7, 6), strict=True)
    ]
    current = feasible(trainers, 60, 3)
    stopped = solve_map(trainers, current, 120.0, SearchLimit(nodes=1), solver)
    follows_the_paper(stopped, trainers, current, 120.0)
    exact = apportion(tables_of(trainers, current, 120.0), 60)
    pairs = zip(trainers, current.sum(axis=1).tolist(), strict=True)
    assert sum(float(each.gain(n, n, 120.0)) for each, n in pairs) <= stopped.value
    assert stopped.value <= exact.value * (1 + 1e-9)
    assert exact.value <= stopped.bound < math.inf
    assert not stopped.proven


def knapsacks() -> tuple[list[ValueTable], list[Constraint]]:
    """What no solver proves at the root: many jobs of one size each, five licences."""
    rng = np.random.default_rng(1)
    tables = [ValueTable(np.array([0, 1]), np.array([0.0, v])) for v in rng.uniform(10, 99, 40)]
    costs = rng.integers(10, 99, (5, 40))
    constraints = [
        Constraint(f"licence {number}", runs=dict(enumerate(row)), most=sum(row) // 2)
        for number, row in enumerate(costs.tolist())
    ]
    return tables, constraints


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_limit_of_nodes_stops_a_search_the_same_way_each_time(solver: Solver) -> None:
    tables, constraints = knapsacks()
    best = solve_counts(tables, 40, constraints, solver=highs)
    stopped = solve_counts(tables, 40, constraints, SearchLimit(nodes=2), solver)
    assert best.proven
    assert not stopped.proven
    assert stopped.value <= best.value <= stopped.bound < math.inf
    assert holds(stopped.counts, 40, constraints)
    assert solve_counts(tables, 40, constraints, SearchLimit(nodes=2), solver) == stopped


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_gap_that_is_allowed_is_kept(solver: Solver) -> None:
    tables, constraints = knapsacks()
    best = solve_counts(tables, 40, constraints, solver=highs)
    near = solve_counts(tables, 40, constraints, SearchLimit(gap=0.05), solver)
    assert best.value * 0.95 <= near.value <= best.value <= near.bound + 1e-6 * best.value
    assert not near.proven


def test_the_better_of_found_and_current_is_the_answer() -> None:
    trainers = saturating(3, 4, 16)
    current = feasible(trainers, 20, 4)
    assert current.any()
    has = sum(
        float(each.gain(n, n, 60.0)) for each, n in zip(trainers, current.sum(1), strict=True)
    )

    def nothing(problem: Any, limit: SearchLimit) -> Search:
        return Search(False, False, -math.inf)

    def worse(problem: Any, limit: SearchLimit) -> Search:
        for variable in problem.variables():
            variable.varValue = 0.0
        return Search(True, False, -math.inf)

    for solver in (nothing, worse):
        answer = solve_map(trainers, current, 60.0, SearchLimit(nodes=1), solver)
        assert (answer.map == current).all()
        assert answer.value == pytest.approx(has)
        assert answer.bound == math.inf
        assert not answer.proven
    with pytest.raises(ValueError, match=r"no division .* within SearchLimit\(nodes=1"):
        solve_counts(*knapsacks()[:1], 40, (), SearchLimit(nodes=1), nothing)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_is_quiet_and_gives_the_same_map_again(
    solver: Solver, capfd: pytest.CaptureFixture[str]
) -> None:
    trainers = saturating(5, 5, 16)
    current = feasible(trainers, 40, 5)
    first, second = (solve_map(trainers, current, 120.0, solver=solver) for _ in range(2))
    assert (first.map == second.map).all()
    assert first[1:] == second[1:]
    assert capfd.readouterr() == ("", "")


# A site's constraints.


def holds(counts: Sequence[int], total: int, constraints: Sequence[Constraint]) -> bool:
    """Written again, from what is said of a constraint."""
    for _, units, runs, least, most in constraints:
        load = sum(
            units.get(job, 0) * n + runs.get(job, 0) * (n > 0) for job, n in enumerate(counts)
        )
        if (least is not None and load < least) or (most is not None and load > most):
            return False
    return sum(counts) <= total


def divisions(
    tables: Sequence[ValueTable], total: int, constraints: Sequence[Constraint]
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All that satisfy the constraints, with their values."""
    every = (zip(each.sizes.tolist(), each.values.tolist(), strict=True) for each in tables)
    for choice in itertools.product(*every):
        counts = tuple(size for size, _ in choice)
        if holds(counts, total, constraints):
            yield math.fsum(value for _, value in choice), counts


@st.composite
def constrained(draw: st.DrawFn) -> tuple[list[ValueTable], int, list[Constraint]]:
    """Halves as coefficients, so that both sides compute exactly."""
    tables = []
    for _ in range(draw(st.integers(1, 4))):
        sizes = [0, *sorted(draw(st.sets(st.integers(1, 8), max_size=4)))]
        values = [round(draw(st.floats(-2, 9)), 4) for _ in sizes]
        tables.append(ValueTable(np.array(sizes), np.array(values)))
    half = st.integers(-4, 8).map(lambda twice: twice / 2)
    some = st.dictionaries(st.integers(0, len(tables) - 1), half, max_size=3)
    constraints = []
    for number in range(draw(st.integers(0, 3))):
        units, runs = draw(some), draw(some)
        least, most = sorted(draw(st.tuples(half, half)))
        least, most = draw(st.sampled_from([(None, most), (least, None), (least, most)]))
        if units or runs:
            constraints.append(Constraint(f"c{number}", units, runs, least, most))
    return tables, draw(st.integers(0, 16)), constraints


def against_all(problem: tuple[list[ValueTable], int, list[Constraint]], solver: Solver) -> None:
    tables, total, constraints = problem
    best = max((value for value, _ in divisions(*problem)), default=None)
    if best is None:
        with pytest.raises(ValueError, match="no division of") as said:
            solve_counts(*problem, solver=solver)
        named = [each for each in constraints if repr(each.name) in str(said.value)]
        assert not any(divisions(tables, total, named))
        for each in named:
            fewer = [other for other in named if other is not each]
            assert any(divisions(tables, total, fewer))
        return
    answer = solve_counts(*problem, solver=solver)
    assert answer.value == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert answer.proven
    found = [counts for value, counts in divisions(*problem) if abs(value - answer.value) < 1e-9]
    assert answer.counts in found


@pytest.mark.cases(1)
@pytest.mark.parametrize("solver", SOLVERS)
def test_constraints_against_all_divisions(solver: Solver) -> None:
    @given(constrained())
    @settings(max_examples=60, deadline=None)
    def one(problem: tuple[list[ValueTable], int, list[Constraint]]) -> None:
        against_all(problem, solver)

    one()


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_best_division_is_at_the_edge_of_a_constraint(solver: Solver) -> None:
    """CBC's preprocessing cuts it off: 2 of the one and 1 of the other are exactly 3.5."""
    first = ValueTable(np.array([0, 2, 3, 4, 5]), np.array([6.5, 6.0, 0.0, 0.0, 0.0]))
    other = ValueTable(np.array([0, 1, 4, 5]), np.array([-1.0, 0.0, 0.0, 0.0]))
    edge = Constraint("c0", {0: 2.0, 1: -0.5}, {}, 0.0, 3.5)
    answer = solve_counts([first, other], 3, [edge], solver=solver)
    assert (answer.counts, answer.value) == ((2, 1), 6.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("solver", SOLVERS)
def test_constraints_against_all_divisions_thousands_of_times(solver: Solver) -> None:
    @given(constrained())
    @settings(max_examples=3000, deadline=None)
    def one(problem: tuple[list[ValueTable], int, list[Constraint]]) -> None:
        against_all(problem, solver)

    one()


def lines(jobs: int, most: int = 8) -> list[ValueTable]:
    """Each unit is worth one, and a little more for the first job than for the next."""
    sizes = np.arange(most + 1)
    return [ValueTable(sizes, sizes * (1 - 0.01 * job)) for job in range(jobs)]


def test_quota_minimum_and_licences() -> None:
    quota = Constraint("quota", {0: 1, 1: 1}, most=5)
    share = Constraint("share", {2: 1}, least=3)
    licence = Constraint("licence", runs={0: 1, 1: 1}, most=1)
    assert solve_counts(lines(3), 12).counts == (8, 4, 0)
    assert solve_counts(lines(3), 12, [quota]).counts == (5, 0, 7)
    assert solve_counts(lines(3), 6, [share]).counts == (3, 0, 3)
    assert solve_counts(lines(3), 12, [licence]).counts == (8, 0, 4)


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (
            [Constraint("group", {0: 1, 1: 1}, least=20), Constraint("other", {0: 1}, most=3)],
            "no division of 12 units satisfies constraint 'group': its sum can be 0 to 12, must be"
            " at least 20",
        ),
        (
            [Constraint("even", {0: 2}, least=3, most=3)],
            "constraint 'even': its sum can be 0 to 16, must be at least 3 and at most 3",
        ),
        (
            [
                Constraint("a", {0: 1}, least=7),
                Constraint("b", {1: 1}, most=2),
                Constraint("c", {1: 1, 2: 1}, least=6),
            ],
            "no division of 12 units satisfies these constraints together: 'a', 'c'",
        ),
    ],
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_constraints_that_cannot_hold_are_named(
    solver: Solver, constraints: list[Constraint], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        solve_counts(lines(3), 12, constraints, solver=solver)


# What is no input.


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (Constraint("x", most=1), "constraint 'x' has no coefficient"),
        (Constraint("x", {3: 1}, most=1), "constraint 'x': there is no job 3, only 0 to 2"),
        (Constraint("x", runs={-1: 1}, most=1), "constraint 'x': there is no job -1"),
        (Constraint("x", {0: 1}), "constraint 'x' has neither least nor most"),
        (Constraint("x", {0: math.nan}, most=1), "'x': coefficients and limits must be finite"),
        (Constraint("x", {0: 1}, most=math.inf), "'x': coefficients and limits must be finite"),
        (Constraint("x", {0: 1}, least=3, most=2), "'x': least 3 is more than most 2"),
    ],
)
def test_invalid_constraints_are_refused(constraint: Constraint, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        solve_counts(lines(3), 12, [constraint])


def test_invalid_tables_totals_and_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="table 0: the first size is not 0"):
        solve_counts([ValueTable(np.array([1]), np.array([1.0]))], 12)
    with pytest.raises(ValueError, match="-1 units cannot be divided"):
        solve_counts(lines(3), -1)
    for limit in (SearchLimit(nodes=-1), SearchLimit(gap=1.0), SearchLimit(gap=math.nan)):
        with pytest.raises(ValueError, match=r"nodes must be None, 0 or more, and the gap in \[0"):
            solve_counts(lines(3), 12, limit=limit)
    assert solve_counts([], 3) == ((), 0.0, 0.0, True)


GOOD = Trainer(2, 4, {0: 0.0, 4: 1.0}, 20.0, 5.0)


@pytest.mark.parametrize(
    ("trainer", "held", "said"),
    [
        (GOOD, [1, 0, 0, 0, 0, 0], "trainer 1 has 1 nodes: must be 2 to 4, or none"),
        (GOOD, [1, 1, 1, 1, 1, 0], "trainer 1 has 5 nodes: must be 2 to 4, or none"),
        (GOOD, [0, 0, 0, 0, 1, 1], "node 4 has 2 trainers: at most 1"),
        (GOOD._replace(least=0), [0] * 6, "trainer 1 runs on 0 to 4 nodes: must be 1 <= least"),
        (GOOD._replace(least=5), [0] * 6, "trainer 1 runs on 5 to 4 nodes"),
        (GOOD._replace(speeds={1: 1.0, 4: 2.0}), [0] * 6, r"speeds at \[1, 4\]: must be 0 to 4"),
        (GOOD._replace(speeds={0: 1.0, 4: 2.0}), [0] * 6, "trainer 1 has speeds at"),
        (GOOD._replace(speeds={0: 0.0, 3: 2.0}), [0] * 6, "trainer 1 has speeds at"),
        (GOOD._replace(speeds={0: 0.0, 4: math.nan}), [0] * 6, "costs must be finite, 0 or more"),
        (GOOD._replace(up_s=-1.0), [0] * 6, "trainer 1: speeds and costs must be finite"),
    ],
)
def test_invalid_trainers_and_maps_are_refused(
    trainer: Trainer, held: list[int], said: str
) -> None:
    current = np.array([[0, 0, 0, 0, 1, 1] if held[-1] else [0] * 6, held], dtype=bool)
    with pytest.raises(ValueError, match=said):
        solve_map([GOOD, trainer], current, 120.0)


def test_invalid_times_and_arrays_are_refused() -> None:
    none = np.zeros((1, 4), dtype=bool)
    for forward_s in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"forward_s is .*: must be finite, 0 or more"):
            solve_map([GOOD], none, forward_s)
    for wrong in (none[0], none.astype(int), np.zeros((2, 4), dtype=bool)):
        with pytest.raises(ValueError, match="must be bool, with a row for each of 1 trainers"):
            solve_map([GOOD], wrong, 120.0)
    nobody = solve_map([], np.zeros((0, 4), dtype=bool), 120.0)
    assert nobody[1:] == ((), 0.0, 0.0, True)


# Solvers that are missing or fail.


def test_highs_is_preferred_and_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import pulp

    assert find_solver() is highs
    monkeypatch.setattr(pulp.HiGHS, "available", lambda _: False)
    assert find_solver() is cbc
    monkeypatch.setattr(solvers, "_cbc_path", lambda: None)
    with pytest.raises(HpcextError, match="neither HiGHS nor CBC; pip install"):
        find_solver()
    monkeypatch.setitem(sys.modules, "pulp", None)
    with pytest.raises(InputError, match=r"PuLP is not installed; pip install 'hpcext\[milp\]'"):
        find_solver()


def test_a_solver_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "_cbc_path", lambda: "/bin/false")
    with pytest.raises(HpcextError, match=r"CBC failed: .*/bin/false"):
        solve_counts(lines(2), 3, solver=cbc)
    # Of HiGHS it depends on what the process did before.
    script = (
        "import highspy, numpy as np\n"
        "from hpcext.policies.solve.tables import ValueTable\n"
        "from hpcext.policies.solve.counting import solve_counts\n"
        "from hpcext.policies.solve.solvers import highs\n"
        "model = highspy.Highs()\n"
        "model.setOptionValue('output_flag', False)\n"
        "model.setOptionValue('threads', 2)\n"
        "model.addVar(0.0, 1.0)\n"
        "model.run()\n"
        "solve_counts([ValueTable(np.arange(3), np.arange(3.0))], 2, solver=highs)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "HpcextError: HiGHS failed; use CBC" in ran.stderr


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_a_solver_prints_nothing(name: str) -> None:
    """What a command prints with ``--json`` is a document, whatever its policy solves."""
    script = (
        "import numpy as np\n"
        "from hpcext.policies.solve.counting import solve_counts\n"
        f"from hpcext.policies.solve.solvers import {name}\n"
        "from hpcext.policies.solve.tables import ValueTable\n"
        f"solve_counts([ValueTable(np.arange(3), np.arange(3.0))], 2, solver={name})\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_no_solver_is_imported_before_it_is_needed() -> None:
    script = (
        "import sys, hpcext.policies.solve.milp\n"
        "print({'pulp', 'highspy', 'scipy'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
