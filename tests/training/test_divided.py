"""Batches that are divided unequally: each sample once, and weights that make up for it."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.scaling.balance import rules as balance_rules
from hpcext.training.balance import RULES, Balance, BoundaryMessage, MeasuredBatch
from hpcext.training.batching import LAST, ElasticBatches, divide


@settings(deadline=None)
@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 1e6), min_size=1, max_size=20))
def test_a_total_is_divided_exactly_and_in_proportion(total: int, shares: list[float]) -> None:
    sizes = divide(total, shares)
    assert sum(sizes) == total
    for size, share in zip(sizes, shares, strict=True):
        assert abs(size - total * share / sum(shares)) < 1 + 1e-6


@settings(deadline=None, max_examples=40)
@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 12),
    world=st.integers(1, 4),
    last=st.sampled_from(LAST),
    seed=st.integers(0, 2**32),
)
def test_each_sample_once_however_steps_are_divided(
    length: int, batch: int, world: int, last: str, seed: int
) -> None:
    """Loaders that read ahead by different numbers of batches, divided anew at any turn."""
    draw = random.Random(seed)
    ranks = [
        ElasticBatches(length, global_batch=batch, rank=rank, world_size=world, last=last, seed=1)
        for rank in range(world)
    ]

    def divided(turn: int | None = None, trained: int = 0) -> None:
        shares = [draw.randint(0, 5) for _ in range(world - 1)]
        for each in ranks:
            each.divide([*shares, 1], turn, trained=trained)

    divided()
    for each in ranks:
        each.place(0, final=True)
    sources = [iter(each) for each in ranks]
    drawn: list[list[list[int]]] = [[] for _ in ranks]
    seen: list[int] = []
    for turn in range(len(ranks[0])):
        for source, own in zip(sources, drawn, strict=True):
            ahead = draw.randint(0, 3)
            own.extend(itertools.islice(source, max(0, turn + 1 + ahead - len(own))))
        weights = [each.weight(turn) for each in ranks]
        assert sum(weights) == pytest.approx(world)
        step = [own[turn] for own, weight in zip(drawn, weights, strict=True) if weight]
        count = sum(map(len, step))
        assert all(own[turn] for own in drawn), "every rank takes part in a step"
        for own, weight in zip(drawn, weights, strict=True):
            assert weight == 0 or weight == pytest.approx(len(own[turn]) * world / count)
        seen += itertools.chain(*step)
        if draw.random() < 0.5:
            divided(max(each.drawn for each in ranks), turn + 1)
        assert all(len(each._pass.divisions) <= 8 for each in ranks), "memory stays flat"
    assert sorted(seen) == sorted(set(seen))
    dropped = length % batch if last == "dropped" else 0
    assert len(seen) == length - dropped


def test_batches_that_were_drawn_cannot_be_redivided() -> None:
    batches = ElasticBatches(20, global_batch=4, world_size=2)
    next(iter(batches))
    with pytest.raises(ValueError, match="1 batches have been drawn"):
        batches.divide([3, 1], 0)
    with pytest.raises(ValueError, match="one for each of 2 ranks"):
        batches.divide([3, 1, 1])


def test_other_ranks_are_divided_evenly_until_something_is_known() -> None:
    batches = ElasticBatches(20, global_batch=6, world_size=2)
    batches.divide([5, 1])
    assert batches.batch_size == 5
    batches.resize(0, 3)
    batches.place(0)
    assert [len(each) for each in batches] == [2, 2, 2, 1]


class Workers:
    """Workers of one training, each with a balance of its own, as on nodes of their own."""

    def __init__(
        self,
        pace_s: list[float],
        *,
        waits: bool = True,
        bounds: tuple[int, int | None] = (1, None),
    ) -> None:
        self.pace_s = pace_s
        self.each = [Balance("affine", bounds, waits=waits) for _ in pace_s]

    def meet(self, names: list[str], total: int) -> tuple[int, ...]:
        for rank, balance in enumerate(self.each):
            balance.meet(names, total, warns=rank == 0)
        return self.sizes

    def step(self, drawn: int = 7) -> int:
        told = [
            balance.tell(MeasuredBatch(size, 0.1 + size * pace, 1.0), 0.1, drawn + rank)
            for rank, (balance, size, pace) in enumerate(
                zip(self.each, self.sizes, self.pace_s, strict=True)
            )
        ]
        turns = {balance.hear(told) for balance in self.each}
        assert len(turns) == 1
        return turns.pop()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The same on all."""
        (sizes,) = {balance.sizes for balance in self.each}
        return sizes


