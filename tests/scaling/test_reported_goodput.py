"""A goodput that a job reports is its speed, wherever it makes sense."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core.estimate import Estimate, GoodputReport, Observed
from hpcext.scaling.estimator import GpuCounts, rate_alone, speedups, worth
from hpcext.scaling.goodput import Goodput
from hpcext.scaling.throughput import Throughput

THETA = Throughput(0.02, 0.001, 0.04, 0.005, 0.15, 0.003, 2.5)
SIZES = GpuCounts(np.array([0, 1, 2, 4, 8, 8, 16]), np.array([0, 1, 1, 1, 1, 2, 4]))
STATED = {1: 1.0, 16: 2.0}


def report(noise_scale: float = 1000.0, initial_batch: int = 64, **more: Any) -> GoodputReport:
    return GoodputReport(noise_scale, initial_batch, **{"throughput": tuple(THETA), **more})


def observed(unit: float = 1.0) -> tuple[Observed, ...]:
    """Steps of 256 samples, by THETA; work is counted in so many of them."""
    places = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 4))
    return tuple(
        Observed(gpus, nodes, float(256 / THETA.step_s(gpus, nodes, 256 / gpus)) / unit, 256 / unit)
        for gpus, nodes in places
    )


def by(known: Estimate, sizes: GpuCounts = SIZES, *, ring: bool = False) -> list[float]:
    found = speedups(known, sizes, ring=ring)
    assert found is not None
    return found.tolist()


def test_a_goodput_goes_before_what_is_stated_and_measured_but_not_for_a_ring() -> None:
    model = Goodput(THETA, 1000.0, 64).best(*SIZES).goodput
    without = Estimate(stated=STATED, observed=observed())
    known = Estimate(stated=STATED, observed=observed(), goodput=report())
    assert by(known) == pytest.approx(model / model[1])
    assert by(known) != pytest.approx(by(without))
    assert by(known, ring=True) == by(without, ring=True)


def test_a_job_scales_better_the_larger_its_noise() -> None:
    scales = [0.0, 100.0, 1000.0, 1e5, sys.float_info.max]
    found = [by(Estimate(goodput=report(noise)))[-1] for noise in scales]
    assert found == sorted(found)
    assert found[-1] > 2 * found[0]


def test_parameters_are_fitted_where_work_is_in_samples() -> None:
    # One size of batch does not tell what a pass takes from what a sample takes.
    steps = tuple(
        Observed(gpus, 1, float(batch / THETA.step_s(gpus, 1, batch / gpus)), float(batch))
        for gpus, batch in ((1, 64), (2, 256), (4, 1024), (8, 512))
    )
    sizes = GpuCounts.on_one_node(np.array([1, 2, 4, 8]))
    fitted = by(Estimate(observed=steps, goodput=report(throughput=None)), sizes)
    assert fitted == pytest.approx(by(Estimate(goodput=report()), sizes), rel=0.1)
    assert fitted != pytest.approx(by(Estimate(observed=steps), sizes), rel=0.1)


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        (256.0, {}),
        (256.0, {"initial_batch": 1}),
        (1 / 512, {}),
        (1.0, {"initial_batch": 300}),
        (1.0, {"most_batch": 128}),
    ],
    ids=["steps", "steps or samples", "tokens", "too few", "too many"],
)
def test_work_in_another_unit_tells_no_goodput(unit: float, said: dict[str, Any]) -> None:
    seen = observed(unit)
    without = Estimate(observed=seen)
    assert by(Estimate(observed=seen, goodput=report(throughput=None, **said))) == by(without)


def test_steps_with_too_few_samples_are_left_out() -> None:
    """The last one of an epoch may be smaller."""
    said = report(throughput=None)
    odd = Observed(3, 1, 1.0, 7.0)
    whole = Estimate(observed=observed(), goodput=said)
    assert by(Estimate(observed=(*observed(), odd), goodput=said)) == by(whole)


@pytest.mark.parametrize(
    "said",
    [
        # A batch that two GPUs cannot share, of samples that fit two to a GPU.
        {"initial_batch": 1, "most_batch": 1, "least_per_gpu": 2},
        {"initial_batch": 5, "most_batch": 5, "least_per_gpu": 2, "most_per_gpu": 2},
    ],
)
def test_who_can_run_nowhere_by_its_report_is_believed_the_rest(said: dict[str, Any]) -> None:
    known = Estimate(stated=STATED, goodput=report(**said))
    assert by(known) == by(Estimate(stated=STATED))
    assert speedups(Estimate(goodput=report(**said)), SIZES) is None


def test_sizes_on_which_it_cannot_run_are_slow() -> None:
    """64 samples fit four GPUs, 16 on each, and are enough for eight."""
    bounds = {"most_batch": 64, "least_per_gpu": 8, "most_per_gpu": 16, "accumulates": False}
    said = report(**bounds, throughput=(0.02, 0.001, 0.0, 0.0, 0.0, 0.0, 1.0))
    sizes = GpuCounts.on_one_node(np.array([0, 1, 2, 4, 8, 9]))
    found = by(Estimate(goodput=said), sizes)
    assert found[:4] == pytest.approx([0, 1, 2, 4])
    assert found[4] == pytest.approx(4 * 36 / 28)
    assert found[5] == pytest.approx(4)


def test_parts_of_a_gpu_are_between_whole_ones() -> None:
    known = Estimate(goodput=report())
    two, between, three = by(known, GpuCounts.on_one_node(np.array([2.0, 2.25, 3.0])))
    assert between == pytest.approx(0.75 * two + 0.25 * three)


def test_on_one_gpu_work_is_as_fast_as_the_goodput_has_it() -> None:
    seen = Observed(4, 1, 100.0, 256.0, seconds=9.0)
    known = Estimate(observed=(seen,), goodput=report())
    four = by(known, GpuCounts.on_one_node(np.array([4])))[0]
    assert rate_alone(known) == pytest.approx(100 / four)


SECONDS = st.sampled_from([0.0, 1e-9, 5e-324, 1e-3, 1e6]) | st.floats(0, 1e6)
SAMPLES = st.sampled_from([1, 2, 3, 5, 100, 2**40]) | st.integers(1, 2**40)


@st.composite
def reports(draw: st.DrawFn) -> GoodputReport:
    """Any that is read as one."""
    least, most = sorted((draw(SAMPLES), draw(SAMPLES)))
    few, many = sorted((draw(SAMPLES), draw(SAMPLES)))
    theta = [draw(SECONDS) for _ in range(6)]
    theta[0] = max(theta[0], 1e-9 - theta[1])
    return GoodputReport(
        draw(st.sampled_from([5e-324, 1.0]) | st.floats(0, sys.float_info.max)),
        least,
        draw(st.sampled_from([most, None])),
        few,
        draw(st.sampled_from([many, None])),
        draw(st.booleans()),
        draw(st.sampled_from([(*theta, draw(st.floats(1, 10))), None])),  # type: ignore[arg-type]
    )


@settings(max_examples=150, deadline=None)
@given(reports())
def test_whatever_is_reported_speeds_are_numbers(said: GoodputReport) -> None:
    known = Estimate(observed=observed(), goodput=said)
    sizes = GpuCounts(np.array([0, 1, 2.5, 3, 1000]), np.array([0, 1, 3, 4, 200]))
    with np.errstate(all="raise", under="ignore"):
        found = np.array(by(known, sizes))
    assert np.isfinite(found).all()
    assert found[0] == 0
    assert (found[1:] > 0).all()


def test_what_a_job_is_worth_where_it_is() -> None:
    model = Goodput(THETA, 1000.0, 64)
    found = worth(Estimate(goodput=report(batch=256)), 4, 1)
    assert found is not None
    assert found.batch == 256
    assert found.statistical_efficiency == pytest.approx(1064 / 1256)
    kept = float(THETA.samples_per_s(4, 1, 64))
    assert found.goodput == pytest.approx(kept * 1064 / 1256, rel=0.01)
    four, five = model.best(np.array([4, 5]), 1).goodput
    assert found.gain == pytest.approx(five / four - 1)
    # Without a batch it is taken to be the best.
    best = worth(Estimate(goodput=report()), 4, 1)
    assert best is not None
    assert best.goodput == pytest.approx(four)
    assert best.goodput >= found.goodput


def test_the_worth_of_a_job_without_reports_is_unknown() -> None:
    assert worth(Estimate(stated=STATED, observed=observed()), 4, 1) is None
    assert worth(Estimate(goodput=report(batch=256)), 0, 0) is None
    # It cannot run on so few GPUs, by its own words.
    crowded = report(most_per_gpu=16, accumulates=False, batch=64)
    assert worth(Estimate(goodput=crowded), 2, 1) is None


@given(
    noise=st.floats(0, sys.float_info.max),
    initial=st.integers(1, 2**40),
    batch=st.integers(1, 2**40) | st.none(),
    theta=st.tuples(*[st.floats(0, 1e6)] * 6, st.floats(1, 10)),
    gpus=st.integers(1, 64),
)
@settings(max_examples=60, deadline=None)
def test_a_job_that_lies_harms_only_itself(
    noise: float, initial: int, batch: int | None, theta: tuple[float, ...], gpus: int
) -> None:
    """Whatever the schema lets pass gives finite numbers, or none."""
    try:
        said = GoodputReport(noise, initial, throughput=theta, batch=batch)  # type: ignore[arg-type]
    except ValueError:
        return
    found = worth(Estimate(goodput=said), gpus, 1)
    assert found is None or all(np.isfinite(found))
