"""The size that a scaling curve speaks for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core.estimate import Estimate, Observed
from hpcext.scaling.curve import fewest_near_best, interpolate
from hpcext.scaling.estimator import GpuCounts, speedups

CURVES = st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1e6), min_size=1)


@given(CURVES, st.floats(0, 0.5))
def test_it_is_near_the_best_and_none_smaller_is(curve: dict[int, float], within: float) -> None:
    found = fewest_near_best(curve, within)
    enough = (1 - within) * sorted(curve.values())[-1]
    assert curve[found] >= enough
    assert all(speed < enough for gpus, speed in curve.items() if gpus < found)


def test_two_percent_are_given_up_by_default() -> None:
    assert fewest_near_best({1: 97.9, 2: 98.1, 3: 100.0}) == 2
    assert fewest_near_best({1: 97.9, 2: 98.1, 3: 100.0}, within=0) == 3


@pytest.mark.parametrize(("curve", "within"), [({}, 0.02), ({1: 1.0}, 1.0), ({1: 1.0}, -0.1)])
def test_what_has_no_best_is_refused(curve: dict[int, float], within: float) -> None:
    with pytest.raises(ValueError, match=r"best|within"):
        fewest_near_best(curve, within)


@given(
    st.dictionaries(st.integers(1, 40), st.floats(0.01, 100), min_size=1, max_size=6),
    st.integers(0, 50),
)
def test_many_speeds_at_once_are_as_each_alone(curve: dict[int, float], gpus: int) -> None:
    found = speedups(Estimate(stated=curve), GpuCounts.on_one_node(np.array([gpus, 1])))
    assert found is not None
    assert found.tolist() == pytest.approx(
        [interpolate(curve, gpus) / interpolate(curve, 1), 1.0], rel=1e-9
    )


def test_what_is_stated_goes_before_what_was_measured() -> None:
    sizes = GpuCounts.on_one_node(np.array([0, 1, 4]))
    assert speedups(Estimate(), sizes) is None
    both = Estimate(stated={1: 1.0, 4: 2.0}, observed=(Observed(4, 1, 9.0),))
    assert speedups(both, sizes) == pytest.approx([0, 1, 2])
