"""The exact division of a resource, against all divisions that there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.tables import ValueTable

NEAR = 1e-9


def table(options: dict[int, float]) -> ValueTable:
    return ValueTable(np.array(list(options)), np.array(list(options.values()), dtype=float))


def tried(tables: Sequence[ValueTable], total: int) -> tuple[float, tuple[int, ...]]:
    """The best of all divisions; of those that are as good, the one that is largest in order."""
    every = itertools.product(*(range(len(each.sizes)) for each in tables))
    found = []
    for choice in every:
        counts = tuple(int(each.sizes[i]) for each, i in zip(tables, choice, strict=True))
        if sum(counts) <= total:
            pairs = zip(tables, choice, strict=True)
            found.append((math.fsum(each.values[i] for each, i in pairs), counts))
    value = max(found)[0]
    return value, max(counts for each, counts in found if each > value - NEAR)


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[ValueTable], int]:
    """Curves of any shape; whole numbers and multiples of the size make ties."""
    tables = []
    for _ in range(draw(st.integers(1, 5))):
        sizes = [0, *sorted(draw(st.sets(st.integers(1, 9), max_size=4)))]
        kind = draw(st.sampled_from(["whole", "linear", "any"]))
        if kind == "linear":
            slope = draw(st.sampled_from([0.5, 1.0, 1.0]))
            values = [slope * size for size in sizes]
        elif kind == "whole":
            values = [float(draw(st.integers(-3, 6))) for _ in sizes]
        else:
            # Six digits: what is nearer than that to a tie is one.
            values = [round(draw(st.floats(-1, 9)), 6) for _ in sizes]
        tables.append(ValueTable(np.array(sizes), np.array(values)))
    return tables, draw(st.integers(0, 20))


@given(instances())
@settings(max_examples=1000)
def test_nothing_is_better_and_ties_go_to_the_first(instance: tuple[list[ValueTable], int]) -> None:
    tables, total = instance
    division = apportion(tables, total)
    value, counts = tried(tables, total)
    assert division.value == pytest.approx(value, abs=NEAR)
    assert division.bound == pytest.approx(value, abs=NEAR)
    assert division.counts == counts
    assert division.price >= 0


@given(instances(), st.integers(0, 5), st.sampled_from([-1e13, -1e300, 1e13]), st.integers(1, 3))
@settings(max_examples=500)
def test_an_absurd_value_changes_nothing_between_the_others(
    instance: tuple[list[ValueTable], int], at: int, value: float, size: int
) -> None:
    tables, total = instance
    absurd = table({0: 0.0, size: value})
    takes = size if value > 0 and size <= total else 0
    _, counts = tried(tables, total - takes)
    division = apportion([*tables[:at], absurd, *tables[at:]], total)
    assert division.counts == (*counts[:at], takes, *counts[at:])


def test_two_absurd_values_of_which_one_fits() -> None:
    tables = [table({0: 0.0, 1: 3.0}), table({0: 0.0, 2: 1e13}), table({0: 0.0, 2: 2e13})]
    division = apportion(tables, 3)
    assert division.counts == (1, 0, 2)
    assert division.bound == pytest.approx(division.value)


def dense(tables: Sequence[ValueTable], total: int) -> float:
    """The value of the best division, by the dynamic programme over everything."""
    best = np.zeros(total + 1)
    for each in tables:
        rows = np.full((len(each.sizes), total + 1), -np.inf)
        for row, (size, value) in enumerate(zip(each.sizes, each.values, strict=True)):
            if size <= total:
                rows[row, size:] = best[: total + 1 - size] + value
        best = rows.max(axis=0)
    return float(best.max())


def rigid(sizes: Sequence[int], values: Sequence[float]) -> list[ValueTable]:
    return [table({0: 0.0, size: value}) for size, value in zip(sizes, values, strict=True)]


def families() -> dict[str, tuple[list[ValueTable], int]]:
    """Instances of forty jobs that have no best price, or have it for many divisions at once."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(10, 64, 40).tolist()
    power = table({0: 0.0, **{2**k: (2.0**k) ** 0.8 for k in range(7)}})
    line = table({size: float(size) for size in range(65)})
    costs = [
        table({n: (0.0 if n == 0 else 100 * n**0.7 - 60 * (n > 9)) for n in range(40)})
        for _ in range(40)
    ]
    return {
        "rigid": (rigid(sizes, rng.uniform(1, 99, 40).tolist()), 700),
        "sums": (rigid(sizes, [float(size) for size in sizes]), 701),
        "even sums, odd total": (rigid([2 * s for s in sizes], [2.0 * s for s in sizes]), 1001),
        "as good and a bonus": (rigid(sizes, [size + 10.0 for size in sizes]), 700),
        "alike": ([costs[0]] * 40, 333),
        "alike, one size": (rigid([64] * 40, [1.0] * 40), 999),
        "powers of two": ([power] * 40, 777),
        "lines": ([line] * 40, 1000),
        "steps": (costs, 500),
        "nothing fits": (rigid(sizes, [1.0] * 40), 5),
    }


