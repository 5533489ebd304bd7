"""Each sample once an epoch, whatever becomes of the number of ranks and of the last batch."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.training.batching import LAST, ElasticBatches
from hpcext.training.checkpoint.position import Position
from hpcext.training.data.loading import elastic, open_loader

Change = tuple[int, int]
"""Ranks, and steps that they make before they are others."""

changes = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 7)), min_size=1, max_size=6)
choices = st.tuples(st.sampled_from(["global_batch", "gpu_batch"]), st.integers(1, 24))


class Account:
    """What ranks trained, counted by the samples that they got and the weights that they used."""

    def __init__(self, length: int, choice: tuple[str, int], last: str) -> None:
        self.length, self.choice, self.last = length, choice, last
        self.times: Counter[int] = Counter()
        self.share: Counter[int] = Counter()
        self.order: list[int] = []
        self.carried = 0
        self.times_before = 0

    def ranks(self, world: int) -> list[ElasticBatches]:
        options: dict[str, Any] = {self.choice[0]: self.choice[1], "last": self.last, "seed": 5}
        return [
            ElasticBatches(self.length, rank=rank, world_size=world, **options)
            for rank in range(world)
        ]

    def step(
        self, ranks: list[ElasticBatches], batches: list[list[int]], turn: int, *, whole: bool
    ) -> None:
        """One step: checks what the ranks got, and counts it."""
        world = len(ranks)
        weights = [batches_of.weight(turn) for batches_of in ranks]
        counted = [batch for batch, weight in zip(batches, weights, strict=True) if weight]
        # Ranks take turns, so this is the order that they walk together.
        turns = itertools.zip_longest(*counted)
        samples = [index for each in turns for index in each if index is not None]
        size = self.choice[1] * (world if self.choice[0] == "gpu_batch" else 1)
        assert len(samples) == size or (len(samples) < size and not whole)
        assert all(len(batch) >= 1 for batch in batches)
        assert max(map(len, counted)) - min(map(len, counted)) <= 1
        assert sum(weights) == pytest.approx(world)
        for batch, weight in zip(batches, weights, strict=True):
            # The part of each sample in the average over ranks of their mean gradients.
            part = Fraction(weight).limit_denominator(10_000) / world / len(batch)
            assert part == (Fraction(1, len(samples)) if weight else 0)
            # Rank without a sample: it repeats one of this very step.
            assert weight or set(batch) <= set(samples)
        self.times.update(samples)
        self.order += samples

    def epoch(self, epoch: int, parts: list[Change], *, final: bool) -> None:
        """One epoch, in which the last ranks make the steps that are left."""
        position = 0
        for number, (world, steps) in enumerate(parts):
            ranks = self.ranks(world)
            for batches in ranks:
                batches.place(epoch, position, self.carried, final=final)
            lists = [list(batches) for batches in ranks]
            assert {len(batches) for batches in ranks} == {len(lists[0])}
            taken = len(lists[0]) if number == len(parts) - 1 else min(steps, len(lists[0]))
            before = len(self.order)
            for turn in range(taken):
                # Only the last step may be smaller, and only where it is said to be.
                small = self.last == "weighted" or (self.last == "carried" and final)
                whole = not small or turn < len(lists[0]) - 1
                self.step(ranks, [batches[turn] for batches in lists], turn, whole=whole)
            positions = {batches.consumed(taken) for batches in ranks}
            position += len(self.order) - before
            assert positions == {position}
            sizes = [max(map(len, batches), default=0) for batches in lists]
            assert all(s <= b.batch_size for s, b in zip(sizes, ranks, strict=True))
        assert len({batches.rest for batches in ranks}) == 1
        self.carried = ranks[0].rest


@given(
    length=st.integers(0, 120),
    choice=choices,
    last=st.sampled_from(LAST),
    epochs=st.lists(changes, min_size=1, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_each_sample_once_in_each_epoch(
    length: int, choice: tuple[str, int], last: str, epochs: list[list[Change]]
) -> None:
    account = Account(length, choice, last)
    for number, parts in enumerate(epochs):
        account.epoch(number, parts, final=number == len(epochs) - 1)
        whole = (number + 1) * length
        if last == "weighted":
            assert account.times == Counter(dict.fromkeys(range(length), number + 1))
        if last == "dropped":
            limit = choice[1] * (parts[-1][0] if choice[0] == "gpu_batch" else 1)
            assert max(account.times.values(), default=0) <= number + 1
            assert length - limit < len(account.order) - account.times_before <= length
        if last == "carried":
            # Nothing is lost, nothing is early: what is missing is in front of the next epoch.
            assert len(account.order) == whole - account.carried
            for epoch in range(len(account.order) // length if length else 0):
                part = account.order[epoch * length : (epoch + 1) * length]
                assert sorted(part) == list(range(length))
        account.times_before = len(account.order)
    if last == "carried":
        assert account.carried == 0


@given(
    length=st.integers(1, 90), size=st.integers(1, 30), last=st.sampled_from(LAST), worlds=changes
)
def test_a_global_batch_is_the_same_at_any_number_of_ranks(
    length: int, size: int, last: str, worlds: list[Change]
) -> None:
    alone = Account(length, ("global_batch", size), last)
    others = Account(length, ("global_batch", size), last)
    for epoch in range(2):
        alone.epoch(epoch, [(1, 0)], final=epoch == 1)
        others.epoch(epoch, worlds, final=epoch == 1)
    assert alone.order == others.order


@pytest.mark.parametrize("last", LAST)
def test_a_gpu_batch_makes_larger_steps_on_more_ranks(last: str) -> None:
    batches = ElasticBatches(100, gpu_batch=8, last=last)
    assert (batches.global_batch, batches.batch_size, len(batches)) == (
        8,
        8,
        {"weighted": 13, "carried": 12, "dropped": 12}[last],
    )
    batches.resize(2, 3)
    # What is under way stays what it was, until it is placed anew.
    assert (batches.consumed(2), batches.weight(0)) == (16, 1.0)
    assert (batches.global_batch, batches.batch_size) == (24, 8)
    batches.place(0, batches.consumed(2))
    assert len(batches) == {"weighted": 4, "carried": 3, "dropped": 3}[last]
    assert [len(batch) for batch in batches][:3] == [8, 8, 8]
    assert batches.rest == (84 - 72 if last == "carried" else 0)


def test_fewer_samples_than_ranks() -> None:
    ranks = [ElasticBatches(7, global_batch=5, rank=r, world_size=3) for r in range(3)]
    lists = [list(batches) for batches in ranks]
    assert [[len(batch) for batch in each] for each in lists] == [[2, 1], [2, 1], [1, 1]]
    assert [batches.weight(0) for batches in ranks] == [6 / 5, 6 / 5, 3 / 5]
    assert [batches.weight(1) for batches in ranks] == [3 / 2, 3 / 2, 0.0]
    assert lists[2][1] in (lists[0][1], lists[1][1])
    assert ElasticBatches(7, global_batch=2, rank=2, world_size=3).batch_size == 1


def test_what_is_dropped_or_carried_differs_by_epoch() -> None:
    dropped = ElasticBatches(11, global_batch=4, seed=1, last="dropped")
    left = set()
    for epoch in range(4):
        dropped.place(epoch)
        left.add(frozenset(range(11)) - {index for batch in dropped for index in batch})
    assert len(left) == 4
    # Much larger a batch than the data: carried over several epochs, and trained at the end.
    carried = ElasticBatches(3, global_batch=10, last="carried")
    rests = []
    for epoch in range(4):
        carried.place(epoch, carried=rests[-1] if rests else 0, final=epoch == 3)
        rests.append(carried.rest)
        assert [len(batch) for batch in carried] == ([10, 2] if epoch == 3 else [])
    assert rests == [3, 6, 9, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_through_a_data_loader_that_reads_ahead(workers: int) -> None:
    torch = pytest.importorskip("torch")
    batches = ElasticBatches(50, global_batch=6, last="carried")
    loader = torch.utils.data.DataLoader(
        torch.arange(50),
        batch_sampler=batches,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    assert elastic(loader) is elastic(batches) is batches
    assert elastic(torch.utils.data.DataLoader(torch.arange(50))) is None
    seen: list[int] = []
    place = Position(epoch=0)
    for epoch in range(2):
        # Three steps, and the rest of the epoch with a step's samples divided otherwise.
        for world, turns in ((1, 3), (2, 99)):
            batches.resize(0, world)
            position, source = open_loader(loader, place, carried=place.carried, final=epoch == 1)
            for turn, batch in enumerate(itertools.islice(source, turns), start=1):
                start, place.samples = place.samples, position(turn)
                # What rank 1 gets is the same piece, seen by its own sampler.
                piece = batches.order()[start : place.samples].tolist()
                assert batch.tolist() == piece[::world]
                seen += piece
        place = Position(epoch=epoch + 1, carried=batches.rest)
    assert sorted(seen) == sorted([*range(50), *range(50)])


def test_unshuffled() -> None:
    batches = ElasticBatches(5, gpu_batch=2, shuffle=False)
    assert list(batches) == [[0, 1], [2, 3], [4]]
    assert [batches.weight(turn) for turn in range(3)] == [1, 1, 1]


def test_wrong_arguments() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "exactly one of them"),
        ({"global_batch": 4, "gpu_batch": 4}, "exactly one of them"),
        ({"global_batch": 0}, "global_batch=0: at least 1"),
        ({"gpu_batch": -1}, "gpu_batch=-1: at least 1"),
        ({"gpu_batch": 1, "last": "kept"}, "last='kept': must be one of weighted, carried"),
        ({"gpu_batch": 1, "rank": 1}, "rank=1"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            ElasticBatches(5, **options)
    batches = ElasticBatches(5, gpu_batch=2)
    with pytest.raises(ValueError, match="data set has changed"):
        batches.place(0, 6)
    with pytest.raises(ValueError, match="carried=6"):
        batches.place(1, 0, 6)
    for turn in (-1, 3):
        with pytest.raises(ValueError, match=f"turn={turn}: this iteration has 3 batches"):
            batches.weight(turn)
    with pytest.raises(ValueError, match="rank=2"):
        batches.resize(2, 2)