def test_all_workers_make_the_same_division_without_a_server() -> None:
    workers = Workers([0.01, 0.02, 0.03])
    assert workers.meet(["a cpu/0", "a cpu/1", "a cpu/2"], 60) == (20, 20, 20)
    for _ in range(10):
        # What nobody has drawn: rank 2 is two ahead, and is not asked again before it begins.
        assert workers.step() == 9
    assert workers.sizes[0] > workers.sizes[1] > workers.sizes[2]
    assert sum(workers.sizes) == 60


def test_shares_that_arrive_a_step_later_apply_a_batch_later() -> None:
    workers = Workers([0.01, 0.02], waits=False)
    workers.meet(["a/0", "a/1"], 20)
    assert workers.step() == 9


def test_a_step_that_somebody_did_not_measure_says_nothing() -> None:
    workers = Workers([0.01, 0.05])
    workers.meet(["a/0", "a/1"], 20)
    told = [balance.tell(None, 0.1, 3) for balance in workers.each]
    assert all(isinstance(each, BoundaryMessage) for each in told)
    assert workers.each[0].hear(told) == 3
    assert workers.sizes == (10, 10)


def test_known_workers_are_balanced_at_once_wherever_they_are() -> None:
    workers = Workers([0.01, 0.03])
    workers.meet(["a gpu/0", "b gpu/0"], 40)
    for _ in range(20):
        workers.step()
    large, small = workers.sizes
    saved = workers.each[0].state()
    again = Balance("affine", (1, None), waits=True)
    again.restore(saved)
    again.meet(["b gpu/0", "a gpu/0"], 40)
    assert again.sizes == (small, large)
    # Another worker of the same machine and kind is alike.
    again.meet(["a gpu/1", "b gpu/0"], 40)
    assert again.sizes == (large, small)
    other = Balance("speeds", (1, None), waits=True)
    other.restore(saved)
    other.meet(["b gpu/0", "a gpu/0"], 40)
    assert other.sizes == (20, 20), "of another rule"


def test_bounds_follow_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    workers = Workers([0.01, 0.02], bounds=(4, 12))
    workers.meet(["a/0", "a/1"], 20)
    for _ in range(20):
        workers.step()
    assert workers.sizes == (12, 8)
    workers.each = workers.each[:1]
    workers.each[0].resize(30)
    assert workers.each[0].sizes == (15, 15)
    assert "does not fit 2 ranks of 4 to 12" in capsys.readouterr().err
    workers.each[0].resize(20)
    assert workers.each[0].sizes == (12, 8)


def test_a_straggler_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    workers = Workers([0.01, 50.0])
    workers.meet(["a/0", "b/0"], 20)
    for _ in range(60):
        workers.step()
    assert workers.sizes == (19, 1)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "rank 1 (b/0) is the slowest" in told[0]


@pytest.mark.parametrize("name", ["memoryless", "ema"])
def test_a_predictor_goes_on_with_what_it_has_learned(name: str) -> None:
    first = Balance("speeds", (1, None), waits=True, predictor=name)
    for samples in (10, 14, 12):
        expected = first.tell(MeasuredBatch(samples, 2.0, 1.0), 0.1, 1).speed
    saved = json.loads(json.dumps(first.state()))
    again = Balance("speeds", (1, None), waits=True, predictor=name)
    again.restore(saved)
    assert again.state()["learned"] == saved["learned"]
    other = Balance("speeds", (1, None), waits=True, predictor="rnn")
    other.restore(saved)
    assert expected == pytest.approx(6.0, abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_memory_stays_flat_with_96_workers(rule: str) -> None:
    balance = Balance(rule, (1, None), waits=True)
    balance.meet([f"node{rank} cpu/0" for rank in range(96)], 96 * 32)
    draw = random.Random(1)

    def steps(count: int) -> None:
        for _ in range(count):
            told = [
                BoundaryMessage(
                    size, time_s := draw.gauss(1.0, 0.05) * size * (1 + rank % 7), 1.0, 0.1,
                    size / time_s, 7,
                )
                for rank, size in enumerate(balance.sizes)
            ]  # fmt: skip
            balance.hear(told)

    steps(150)
    tracemalloc.start()
    try:
        steps(50)
        before, _ = tracemalloc.get_traced_memory()
        steps(100)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 64 * 1024, "less than seven numbers a worker"


def test_the_rules_are_those_that_there_are() -> None:
    assert set(RULES) == set(balance_rules.RULES)


def test_no_such_predictor() -> None:
    with pytest.raises(ValueError, match="predictor='best': must be one of memoryless, ema"):
        Balance("speeds", (1, None), waits=True, predictor="best")