@pytest.mark.parametrize("family", families())
def test_hard_families(family: str) -> None:
    tables, total = families()[family]
    division = apportion(tables, total)
    value = dense(tables, total)
    assert division.value == pytest.approx(value, rel=1e-12)
    assert division.bound == pytest.approx(value, rel=1e-12)
    assert sum(division.counts) <= total
    again = sum(
        float(each.values[np.searchsorted(each.sizes, count)])
        for each, count in zip(tables, division.counts, strict=True)
    )
    assert again == pytest.approx(value, rel=1e-12)


def test_the_order_of_jobs_changes_nothing_but_ties() -> None:
    rng = np.random.default_rng(6)
    tables = [table({n: float(rng.uniform(0, 9)) for n in range(30)}) for _ in range(30)]
    forth, back = apportion(tables, 200), apportion(tables[::-1], 200)
    assert forth.value == pytest.approx(back.value, rel=1e-12)
    assert forth.counts == back.counts[::-1]


def test_what_a_unit_more_is_worth() -> None:
    """Of concave curves: the price is between what the last unit gave and what one more gives."""
    tables = [table({n: math.sqrt(a * n) for n in range(50)}) for a in (1, 2, 3)]
    values = [apportion(tables, total).value for total in (59, 60, 61)]
    price = apportion(tables, 60).price
    assert values[2] - values[1] - NEAR <= price <= values[1] - values[0] + NEAR
    assert apportion(tables, 200).price == 0.0


def test_nothing_to_divide() -> None:
    assert apportion([], 7).counts == ()
    assert apportion([table({0: 1.5, 2: 9.0})], 0) == ((0,), 1.5, 1.5, 0.0)


@pytest.mark.parametrize(
    ("sizes", "values", "said"),
    [
        ([0, 1], [0.0, math.nan], "table 1: the value of 1 is nan"),
        ([0, 4], [0.0, math.inf], "table 1: the value of 4 is inf"),
        ([0, 1], [0.0], r"table 1: \(2,\) sizes and \(1,\) values"),
        ([], [], r"table 1: \(0,\) sizes"),
        ([1, 2], [0.0, 1.0], "table 1: the first size is not 0"),
        ([0, 2, 2], [0.0, 1.0, 2.0], "table 1: sizes do not ascend"),
        ([0, 2, 1], [0.0, 1.0, 2.0], "table 1: sizes do not ascend"),
        ([0.0, 1.5], [0.0, 1.0], "table 1: sizes are float64, not whole numbers"),
    ],
)
def test_a_value_that_is_not_a_table_is_refused(
    sizes: list[float], values: list[float], said: str
) -> None:
    good = table({0: 0.0, 1: 1.0})
    with pytest.raises(ValueError, match=said):
        apportion([good, ValueTable(np.array(sizes), np.array(values))], 5)
    with pytest.raises(ValueError, match="-1 units cannot be divided"):
        apportion([good], -1)
