"""Each sample once, however often and wherever the number of ranks changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.training.data.sampler import ResumableSampler


def batches_of(
    length: int, world: int, size: int, epoch: int, start: int
) -> tuple[list[list[list[int]]], ResumableSampler]:
    """The batches of each rank."""
    ranks = []
    for rank in range(world):
        sampler = ResumableSampler(length, rank=rank, world_size=world, seed=5)
        sampler.place(epoch, start)
        batched = sampler.batched(size)
        ranks.append([batch.tolist() for batch in batched])
        assert len(batched) == len(ranks[-1])
    return ranks, sampler


@given(
    length=st.integers(0, 200),
    epoch=st.integers(0, 3),
    parts=st.lists(
        st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6
    ),
)
def test_each_sample_once(length: int, epoch: int, parts: list[tuple[int, int, int]]) -> None:
    seen: list[int] = []
    position = 0
    for world, size, turns in parts:
        ranks, sampler = batches_of(length, world, size, epoch, position)
        # Every rank takes as many steps, of as many samples, as the others.
        assert len({tuple(map(len, batches)) for batches in ranks}) == 1
        done = min(turns, len(ranks[0]))
        seen += [index for batches in ranks for batch in batches[:done] for index in batch]
        position = sampler.consumed(done, size)
        assert position == len(seen)
    world = parts[-1][0]
    ranks, _ = batches_of(length, world, 4, epoch, position)
    seen += [index for batches in ranks for batch in batches for index in batch]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(length))
    # The documented rest.
    assert length - len(seen) < world


@given(st.sampled_from([1, 2, 3, 4, 5, 6]), st.integers(0, 3))
def test_a_global_batch_does_not_depend_on_the_ranks(world: int, epoch: int) -> None:
    alone, _ = batches_of(300, 1, 60, epoch, 0)
    shared, _ = batches_of(300, world, 60 // world, epoch, 0)
    for number, batch in enumerate(alone[0]):
        union = [index for batches in shared for index in batches[number]]
        assert sorted(union) == sorted(batch)


@given(st.integers(0, 100), st.lists(st.integers(1, 6), min_size=2, max_size=6))
def test_resized_between_two_steps(length: int, worlds: list[int]) -> None:
    position, seen = 0, []
    samplers = [ResumableSampler(length, rank=r, world_size=worlds[0]) for r in range(worlds[0])]
    for world in worlds:
        # Ranks that stay are resized, others begin.
        del samplers[world:]
        samplers += [ResumableSampler(length) for _ in range(world - len(samplers))]
        for rank, sampler in enumerate(samplers):
            before = (len(sampler), list(sampler), sampler.consumed(1, 2))
            sampler.resize(rank, world)
            assert (len(sampler), list(sampler), sampler.consumed(1, 2)) == before
            sampler.place(0, position)
        seen += [index for sampler in samplers for index in list(sampler)[:2]]
        (position,) = {sampler.consumed(1, 2) for sampler in samplers}
        assert position == len(seen) == len(set(seen))


def test_orders_differ_by_epoch_and_seed() -> None:
    orders = set()
    for seed in range(3):
        sampler = ResumableSampler(50, seed=seed)
        for epoch in range(3):
            sampler.place(epoch)
            orders.add(tuple(sampler))
    assert len(orders) == 9
    assert list(ResumableSampler(5, shuffle=False)) == [0, 1, 2, 3, 4]


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="rank=2"):
        ResumableSampler(5, rank=2, world_size=2)
    with pytest.raises(ValueError, match="length=-1"):
        ResumableSampler(-1)
    with pytest.raises(ValueError, match="batch_size=0"):
        ResumableSampler(5).batched(0)
    with pytest.raises(ValueError, match="data set has changed"):
        ResumableSampler(5).place(0, 6)
