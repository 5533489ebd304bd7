"""Ranks that each hold a part of the data: how often samples are trained, and what moves."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.training.partitions import Move, PartitionedBatches, Partitions
from hpcext.training.session import Session

PARTS = [range(40), range(40, 80), range(80, 120)]
FAST = [18, 6, 3]


def ranks(partitions: list[Partitions], **options: Any) -> list[PartitionedBatches]:
    """Each keeps its own account, as in processes of their own."""
    return [
        PartitionedBatches(each, global_batch=27, rank=rank, world_size=3, **options)
        for rank, each in enumerate(partitions)
    ]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), max_size=40),
    st.integers(1, 4),
)
def test_every_sample_has_one_rank_and_no_part_is_far_ahead(
    steps: list[list[int]], bound: int
) -> None:
    disks = [set(part) for part in PARTS]

    def moved(move: Move) -> None:
        assert set(move.samples.tolist()) <= set(PARTS[move.source]), "who has them for ever"
        assert disks[move.target].isdisjoint(move.samples.tolist()), "not copied twice"
        disks[move.target] |= set(move.samples.tolist())

    partitions = Partitions(PARTS, bound=bound, moved=moved, seed=1)
    for counts in steps:
        held = [set(disk) for disk in disks]
        for rank, taken in enumerate(partitions.take(counts)):
            assert len(taken) == counts[rank]
            assert set(taken.tolist()) <= held[rank]
        ahead = partitions.traversals
        assert max(ahead) - min(ahead) <= bound
        assert sorted(np.concatenate(partitions._owned).tolist()) == list(range(120))
        assert all(
            set(owned.tolist()) <= disk
            for owned, disk in zip(partitions._owned, disks, strict=True)
        )


def test_a_rank_that_loses_its_copies_loses_no_sample() -> None:
    partitions = Partitions(PARTS, seed=1)
    for _ in range(200):
        partitions.take(FAST)
    assert partitions.sizes[0] > 40, "something moved"
    # Its disk comes back as it was given to it; also after a restart, from the account.
    partitions.mark(3, 7)
    again = Partitions(PARTS, seed=1)
    again.load_state_dict(partitions.state_dict())
    again.seek(3, 7)
    for each in (partitions, again):
        disks = [set(part) for part in PARTS]
        for move in each.copies:
            assert set(move.samples.tolist()) <= set(PARTS[move.source])
            disks[move.target] |= set(move.samples.tolist())
        assert all(
            set(owned.tolist()) <= disk for owned, disk in zip(each._owned, disks, strict=True)
        )


def test_parts_become_as_unequal_as_batches_and_stay_so() -> None:
    moves: list[Move] = []
    partitions = Partitions(PARTS, moved=moves.append, seed=1)
    times: Counter[int] = Counter()
    for _ in range(2000):
        for taken in partitions.take(FAST):
            times.update(taken.tolist())
    assert len({(move.source, move.target) for move in moves}) <= 2, "done once"
    assert partitions.sizes == pytest.approx([120 * n / 27 for n in FAST], abs=3)
    assert max(times.values()) / min(times.values()) < 1.1
    # Without it fast samples are trained six times as often.
    apart = Partitions(PARTS, bound=1e9, seed=1)
    times.clear()
    for _ in range(2000):
        for taken in apart.take(FAST):
            times.update(taken.tolist())
    assert max(times.values()) / min(times.values()) > 5.5


def test_ranks_agree_and_go_on_after_a_suspension() -> None:
    whole = ranks([Partitions(PARTS, seed=1) for _ in range(3)])
    for each in whole:
        each.divide(FAST)
    expected = []
    for epoch in range(12):
        for each in whole:
            each.place(epoch)
        expected.append(list(zip(*whole, strict=True)))
    assert whole[0]._partitions._moves, "something moved"

    partitions = [Partitions(PARTS, seed=1) for _ in range(3)]
    stopped = ranks(partitions)
    for each in stopped:
        each.divide(FAST)
    seen: list[list[tuple[list[int], ...]]] = []
    for epoch in range(12):
        for each in stopped:
            each.place(epoch)
        steps = []
        turns = [iter(each) for each in stopped]
        for turn in range(len(stopped[0])):
            steps.append(tuple(next(each) for each in turns))
            if turn != 2:
                continue
            # It has read ahead by some steps, differently on each rank, when it is suspended.
            for rank, each in enumerate(turns):
                list(itertools.islice(each, rank))
            consumed = stopped[0].consumed(turn + 1)
            saved = [each.state_dict() for each in partitions]
            partitions = [Partitions(PARTS, seed=1) for _ in range(3)]
            for each in partitions:
                each.load_state_dict(saved[2])
            stopped = ranks(partitions)
            for each in stopped:
                each.divide(FAST)
                each.place(epoch, consumed)
            steps += zip(*stopped, strict=True)
            break
        seen.append(steps)
    assert seen == expected


def test_what_is_not_valid_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Partitions([[1, 2], []])
    with pytest.raises(ValueError, match="more than one part"):
        Partitions([[1, 2], [2, 3]])
    with pytest.raises(ValueError, match=r"bound=0\.5"):
        Partitions(PARTS, bound=0.5)
    with pytest.raises(ValueError, match="3 partitions for 2 ranks"):
        PartitionedBatches(Partitions(PARTS), global_batch=3, world_size=2)
    with pytest.raises(ValueError, match="carried"):
        PartitionedBatches(Partitions(PARTS), global_batch=3, world_size=3, last="carried")
    with pytest.raises(ValueError, match="no place after 5"):
        PartitionedBatches(Partitions([[1, 2, 3, 4, 5, 6]]), global_batch=2).place(0, 5)


def test_an_account_that_would_not_be_saved_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partitions = Partitions([range(50)], seed=2)
    saving = {"checkpoint_dir": tmp_path, "weights": np.zeros(1)}
    with pytest.raises(ValueError, match=r"give them, Session\(parts=partitions"):
        Session(**saving).batch_sampler(partitions, global_batch=20)
    # Nothing is saved, or another object saves it.
    Session(weights=np.zeros(1)).batch_sampler(partitions, global_batch=20)
    session = Session(**saving, unsaved=[partitions])
    batches = session.batch_sampler(partitions, global_batch=20)
    for _ in session.epochs(1):
        assert len(list(session.batches(batches))) == 3
    # A training of an earlier release, which could not go on otherwise.
    assert not capsys.readouterr().err
    Session(**saving).batch_sampler(partitions, global_batch=20)
    assert "give them, Session(parts=partitions" in capsys.readouterr().err


def test_a_session_saves_the_account(tmp_path: Path) -> None:
    trained = []
    for epochs in (1, 2):
        partitions = Partitions([range(50)], seed=2)
        session = Session(checkpoint_dir=tmp_path, parts=partitions, weights=np.zeros(1))
        batches = session.batch_sampler(partitions, global_batch=20)
        for _ in session.epochs(epochs):
            trained.append([each for batch in session.batches(batches) for each in batch])
    assert [sorted(each) for each in trained] == [list(range(50))] * 2
    assert trained[0] != trained[1]
