"""Batch sizing: exact sums, exact optima, the published rules, and the rule that fits lines."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.scaling.balance import (
    IterationRecord,
    LeaderStraggler,
    Line,
    Sizes,
    Speeds,
    WorkerBounds,
    even,
    level,
    removable,
)
from hpcext.scaling.balance import lines as balance_lines
from hpcext.scaling.balance.lines import Affine
from hpcext.scaling.balance.rules import RULES

lines = st.builds(
    Line, st.floats(0, 10, allow_subnormal=False), st.floats(1e-3, 10, allow_subnormal=False)
)


def seen(
    sizes: Sizes, gamma: Sequence[Line], noise: Callable[[], float] = lambda: 1.0
) -> IterationRecord:
    """An iteration of workers that are as these lines say."""
    times = tuple(line.at(size) * noise() for line, size in zip(gamma, sizes, strict=True))
    speeds = tuple(size / time for size, time in zip(sizes, times, strict=True))
    return IterationRecord(sizes, times, (0.5,) * len(sizes), speeds)


def longest(gamma: Sequence[Line], sizes: Sizes) -> float:
    return max(line.at(size) for line, size in zip(gamma, sizes, strict=True))


def optimum(gamma: Sequence[Line], total: int) -> float:
    workers = len(gamma)
    return longest(gamma, level(gamma, total, [1] * workers, [total] * workers))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 20))
def test_even_is_even(total: int, workers: int) -> None:
    sizes = even(total, workers)
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 4))
def test_the_level_is_the_best_of_all_divisions(data: st.DataObject, workers: int) -> None:
    gamma = data.draw(st.lists(lines, min_size=workers, max_size=workers))
    least = data.draw(st.lists(st.integers(0, 3), min_size=workers, max_size=workers))
    most = [low + data.draw(st.integers(0, 7)) for low in least]
    total = data.draw(st.integers(sum(least), sum(most)))
    sizes = level(gamma, total, least, most)
    assert sum(sizes) == total
    assert all(a <= size <= b for a, size, b in zip(least, sizes, most, strict=True))
    ranges = [range(low, high + 1) for low, high in zip(least, most, strict=True)]
    best = min(longest(gamma, each) for each in itertools.product(*ranges) if sum(each) == total)
    assert longest(gamma, sizes) == pytest.approx(best)


def test_bounds_that_leave_no_division_are_refused() -> None:
    with pytest.raises(ValueError, match="take 2 to 4"):
        level([Line(0, 1), Line(0, 1)], 5, [1, 1], [2, 2])


def test_bounds_are_widened_where_a_step_needs_it() -> None:
    assert WorkerBounds(2, 8).fitted(40, 4) == WorkerBounds(2, 10)
    assert WorkerBounds(2, 8).fitted(6, 4) == WorkerBounds(1, 8)
    assert WorkerBounds(2).fitted(3, 4) == WorkerBounds(0, None)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(sorted(RULES)),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_every_rule_keeps_sum_and_bounds_whatever_it_sees(
    name: str, workers: int, least: int, seed: int
) -> None:
    draw = random.Random(seed)
    total = draw.randint(least * workers, 40 * workers)
    bounds = WorkerBounds(least, draw.choice([None, -(-total // workers) + draw.randint(0, 20)]))
    rule = RULES[name](even(total, workers), bounds, ())
    for _ in range(40):
        times = tuple(draw.choice([1e-6, 0.5, 1.0, 1e6, float("nan")]) for _ in range(workers))
        memory = tuple(draw.choice([0.2, 0.99]) for _ in range(workers))
        speeds = tuple(size / time for size, time in zip(rule.sizes, times, strict=True))
        sizes = rule.see(IterationRecord(rule.sizes, times, memory, speeds))
        assert sizes == rule.sizes
        assert sum(sizes) == total
        assert min(sizes) >= least
        assert bounds.most is None or max(sizes) <= bounds.most


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(RULES)), st.lists(lines, min_size=2, max_size=6), st.integers(0, 99))
def test_a_resized_step_keeps_its_bounds(name: str, gamma: list[Line], more: int) -> None:
    workers = len(gamma)
    rule = RULES[name](even(10 * workers, workers), WorkerBounds(2), ())
    for _ in range(5):
        rule.see(seen(rule.sizes, gamma))
    sizes = rule.resize(2 * workers + more)
    assert sum(sizes) == 2 * workers + more
    assert min(sizes) >= 2


@pytest.mark.parametrize("name", ["speeds", "affine"])
@settings(deadline=None, max_examples=40)
@given(gamma=st.lists(lines, min_size=2, max_size=8))
def test_affine_workers_are_level_soon(name: str, gamma: list[Line]) -> None:
    """Within a few percent, and a sample of each, of the best division there is."""
    workers = len(gamma)
    rule = RULES[name](even(64 * workers, workers), WorkerBounds(), ())
    for _ in range(80):
        rule.see(seen(rule.sizes, gamma))
    best = optimum(gamma, 64 * workers)
    coarse = max(line.per_sample_s for line in gamma)
    assert longest(gamma, rule.sizes) <= 1.03 * best + coarse


def test_algorithm_1_is_in_proportion_to_speeds() -> None:
    rule = Speeds((8, 8, 8))
    told = IterationRecord((8, 8, 8), (1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (10.0, 20.0, 30.0))
    assert rule.see(told) == (4, 8, 12)


def test_algorithm_2_line_by_line() -> None:
    """Two workers, the first one four times as fast: steps of 5, then of 1."""
    gamma = [Line(0, 1), Line(0, 4)]
    rule = LeaderStraggler((20, 20))
    passed = [rule.see(seen(rule.sizes, gamma)) for _ in range(60)]
    # The window of five iterations first.
    assert passed[:5] == [(20, 20)] * 4 + [(25, 15)]
    assert passed[5] == (30, 10)
    # 30 against 40, then 35 against 20: the first leader is the straggler now.
    assert passed[6] == (35, 5)
    assert rule.fine
    # It waits for twenty, but has its floor: five from each, with a step of one by then.
    assert passed[-1] == (32, 8)


def test_algorithm_2_leaves_who_is_full_and_who_is_at_the_floor() -> None:
    rule = LeaderStraggler((20, 20))
    full = IterationRecord((20, 20), (1.0, 2.0), (0.96, 0.5), (20.0, 10.0))
    assert [rule.see(full) for _ in range(9)][-1] == (20, 20)
    floor = LeaderStraggler((35, 5))
    told = IterationRecord((35, 5), (1.0, 2.0), (0.5, 0.5), (35.0, 2.5))
    assert [floor.see(told) for _ in range(9)][-1] == (35, 5)


@pytest.mark.parametrize("name", sorted(RULES))
def test_no_rule_gives_more_to_who_is_full(name: str) -> None:
    rule = RULES[name]((20, 20), WorkerBounds(), ())
    for _ in range(30):
        told = seen(rule.sizes, [Line(0, 1), Line(0, 4)])
        rule.see(told._replace(memory=(0.96, 0.5)))
    assert rule.sizes == (20, 20)


def test_a_batch_grows_by_steps_that_memory_is_known_for() -> None:
    rule = Affine((32, 32, 32, 32))
    gamma = [Line(0, 0.01), Line(0, 1), Line(0, 1), Line(0, 1)]
    tried = 32
    for _ in range(30):
        rule.see(seen(rule.sizes, gamma))
        assert rule.sizes[0] <= 2 * tried
        tried = max(tried, rule.sizes[0])
    assert longest(gamma, rule.sizes) <= 1.05 * optimum(gamma, 128)


def test_noise_alone_changes_little() -> None:
    """Equal workers whose times tremble by a tenth: no division is much worse than the even one."""
    draw = random.Random(1)
    rule = Affine((32,) * 8)
    gamma = [Line(0.1, 0.01)] * 8
    changes = 0
    for _ in range(500):
        before = rule.sizes
        rule.see(seen(rule.sizes, gamma, lambda: draw.gauss(1, 0.1)))
        changes += rule.sizes != before
    assert changes < 20
    assert longest(gamma, rule.sizes) < 1.15 * gamma[0].at(32)


@pytest.mark.parametrize("slower", [Line(0.5, 0.02), Line(0.2, 0.04)], ids=["constant", "twice"])
def test_a_worker_that_becomes_slower_is_noticed(slower: Line) -> None:
    gamma = [Line(0.2, 0.02), Line(0.1, 0.01), Line(0.3, 0.02)]
    rule = Affine((40, 40, 40))
    for _ in range(50):
        rule.see(seen(rule.sizes, gamma))
    gamma[0] = slower
    for _ in range(10):
        rule.see(seen(rule.sizes, gamma))
    assert longest(gamma, rule.sizes) <= 1.02 * optimum(gamma, 120)


@pytest.mark.parametrize("seed", range(5))
def test_a_slower_worker_is_noticed_through_noise(seed: int) -> None:
    """Times that tremble by a fifth, so that a single one says little; the mean of some does."""
    draw = random.Random(seed)
    gamma = [Line(0.02, 0.001), Line(0.02, 0.002), Line(0.02, 0.004)]
    rule = Affine((40, 40, 40))
    for turn in range(300):
        if turn == 150:
            gamma[0] = Line(0.02, 0.002)
        rule.see(seen(rule.sizes, gamma, lambda: max(0.1, draw.gauss(1, 0.2))))
        if turn in (149, 299):
            assert longest(gamma, rule.sizes) <= 1.15 * optimum(gamma, 120)


def test_one_slow_iteration_is_an_accident() -> None:
    gamma = [Line(0.1, 0.01), Line(0.1, 0.01)]
    rule = Affine((40, 40))
    for turn in range(30):
        told = seen(rule.sizes, gamma)
        if turn == 20:
            told = told._replace(times_s=(5.0, told.times_s[1]))
        assert rule.see(told) == (40, 40)


@pytest.mark.parametrize("name", ["speeds", "affine"])
def test_what_is_known_divides_at_once(name: str) -> None:
    gamma = [Line(0.0, 0.01), Line(0.0, 0.03)]
    rule = RULES[name]((40, 40), WorkerBounds(), ())
    for _ in range(20):
        rule.see(seen(rule.sizes, gamma))
    again = RULES[name]((40, 40), WorkerBounds(), rule.state())
    assert again.sizes == (60, 20)
    # A new worker is taken for the mean of those that are known.
    three = RULES[name]((40, 40, 40), WorkerBounds(), [*rule.state(), None])
    assert three.sizes[0] > three.sizes[2] > three.sizes[1]
    assert sum(three.sizes) == 120


def test_a_straggler_that_no_batch_helps() -> None:
    told = IterationRecord((9, 1), (1.0, 3.0), (0.5, 0.5), (9.0, 0.3))
    assert removable(told, WorkerBounds()) == 1
    assert removable(told._replace(batches=(8, 2)), WorkerBounds()) is None
    assert removable(told._replace(times_s=(1.0, 1.01)), WorkerBounds()) is None


def quota_s(cpu_s: float, share: float, draw: random.Random) -> float:
    """How long so much computing takes under a quota of Linux: a share of each 20 ms, then none."""
    period_s = 0.02
    quota_s = share * period_s
    spent_s = draw.random() * quota_s
    at_s = draw.uniform(spent_s, period_s)
    began_s = at_s
    while cpu_s > 0:
        run_s = min(cpu_s, quota_s - spent_s)
        at_s, cpu_s = at_s + run_s, cpu_s - run_s
        if cpu_s > 0:
            at_s, spent_s = math.ceil(at_s / period_s) * period_s, 0.0
    return at_s - began_s


def under_quotas(seed: int) -> float:
    """Seconds of 200 steps of four workers, of which each in turn has half of its quota."""
    draw, shares, total_s = random.Random(seed), (0.6, 0.4, 0.25, 0.15), 0.0
    rule = Affine([64] * 4, WorkerBounds(1, None))
    for step in range(200):
        times = []
        for rank, (share, size) in enumerate(zip(shares, rule.sizes, strict=True)):
            halved = step // 40 % 5 == rank
            cpu_s = (0.003 + 0.00011 * size) * math.exp(draw.gauss(0, 0.05))
            times.append(quota_s(cpu_s, share / 2 if halved else share, draw))
        total_s += max(times)
        speeds = tuple(size / time_s for size, time_s in zip(rule.sizes, times, strict=True))
        rule.see(IterationRecord(tuple(rule.sizes), tuple(times), (0.0,) * 4, speeds))
    return total_s


def test_where_times_tremble_slopes_are_believed_less(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = [under_quotas(seed) for seed in range(8)]
    monkeypatch.setattr(balance_lines, "BELIEVED", math.inf)
    credulous = [under_quotas(seed) for seed in range(8)]
    assert sum(guarded) < 0.98 * sum(credulous)
