"""Rows of sharded tensors go where they are needed, and no others go anywhere."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcext.training.redistribution import Change, Division, Move, Rows, exchanges


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Ranks that come and go, in replicas or not; rank 0 stays."""
    replica = draw(st.sampled_from([None, None, 1, 2, 3]))
    each = replica or 1
    before = each * draw(st.integers(1, 4))
    others = st.lists(st.integers(1, before - 1), unique=True) if before > 1 else st.just([])
    stay = (0, *sorted(draw(others)))
    least = -(-len(stay) // each)
    after = each * draw(st.integers(least, least + 3))
    return Change(Division(before, replica or before), Division(after, replica or after), stay)


def content(division: Division, rank: int, total: int) -> set[int]:
    return set(range(*division.rows(rank, total)))


@given(changes(), st.integers(0, 30))
def test_every_rank_gets_its_rows(change: Change, total: int) -> None:
    """From ranks that have them, by an account that is kept here."""
    departures, arrivals = change.moves(7, total)
    has = {rank: content(change.before, rank, total) for rank in range(change.before.ranks)}
    left = {old: set(rows) for old, rows in has.items()}
    for move in departures:
        assert move.source not in change.stay
        assert move.target in change.stay
        assert set(range(*move.rows)) <= has[move.source]
        left[move.target] |= set(range(*move.rows))
    new = {
        rank: set(left[change.stay[rank]]) if rank < len(change.stay) else set()
        for rank in range(change.after.ranks)
    }
    held = {rank: set(rows) for rank, rows in new.items()}
    for move in arrivals:
        assert set(range(*move.rows)) <= held[move.source]
        assert not set(range(*move.rows)) & new[move.target], "it was there already"
        new[move.target] |= set(range(*move.rows))
    for rank, rows in new.items():
        assert content(change.after, rank, total) <= rows
    assert all(move.tensor == 7 for move in departures + arrivals)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_who_stays_keeps_what_it_needs(ranks: int) -> None:
    """Nothing moves if nothing changes; and of one replica more, only the new one gets anything."""
    same = Division(ranks, ranks)
    assert Change(same, same, tuple(range(ranks))).moves(0, 10) == ([], [])
    more = Change(Division(ranks, ranks), Division(2 * ranks, ranks), tuple(range(ranks)))
    departures, arrivals = more.moves(0, 12)
    assert not departures
    assert {move.target for move in arrivals} == set(range(ranks, 2 * ranks))


def test_a_division_is_that_of_chunks() -> None:
    for total in range(12):
        for ranks in range(1, 6):
            parts = [part.tolist() for part in torch.arange(total).chunk(ranks)]
            parts += [[]] * (ranks - len(parts))
            parts = parts if total else [[]] * ranks
            mine = [sorted(content(Division(ranks, ranks), rank, total)) for rank in range(ranks)]
            assert mine == parts


moves = st.builds(
    lambda tensor, source, target, start, length: Move(
        tensor, source, target, Rows(start, start + length)
    ),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 9),
    st.integers(1, 9),
)


@given(st.lists(moves, max_size=12), st.integers(1, 40))
def test_no_exchange_is_larger_than_it_may_be(given: list[Move], limit: int) -> None:
    row_bytes = [1, 4, 12]
    wanted = Counter((m.tensor, m.source, m.target, row) for m in given for row in range(*m.rows))
    made: Counter[tuple[int, int, int, int]] = Counter()
    for group in exchanges(given, row_bytes, limit):
        for rank in range(4):
            for end in (0, 1):
                size = sum(
                    len(m.rows) * row_bytes[m.tensor]
                    for m in group
                    if (m.source, m.target)[end] == rank
                )
                assert size <= max(limit, 12)
        made.update((m.tensor, m.source, m.target, row) for m in group for row in range(*m.rows))
    assert made == wanted
