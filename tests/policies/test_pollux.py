"""The power mean of speed-ups: against all divisions, and the paper's rules around it."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from market import CURVE, answer, job, sizes, snapshot

from hpcext.core.estimate import Estimate, GoodputReport, Observed
from hpcext.core.values import Job, total
from hpcext.policies.pollux import Options
from hpcext.scaling.curve import interpolate


def speedup(each: Job, gpus: int, jobs: int, machine: int) -> float:
    """Eq. 15 for a job with a stated curve, written down once more."""
    curve = each.estimate.stated
    share = min(machine / jobs, max(each.sizes))
    fair = interpolate_real(curve, max(1.0, share)) * min(1.0, share)
    return interpolate(curve, gpus) / fair


def interpolate_real(curve: dict[int, float], gpus: float) -> float:
    low = interpolate(curve, math.floor(gpus))
    return low + (gpus % 1) * (interpolate(curve, math.ceil(gpus)) - low)


def fitness(values: list[float], p: float) -> float:
    """Eq. 14."""
    if p == 0:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return (math.fsum(value**p for value in values) / len(values)) ** (1 / p)


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=1, max_size=3),
    st.integers(1, 7),
    st.sampled_from([-10.0, -3.0, -1.0, 0.0, 0.5, 1.0]),
)
@example([[1, 1, 1, 1], [1, 5, 1, 1]], 2, 0.0)
@settings(max_examples=200)
def test_no_division_of_one_node_has_a_larger_mean(
    drawn: list[list[int]], gpus: int, p: float
) -> None:
    jobs = [
        job(n, estimate=Estimate(stated={k: float(s) for k, s in enumerate(speeds, 1)}))
        for n, speeds in enumerate(drawn, 1)
    ]
    every = [[speedup(each, n, len(jobs), gpus) for n in range(5)] for each in jobs]
    # Where not all can run, as many do as can, and these have the largest mean.
    running = len(jobs) if p > 0 else min(len(jobs), gpus)

    def mean(counts: tuple[int, ...]) -> float:
        found = [each[n] for each, n in zip(every, counts, strict=True) if n or p > 0]
        return fitness(found, p)

    best = max(
        mean(counts)
        for counts in itertools.product(range(5), repeat=len(jobs))
        if sum(counts) <= gpus and (p > 0 or sum(map(bool, counts)) == running)
    )
    found = sizes(f"pollux:p={p}", snapshot(jobs, a=gpus))
    assert mean(tuple(found.get(each.id, 0) for each in jobs)) == pytest.approx(best)


def test_the_lower_p_the_fairer() -> None:
    flat = job(1, estimate=Estimate(stated={1: 1.0, 2: 1.1, 3: 1.15, 4: 1.17}))
    steep = job(2, estimate=Estimate(stated={1: 1.0, 4: 4.0}))
    now = snapshot([flat, steep], a=4)
    # Both are sped up by 3 and 1.5; equal shares would leave each at 1.
    assert sizes("pollux:p=1", now) == {"1": 1, "2": 3}
    unfair = snapshot([job(1, estimate=Estimate(stated={1: 1.0, 4: 2.0})), steep], a=5)
    assert sizes("pollux:p=1", unfair) == {"1": 1, "2": 4}
    assert sizes("pollux:p=-10", unfair) == {"1": 2, "2": 3}


@pytest.mark.parametrize("p", [-1, -0.1, -0.01, -0.002, -1e-6, -1e-300, 0])
def test_as_many_jobs_run_as_can_however_near_0_the_power_is(p: float) -> None:
    fast, slow = ({n: speed * n for n in (1, 2, 4, 8)} for speed in (1.0, 0.2))
    jobs = [
        job(number, sizes=(1, 2, 4, 8), estimate=Estimate(stated=(fast, slow)[number % 2]))
        for number in range(8)
    ]
    assert len(sizes(f"pollux:p={p}", snapshot(jobs, a=8, b=8))) == 8
    short = [job(number, sizes=(4,) if number < 3 else (1,)) for number in range(30)]
    assert len(sizes(f"pollux:p={p}", snapshot(short, a=8, b=8))) == 16
    # One that fits nowhere makes the mean no less of a number.
    assert len(sizes(f"pollux:p={p}", snapshot([*jobs, job(9, sizes=(9,))], a=8, b=8))) == 8


def test_what_is_not_known_is_explored_by_doubling() -> None:
    new = Estimate()
    assert sizes("pollux", snapshot([job(1, 8, estimate=new)], a=8)) == {"1": 1}
    seen = Estimate(observed=(Observed(1, 1, 5.0, seconds=100.0),))
    running = job(1, 8, {"a": 1}, estimate=seen, most_gpus=1, submitted_s=-1e4)
    assert sizes("pollux", snapshot([running], a=8)) == {"1": 2}
    more = Estimate(observed=(*seen.observed, Observed(2, 1, 9.9, seconds=100.0)))
    running = job(1, 8, {"a": 2}, estimate=more, most_gpus=2, submitted_s=-1e4)
    assert sizes("pollux", snapshot([running], a=8)) == {"1": 4}
    # What is stated need not be explored.
    assert sizes("pollux", snapshot([job(1)], a=8)) == {"1": 4}


@pytest.mark.parametrize(
    ("age_s", "moves", "gets"), [(0.0, 0, 1), (1000.0, 0, 4), (1000.0, 30, 1), (100_000.0, 30, 4)]
)
def test_a_job_that_was_moved_often_for_its_age_stays(age_s: float, moves: int, gets: int) -> None:
    """REALLOC_FACTOR: (T - R delta) / (T + delta), and four GPUs are 2.8 times as fast as one."""
    assert Options().delay_s == 30
    running = job(1, 4, {"a": 1}, moves=moves, submitted_s=5000.0 - age_s)
    assert sizes("pollux", snapshot([running], 5000.0, a=4)) == {"1": gets}


def test_its_own_cost_is_used_where_it_is_known() -> None:
    """At 30 s of age two GPUs are 0.9 of the speed of one, with 30 s of delay; 1.6 with 4 s."""
    for up_s, gets in ((None, 1), (4.0, 2)):
        known = Estimate(stated={1: 1.0, 2: 1.8}, up_s=up_s)
        running = job(1, 2, {"a": 1}, estimate=known)
        assert sizes("pollux", snapshot([running], 30.0, a=2)) == {"1": gets}


def test_two_jobs_on_several_nodes_do_not_share_a_node() -> None:
    wide = [
        job(n, 2, nodes=(1, 4), estimate=Estimate(stated={k: float(k) for k in range(1, 9)}))
        for n in (1, 2)
    ]
    target = answer("pollux", snapshot([*wide, job(3)], a=4, b=4, c=4, d=4))
    several = [set(grant.alloc) for grant in target.grants.values() if len(grant.alloc) > 1]
    assert len(several) == 2
    assert not several[0] & several[1]
    # Each of the others keeps two nodes, so that no node has more room than that.
    assert total(target.grants["3"].alloc) == 2
    assert target.value is not None
    assert target.bound is not None
    assert 0 < target.value <= target.bound


def test_a_weight_counts() -> None:
    jobs = [job(1, estimate=Estimate(stated=CURVE)), job(2, weight=9.0)]
    assert sizes("pollux", snapshot(jobs, a=5)) == {"1": 1, "2": 4}


THETA = (0.02, 0.001, 0.01, 0.002, 0.1, 0.003, 1.5)


@pytest.mark.parametrize("policy", ["pollux", "pollux:p=1", "pollux:search=genetic", "bftrainer"])
def test_who_has_more_noise_gets_more(policy: str) -> None:
    """Two jobs of which one can use larger batches; by throughput they are the same."""

    def reporting(n: int, noise_scale: float) -> Job:
        said = GoodputReport(noise_scale, 64, throughput=THETA)
        known = Estimate(stated=CURVE, goodput=said)
        return job(n, 8, {"a": 4}, estimate=known, most_gpus=4, submitted_s=-1e5)

    got = sizes(policy, snapshot([reporting(1, 10.0), reporting(2, 1e5)], a=8))
    assert got["1"] < got["2"], got
    alike = sizes(policy, snapshot([reporting(1, 300.0), reporting(2, 300.0)], a=8))
    assert abs(alike["1"] - alike["2"]) <= 1, alike
