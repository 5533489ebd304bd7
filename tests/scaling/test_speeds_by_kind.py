"""What is believed of a job's speed where there are several kinds of GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core.estimate import Estimate, GoodputReport, Observed
from hpcext.scaling.estimator import GpuCounts, alone_s, rate_alone, speedups
from hpcext.scaling.kinds import alike, curve_of

SIZES = GpuCounts.on_one_node(np.array([0, 1, 2]))
STATED = Estimate(by_kind={"a100": {1: 6.0, 2: 11.0}, "v100": {1: 2.0, 2: 3.0}}, work=60.0)


def of(known: Estimate, kind: str, *, ring: bool = False) -> list[float]:
    found = speedups(known, SIZES, kind, ring=ring)
    assert found is not None
    return [float(each) for each in found]


def test_stated_kinds_are_multiples_of_one_gpu_of_the_slowest() -> None:
    assert of(STATED, "v100") == [0, 1, 1.5]
    assert of(STATED, "a100") == [0, 3, 5.5]
    assert of(STATED, "NVIDIA A100-SXM4-80GB") == [0, 3, 5.5]
    for other in ("", "h100"):
        assert of(STATED, other) == of(STATED, "v100")
    assert (rate_alone(STATED), alone_s(STATED)) == (2.0, 30.0)


def test_what_is_stated_for_all_kinds_is_the_same_on_all() -> None:
    known = Estimate(stated={1: 2.0, 2: 3.0}, observed=(Observed(1, 1, 9.0, kind="a100"),))
    assert of(known, "a100") == of(known, "v100") == [0, 1, 1.5]


def reported(known: Estimate, kind: str, pass_s: float) -> Estimate:
    """What is known once a training on this kind has said how long its passes take."""
    said = GoodputReport(0.0, 32, 32, throughput=(pass_s, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    return known.reached(known.step + 1, known.done + 32, goodput=said, kind=kind)


def test_a_reported_throughput_counts_for_the_kind_on_which_it_was_reported() -> None:
    known = reported(reported(Estimate(), "a100", 1.0), "v100", 3.0)
    assert of(known, "v100")[1] == pytest.approx(1.0)
    assert of(known, "a100")[1] == pytest.approx(3.0)
    # No job was on an h100: it is believed to be as where it is now.
    assert of(known, "h100") == of(known, "v100")


def test_stated_curves_say_how_a_reported_throughput_compares_on_another_kind() -> None:
    known = reported(STATED, "NVIDIA A100-SXM4-80GB", 1.0)
    assert of(known, "a100")[1] == pytest.approx(3.0)
    assert of(known, "v100")[1] == pytest.approx(1.0)
    known = reported(known, "v100", 2.0)
    assert of(known, "NVIDIA A100-SXM4-80GB")[1] == pytest.approx(2.0)


@pytest.mark.parametrize("ring", [False, True])
def test_what_was_measured_counts_for_its_kind(ring: bool) -> None:
    """No job was on an h100: it is believed to be as where it was longest."""
    known = Estimate(
        observed=(
            Observed(1, 1, 6.0, seconds=10, kind="a100"),
            Observed(1, 1, 2.0, seconds=20, kind="v100"),
            Observed(2, 1, 3.0, seconds=20, kind="v100"),
        ),
        work=60.0,
    )
    assert of(known, "v100", ring=ring) == pytest.approx([0, 1, 1.5], rel=0.05)
    assert of(known, "a100", ring=ring)[:2] == pytest.approx([0, 3], rel=0.05)
    assert of(known, "h100", ring=ring) == of(known, "v100", ring=ring)
    assert rate_alone(known, ring=ring) == pytest.approx(2.0, rel=0.05)
    longer = Estimate(
        observed=(*known.observed, Observed(2, 1, 12.0, seconds=99, kind="a100")), work=60.0
    )
    assert of(longer, "h100", ring=ring) == of(longer, "a100", ring=ring)
    assert rate_alone(longer, ring=ring) == pytest.approx(2.0, rel=0.05)
    assert alone_s(longer, ring=ring) == pytest.approx(30.0, rel=0.05)


def test_the_same_size_is_kept_once_for_each_kind() -> None:
    known = Estimate()
    for at_s, kind, rate in ((1.0, "b", 3.0), (2.0, "a", 5.0), (4.0, "b", 4.0)):
        known = known.saw(at_s, 0.0, Observed(1, 1, rate, kind=kind))
    assert [(each.kind, each.rate) for each in known.observed] == [("a", 5.0), ("b", 4.0)]
    assert known.measured == {1: 4.0}, "the last report"


@pytest.mark.parametrize(
    ("kind", "names", "found"),
    [
        ("a100", ["a100", "NVIDIA A100"], "a100"),
        ("tesla_v100", ["Tesla V100-SXM2-16GB", "Tesla P100"], "Tesla V100-SXM2-16GB"),
        ("NVIDIA GeForce RTX 2080 Ti", ["rtx_2080", "rtx_2080_ti"], "rtx_2080_ti"),
        ("rtx_2080", ["NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 2080"],
         "NVIDIA GeForce RTX 2080"),
        ("v100s", ["v100"], None), ("", ["v100"], None), ("a100", [], None),
    ],
)  # fmt: skip
def test_names_of_one_kind(kind: str, names: list[str], found: str | None) -> None:
    assert alike(kind, names) == found


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.dictionaries(st.integers(1, 8), st.floats(0.1, 100), min_size=1),
        min_size=1,
    ),
    st.sampled_from(["a", "b", "d"]),
)
def test_no_kind_is_slower_than_one_gpu_of_the_reference(
    by_kind: dict[str, dict[int, float]], kind: str
) -> None:
    known = Estimate(by_kind=by_kind)
    one = [of(known, each)[1] for each in by_kind]
    assert min(one) == pytest.approx(1.0)
    assert of(known, kind)[1] == pytest.approx(1.0 if kind not in by_kind else of(known, kind)[1])
    curve = curve_of(by_kind, kind)
    assert curve in by_kind.values()
    assert kind not in by_kind or curve is by_kind[kind]


def test_a_job_that_was_never_on_one_gpu_is_not_infinitely_fast_there() -> None:
    seen = (Observed(2, 1, 0.97, batch=1.13), Observed(6, 1, 0.86))
    found = speedups(Estimate(observed=seen), GpuCounts.on_one_node(np.array([1, 2, 6])))
    assert found is not None
    assert np.isfinite(found).all()
    assert found[0] == 1
    assert (found > 0).all()
