"""From reports to a speed, and from several measurements to one."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.scaling.curve import robust_mean, shape
from hpcext.scaling.steady import STEADY, WINDOWS, Mark, speed

RATES = st.floats(0.01, 1e6)
WEIGHTS = st.floats(1e-3, 1e6)


def marks(lengths: list[float], steps: int = 10, samples: float = 1.0) -> list[Mark]:
    """One mark, then one more after each of so many seconds, each `steps` later."""
    ends = itertools.accumulate([0.0, *lengths])
    return [Mark(at, n * steps, n * steps * samples) for n, at in enumerate(ends, start=1)]


def test_warm_up_is_left_out() -> None:
    found = speed(marks([60.0, 5.0, 1.0, 1.0, 1.0], samples=8))
    assert found is not None
    assert (found.steps_per_s, found.done_per_s, found.seconds) == (10, 80, 3)


def test_less_than_two_reports_say_nothing() -> None:
    assert speed([]) is None
    assert speed([Mark(1, 1, 1)]) is None
    assert speed(marks([2.0])) == (5.0, 5.0, 2.0, math.inf)


def test_steady_is_known_from_enough_even_windows_only() -> None:
    even = speed(marks([1.0] * 2 * WINDOWS))
    assert even is not None
    assert even.steady
    few = speed(marks([1.0] * (2 * WINDOWS - 2)))
    assert few is not None
    assert not few.steady
    # A warm-up as long as all the rest is forgotten.
    slow_first = speed(marks([9.0] * WINDOWS + [1.0] * WINDOWS))
    assert slow_first is not None
    assert slow_first.steady
    uneven = speed(marks([1.0, 1.5] * 2 * WINDOWS))
    assert uneven is not None
    assert uneven.half_width > STEADY


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30), st.floats(0.1, 100))
def test_speed_lies_among_its_windows_and_follows_the_clock(
    lengths: list[float], faster: float
) -> None:
    found, other = speed(marks(lengths)), speed(marks([each / faster for each in lengths]))
    assert found is not None
    assert other is not None
    rates = [10 / each for each in lengths]
    assert min(rates) * 0.999 <= found.steps_per_s <= max(rates) * 1.001
    assert other.steps_per_s == pytest.approx(found.steps_per_s * faster)
    if math.isfinite(found.half_width):
        assert other.half_width == pytest.approx(found.half_width, abs=1e-6)


@given(st.lists(st.tuples(RATES, WEIGHTS), min_size=2, max_size=8), RATES, WEIGHTS)
def test_one_outlier_does_not_move_the_mean_out_of_the_others(
    good: list[tuple[float, float]], bad: float, weight: float
) -> None:
    values, weights = zip(*good, (bad, weight), strict=True)
    mean = robust_mean(values, weights)
    rest = values[:-1]
    low, high = min(rest), max(rest)
    # The bad value is left out, or it is nearer to the others than one of these is.
    near = (high - low) if len(rest) > 1 else 0
    assert low - near - 1e-9 * high <= mean <= (high + near) * (1 + 1e-9)


@given(st.lists(st.tuples(RATES, WEIGHTS), min_size=1, max_size=8))
def test_the_mean_lies_among_the_values(pairs: list[tuple[float, float]]) -> None:
    values, weights = zip(*pairs, strict=True)
    slack = 1e-9 * max(values)
    assert min(values) - slack <= robust_mean(values, weights) <= max(values) + slack


def test_longer_measurements_weigh_more() -> None:
    assert robust_mean([10.0, 20.0], [3, 1]) == 12.5
    assert robust_mean([10.0, 1000.0, 20.0], [1, 1e9, 1]) == 15


@given(st.dictionaries(st.integers(1, 64), RATES, min_size=1), RATES)
def test_a_shape_has_no_unit(curve: dict[int, float], unit: float) -> None:
    found = shape(curve)
    assert found == pytest.approx(shape({gpus: rate * unit for gpus, rate in curve.items()}))
    assert found[min(curve)] == 1
    assert list(found) == sorted(curve)
