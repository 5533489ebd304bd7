"""A job that is as slow on more GPUs, and was never seen on one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core.estimate import Estimate, Observed
from hpcext.core.history.losses import Point, add
from hpcext.scaling.estimator import GpuCounts, rate_alone, speedups, work_left

SIZES = GpuCounts.on_one_node(np.array([0, 1, 2, 4, 8]))


def test_it_is_not_believed_to_be_endlessly_fast_on_one_gpu() -> None:
    seen = (Observed(4, 1, 0.92, 1.06, seconds=9.0), Observed(8, 1, 0.80, 0.94))
    known = Estimate(observed=seen)
    found = speedups(known, SIZES)
    assert found is not None
    assert found[0] == 0
    # The steps are as long as each other, whatever the GPUs.
    assert found[1:] == pytest.approx(np.ones(4), abs=0.3)
    assert rate_alone(known) == pytest.approx(0.92, rel=0.2)


def test_nonsense_that_a_job_reports_ends_no_decision() -> None:
    for rate, batch in ((5e-324, 1e308), (1e308, 5e-324), (1e308, 1e308), (5e-324, 5e-324)):
        known = Estimate(observed=(Observed(1, 1, 1.0), Observed(2, 1, rate, batch)))
        for ring in (False, True):
            found = speedups(known, SIZES, ring=ring)
            assert found is not None
            assert np.isfinite(found).all(), (rate, batch, ring)


@pytest.mark.parametrize("scale", [1e308, 1e15, -1e308, 1e-300])
def test_nor_do_losses_that_make_no_sense(scale: float) -> None:
    losses: tuple[Point, ...] = ()
    for step in range(1, 31):
        losses = add(losses, step, scale * (-1) ** step / step)
    for target in (0.1, -1e300):
        known = Estimate(losses=losses, target_loss=target, step=30, done=30.0)
        left = work_left(known)
        assert left is None or np.isfinite(left)


@settings(max_examples=15, deadline=None)
@given(
    st.dictionaries(
        st.integers(1, 8),
        st.tuples(st.floats(0.01, 100), st.floats(0.1, 1000)),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_seen_speeds_are_numbers(seen: dict[int, tuple[float, float]]) -> None:
    known = Estimate(observed=tuple(Observed(k, 1, *seen[k], seconds=1.0) for k in sorted(seen)))
    found = speedups(known, SIZES)
    assert found is not None
    assert found[0] == 0
    assert (found[1:] > 0).all()
    assert np.isfinite(found).all()
    assert rate_alone(known) is not None
