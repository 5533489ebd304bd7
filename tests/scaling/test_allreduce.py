"""The resource model of all-reduce that is fitted to speeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.scaling.allreduce import AllReduce, fit


def test_equation_5_with_its_theta() -> None:
    """With theta 2, 3, 5 and 7, a batch of 12 and a model of 24, on 4 workers."""
    model = AllReduce(divided=2 * 12, latency=3, sent=5 * 24, constant=7)
    assert model.speed(4) == pytest.approx(1 / (2 * 12 / 4 + 3 * 3 + 5 * 3 * 24 / 4 + 7))
    assert model.speed([[0, 1], [2, 4]]).shape == (2, 2)
    assert model.speed(0) == 0.0


MODELS = st.builds(
    AllReduce,
    divided=st.floats(0.1, 10),
    latency=st.floats(0, 0.1),
    sent=st.floats(0, 1),
    constant=st.floats(0, 1),
)


@given(model=MODELS, unit=st.sampled_from([1e-6, 1.0, 1e6]))
@settings(deadline=None)  # The first one imports SciPy.
def test_exact_speeds_are_found_again_everywhere(model: AllReduce, unit: float) -> None:
    """In any unit; also on numbers of workers that were not measured."""
    workers = np.array([1, 2, 4, 8])
    found = fit(workers, model.speed(workers) * unit)
    more = np.array([3, 6, 16, 64])
    assert found.speed(more) == pytest.approx(model.speed(more) * unit, rel=1e-6)
    # The linearly dependent columns are not both used.
    assert min(found.divided, found.sent) == 0


@given(
    points=st.dictionaries(st.integers(1, 64), st.floats(0.01, 100), min_size=1, max_size=6),
    share=st.floats(0.1, 10),
)
@settings(deadline=None)
def test_no_speed_up_is_larger_than_the_workers(points: dict[int, float], share: float) -> None:
    """However the measured speeds lie."""
    found = fit(list(points), list(points.values()), [share * w for w in points])
    assert min(found) >= 0
    assert np.isfinite(found.speed(1))
    w = np.arange(1, 129)
    for times in (2, 3, 10):
        assert (found.speed(times * w) <= times * found.speed(w) * (1 + 1e-9)).all()


def test_one_number_of_workers_scales_perfectly() -> None:
    found = fit([4, 4], [9.0, 11.0])
    assert found.divided > 0
    assert found[1:] == (0, 0, 0)
    assert found.speed(8) == pytest.approx(2 * found.speed(4))
    assert 9 < found.speed(4) < 11


@pytest.mark.parametrize(("two", "limit"), [(1.8, 9.0), (1.0, 1.0), (0.8, 2 / 3)])
def test_two_numbers_tell_a_limit(two: float, limit: float) -> None:
    """Amdahl's law where the second is faster; where it is slower, no speed is lower than 0."""
    found = fit([1, 2], [1.0, two])
    assert found.latency == 0
    assert found.speed([1, 2]) == pytest.approx([1.0, two])
    assert found.speed(1e9) == pytest.approx(limit, rel=1e-6)


def test_relative_errors_count() -> None:
    """Times that are off by the same factors are off by the same, small or large."""
    workers, speeds = [1, 1, 8, 8], [1.0, 1.1, 8.0, 8.8]
    found = fit(workers, speeds)
    off = np.array(speeds) / found.speed(workers)
    assert off[:2] == pytest.approx(off[2:], rel=1e-6)


def test_weights_count() -> None:
    light = fit([2, 2], [1.0, 3.0], [1.0, 100.0])
    assert 2.8 < light.speed(2) < 3.0
    # A weight is as good as a repetition.
    often = fit([1, 2, 2, 2, 4], [1.0, 1.7, 1.8, 1.8, 2.5])
    weighted = fit([1, 2, 2, 4], [1.0, 1.7, 1.8, 2.5], [1.0, 1.0, 2.0, 1.0])
    assert often == pytest.approx(weighted)


@pytest.mark.parametrize(
    ("workers", "speeds", "weights", "said"),
    [
        ([], [], None, r"\(0,\) workers"),
        ([1, 2], [1.0], None, r"\(2,\) workers, \(1,\) speeds"),
        ([1, 2], [1.0, 0.0], None, r"point 1: speed 0\.0: must be > 0 and finite"),
        ([1, 2], [1.0, np.nan], None, "point 1: speed nan"),
        ([1], [1.0], [-1.0], r"point 0: weight -1\.0"),
        ([0], [1.0], None, "0 workers: must be at least 1"),
    ],
)
def test_invalid_measurements_are_refused(
    workers: list[int], speeds: list[float], weights: list[float] | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fit(workers, speeds, weights)
