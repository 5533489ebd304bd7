"""Which copies of shards ranks go on from, and which of them leave with those that have died."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from hpcext.launch.change import leaving
from hpcext.training.redistribution import Change, Division, Rows, ring
from hpcext.training.restart_copies import Choice, Told, choose, from_numbers, numbered


def told(rank: int, *steps: int, size: int = 4, group: int = 7, ward: bool = True) -> list[Told]:
    """Copies of some steps, each with that of the rank before."""
    return [Told(group, size, rank, step, (rank - 1) % size if ward else -1) for step in steps]


def test_the_latest_that_all_have() -> None:
    everyone = [told(0, 9, 8), told(1, 8, 9), told(3, 9)]
    assert choose(everyone, None) == Choice(7, 9, 4, (0, 1, 3), {2: 2})


def test_not_what_one_of_them_lacks() -> None:
    assert choose([told(0, 9, 8), told(1, 8), told(3, 9, 8)], None) == Choice(
        7, 8, 4, (0, 1, 3), {2: 2}
    )


def test_not_what_nobody_has_of_the_lost_one() -> None:
    """Its transfer had not ended."""
    late = [*told(3, 9, ward=False), *told(3, 8)]
    assert choose([told(0, 9, 8), told(1, 9, 8), late], None) == Choice(7, 8, 4, (0, 1, 3), {2: 2})
    assert choose([told(0, 9), told(1, 9), told(3, 9, ward=False)], None) is None


def test_two_that_die_at_once() -> None:
    # Rank 2 had the copy of rank 1.
    assert choose([told(0, 9), told(3, 9)], None) is None
    assert choose([told(0, 9), told(2, 9)], None) == Choice(7, 9, 4, (0, 2), {1: 1, 3: 0})


def test_what_is_told_is_equally_many_numbers() -> None:
    mine = [*told(2, 9, 8), *told(1, 8, size=3, group=6, ward=False)]
    for many in range(4):
        numbers = numbered(mine[:many], 3)
        assert len(numbers) == 15
        assert from_numbers(numbers) == mine[:many]


def test_replicas_have_the_shards_of_each_other() -> None:
    assert choose([told(r, 9, ward=False) for r in (0, 3)], 2) == Choice(7, 9, 4, (0, 3), {})
    assert choose([told(r, 9, ward=False) for r in (0, 2)], 2) is None


def test_a_step_of_a_later_group_goes_before_that_of_a_former_one() -> None:
    """Both are the same step; the later one is divided over ranks that are there."""
    both = [
        [*told(0, 9, size=3, group=8), *told(0, 9)],
        [*told(1, 9), *told(1, 9, size=3, group=8)],
        [*told(3, 9), *told(2, 9, size=3, group=8)],
    ]
    assert choose(both, None) == Choice(8, 9, 3, (0, 1, 2), {})
    assert choose([both[0], both[1], told(3, 9)], None) == Choice(7, 9, 4, (0, 1, 3), {2: 2})


@pytest.mark.parametrize("size", range(2, 7))
def test_rows_of_the_dead_come_from_their_copies(size: int) -> None:
    """Whoever dies, each of the others gets all of its rows, once, from where they are."""
    total, before = 11, Division(size, size)
    for left in combinations(range(1, size), size - 2):
        stay = (0, *left)
        (dead,) = {*range(size)} - {*stay}
        keeper = stay.index((dead + 1) % size)
        after = Division(len(stay), len(stay))
        departures, arrivals = Change(before, after, stay, {dead: keeper}).moves(0, total)
        assert departures == []
        has = [{*range(*before.rows(rank, total))} for rank in stay]
        has[keeper] |= {*range(*before.rows(dead, total))}
        got = [set(rows) for rows in has]
        for move in arrivals:
            rows = {*range(*move.rows)}
            assert rows <= has[move.source], "it has what it sends"
            assert not rows & got[move.target], "nothing is sent that is there"
            got[move.target] |= rows
        for rank in range(len(stay)):
            assert {*range(*after.rows(rank, total))} <= got[rank]
    assert Rows(0, 0).without(Rows(0, 1)) == []


def test_the_next_one_is_on_another_node() -> None:
    nodes = [0, 0, 0, 1, 1, 2, 2, 2]
    order = ring(nodes)
    assert sorted(order) == list(range(8))
    assert all(nodes[order[at - 1]] != nodes[rank] for at, rank in enumerate(order))
    assert ring([0, 0, 0]) == [0, 1, 2]


def test_whole_replicas_are_left() -> None:
    assert leaving(4, {1}, 1) == set()
    assert leaving(4, {3}, 2) == {2}
    # The first one stays; so another one goes that has the same part.
    assert leaving(4, {1}, 2) == {2}
    assert leaving(6, {2, 5}, 2) == set()
    assert leaving(6, {2, 4}, 3) == {3}


def test_whoever_leaves_takes_no_part_of_the_model_along() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        multiple = chance.randint(1, 4)
        size = multiple * chance.randint(2, 4)
        lost = {*chance.sample(range(1, size), chance.randint(1, size - multiple))}
        left = {*range(size)} - lost - leaving(size, lost, multiple)
        parts = {rank % multiple for rank in {*range(size)} - lost}
        assert 0 in left
        assert {rank % multiple for rank in left} == parts
        if len(parts) == multiple:
            assert len(left) % multiple == 0
