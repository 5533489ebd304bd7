"""Pollux's genetic search, against all allocations that there are."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.policies.pollux.genetic import Floats, Ints, evaluate, fits, search


class SearchProblem(NamedTuple):
    """What a search is given."""

    speedups: Floats
    capacity: Ints
    current: Ints
    factors: Floats
    most: Ints


def case(
    rng: np.random.Generator, jobs: int, capacity: list[int], fit: bool = True
) -> SearchProblem:
    """Power laws, slower on several nodes; what is allocated now fits, or is anything."""
    gpus = np.arange(sum(capacity) + 1)
    one = (gpus / max(1.0, gpus[-1] / jobs)) ** rng.uniform(0.4, 0.95, (jobs, 1))
    several = one * rng.uniform(0.4, 0.95, (jobs, 1))
    current = np.zeros((jobs, len(capacity)), dtype=np.int64)
    left = np.array(capacity)
    for job in range(jobs):
        if fit:
            node = int(rng.integers(len(capacity)))
            current[job, node] = rng.integers(left[node] + 1)
            left -= current[job]
        else:
            current[job] = rng.integers(left + 3)
    factors = np.where(current.any(axis=1), rng.uniform(0.3, 1, jobs), 1.0)
    most = current.sum(axis=1) + rng.integers(1, 4, jobs) if fit else rng.integers(0, 9, jobs)
    return SearchProblem(
        np.stack([one, several], axis=2) + 1e-3, np.array(capacity), current, factors, most
    )


def found(given_: SearchProblem, p: float = -1.0, seed: int = 0, **kwargs: Any) -> Ints:
    rng = np.random.default_rng(seed)
    return search(
        given_.speedups, given_.capacity, given_.current, given_.factors, p,
        most=given_.most, rng=rng, **kwargs,
    )  # fmt: skip


def stated(allocation: Ints, given_: SearchProblem, p: float) -> float:
    """Equation 14, word for word."""
    speedups = []
    for job, row in enumerate(allocation.tolist()):
        nodes = sum(gpus > 0 for gpus in row)
        speedup = float(given_.speedups[job][sum(row)][1 if nodes > 1 else 0])
        if row != given_.current[job].tolist():
            speedup *= float(given_.factors[job])
        speedups.append(speedup)
    if p == 0:
        return math.prod(speedups) ** (1 / len(speedups))
    return (sum(speedup**p for speedup in speedups) / len(speedups)) ** (1 / p)


@given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from([-10.0, -1.0, 0.0, 0.5, 1.0, 2.0]),
)
@settings(max_examples=200, deadline=None)
def test_fitness_is_what_the_paper_says(
    seed: int, jobs: int, capacity: list[int], p: float
) -> None:
    rng = np.random.default_rng(seed)
    given_ = case(rng, jobs, capacity)
    matrices = np.zeros((5, jobs, len(capacity)), dtype=np.int64)
    for matrix in matrices[1:]:
        job = int(rng.integers(jobs))
        matrix[:] = given_.current
        matrix[job] = rng.integers(np.array(capacity) + 1)
    rest = (given_.speedups, given_.current, given_.factors, p)
    fitness = evaluate(matrices, *rest)
    assert fitness.shape == (5,)
    assert fitness == pytest.approx([stated(each, given_, p) for each in matrices], rel=1e-9)
    assert float(evaluate(matrices[1], *rest)) == pytest.approx(fitness[1], rel=1e-12)


def test_what_changes_pays() -> None:
    """Whatever it has now; two that are served alike count alike."""
    speedups = np.tile(np.array([[0.0, 0.0], [1.0, 0.5], [2.0, 1.0]]), (2, 1, 1))
    current = np.array([[1, 0], [0, 0]])
    factors = np.array([0.5, 0.25])
    moved = np.array([[0, 1], [0, 0]])
    started = np.array([[1, 0], [0, 1]])
    spread = np.array([[1, 1], [0, 0]])
    fitness = evaluate(np.stack([current, moved, started, spread]), speedups, current, factors, 1.0)
    assert fitness.tolist() == [0.5, 0.25, 0.625, 0.25]
    assert evaluate(current, speedups, current, factors, 0.0) == 0.0
    assert evaluate(current, speedups, current, factors, -1.0) == 0.0


def test_what_fits() -> None:
    capacity, most = np.array([2, 2, 2]), np.array([4, 2])
    good = [[[2, 0, 0], [0, 2, 0]], [[1, 1, 0], [1, 0, 0]], [[1, 1, 0], [0, 0, 2]]]
    bad = [
        [[3, 0, 0], [0, 0, 0]],  # no room on a node
        [[0, 0, 0], [1, 1, 1]],  # more than the job may have
        [[1, 1, 0], [0, 1, 1]],  # two distributed jobs on a node
        [[1, -1, 0], [0, 0, 0]],
    ]
    assert fits(np.array(good), capacity, most).tolist() == [True] * 3
    assert fits(np.array(bad), capacity, most).tolist() == [False] * 4


@given(
    st.integers(0, 2**32),
    st.integers(1, 8),
    st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    st.booleans(),
    st.sampled_from([-1.0, 0.0, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_result_fits_and_is_no_worse_than_the_current_map(
    seed: int, jobs: int, capacity: list[int], fit: bool, p: float
) -> None:
    given_ = case(np.random.default_rng(seed), jobs, capacity, fit)
    rest = (given_.speedups, given_.current, given_.factors, p)
    allocation = found(given_, p, seed, population=20, generations=10)
    assert fits(allocation, given_.capacity, given_.most)
    if fit:
        assert fits(given_.current, given_.capacity, given_.most)
        assert evaluate(allocation, *rest) >= evaluate(given_.current, *rest)


def test_a_seed_has_one_answer_and_inputs_stay_as_they_were() -> None:
    given_ = case(np.random.default_rng(1), 12, [4] * 4)
    before = [each.copy() for each in given_]
    first = found(given_, generations=30)
    assert (found(given_, generations=30) == first).all()
    assert all((one == other).all() for one, other in zip(given_, before, strict=True))
    assert first.dtype == np.int64


def best(given_: SearchProblem, p: float) -> float:
    """Of all allocations that fit."""
    rows = [range(int(gpus) + 1) for gpus in given_.capacity]
    every = itertools.product(itertools.product(*rows), repeat=len(given_.current))
    matrices = np.array(list(every))
    matrices = matrices[fits(matrices, given_.capacity, given_.most)]
    rest = (given_.speedups, given_.current, given_.factors, p)
    return float(evaluate(matrices, *rest).max())


def test_how_often_it_finds_the_best_of_tiny_machines() -> None:
    """Of forty, 40 times; three jobs on two nodes of two or three GPUs."""
    reached = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        given_ = case(rng, 3, [2 + seed % 2, 2])
        rest = (given_.speedups, given_.current, given_.factors, -1.0)
        allocation = found(given_, seed=seed, population=50, generations=40)
        reached.append(float(evaluate(allocation, *rest)) / best(given_, -1.0))
    assert max(reached) <= 1 + 1e-12
    assert np.mean(np.array(reached) > 1 - 1e-9) >= 0.9


def test_longer_searches_find_more() -> None:
    given_ = case(np.random.default_rng(4), 16, [4] * 8)
    given_ = given_._replace(most=np.full(16, 8))
    rest = (given_.speedups, given_.current, given_.factors, -1.0)
    some = [found(given_, generations=count) for count in (1, 10, 100)]
    fitness = evaluate(np.array(some), *rest)
    assert fitness[0] < fitness[1] < fitness[2]
    assert not given_.current.any(axis=1).all()
    assert some[2].any(axis=1).all()
