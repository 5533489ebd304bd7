"""What is counted of nodes that have left, and since when nodes are there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core import facts as f
from hpcext.core.apply import apply
from hpcext.core.history.fragments import EDGES_S, FragmentCounter, Fragments
from hpcext.core.saved import Saved
from hpcext.core.values import Cause, Node
from hpcext.core.world import World

AGES = len(EDGES_S)


def counted(*ages_s: float) -> Fragments:
    seen = FragmentCounter()
    for age_s in ages_s:
        seen.left(age_s)
    return seen.fragments


def only(**at: float) -> list[float]:
    """A count for each age, 0 where nothing is said: ``_3=1`` is one of the fourth age."""
    return [at.get(f"_{age}", 0.0) for age in range(AGES)]


# Counts.


def test_nothing_so_far() -> None:
    assert FragmentCounter().fragments == Fragments((), ())


def test_a_node_is_counted_where_it_left_and_its_time_wherever_it_was() -> None:
    found = counted(35.0)
    assert EDGES_S[:4] == (0.0, 20.0, 30.0, 45.0)
    assert list(found.ended) == only(_2=1)
    assert list(found.stayed_s) == only(_0=20, _1=10, _2=5)


@pytest.mark.parametrize("age", [0, 1, 2, AGES - 1])
def test_at_an_edge_it_is_of_the_later_age_and_has_no_time_in_it(age: int) -> None:
    found = counted(EDGES_S[age])
    assert list(found.ended) == only(**{f"_{age}": 1})
    assert sum(found.stayed_s) == pytest.approx(EDGES_S[age])
    assert found.stayed_s[age] == 0


def test_the_last_age_has_no_end() -> None:
    found = counted(EDGES_S[-1] + 1e9)
    assert list(found.ended) == only(**{f"_{AGES - 1}": 1})
    assert found.stayed_s[-1] == pytest.approx(1e9)


def test_a_clock_that_was_set_back_makes_no_time() -> None:
    """It is no node of the oldest age either, which is the last of the list."""
    assert counted(-3.0) == counted(0.0)
    assert list(counted(-3.0).ended) == only(_0=1)


def test_several_nodes_at_once_count_as_one_by_one() -> None:
    seen = FragmentCounter()
    seen.left(100.0, 3)
    assert seen.fragments == counted(100.0, 100.0, 100.0)


def test_a_node_that_is_given_back_counts_its_stay_without_an_end() -> None:
    seen = FragmentCounter()
    seen.left(100.0, ended=False, early_s=500.0)
    assert seen.fragments.stayed_s == counted(100.0).stayed_s
    assert not any(seen.fragments.ended)
    assert (seen.fragments.told, seen.fragments.early) == (0, 0)


def test_what_was_asked_before_does_not_change() -> None:
    """A snapshot keeps it."""
    seen = FragmentCounter()
    seen.left(10.0)
    before = seen.fragments
    assert seen.fragments is before
    seen.left(10.0)
    assert before == counted(10.0)
    assert seen.fragments == counted(10.0, 10.0)


@given(st.data())
def test_the_order_of_leaving_is_nothing_and_memory_is_bounded(data: Any) -> None:
    ages_s = data.draw(st.lists(st.floats(-10, 1e8), max_size=40))
    shuffled = data.draw(st.permutations(ages_s))
    found, other = counted(*ages_s), counted(*shuffled)
    assert found.ended == other.ended
    assert found.stayed_s == pytest.approx(other.stayed_s)
    assert sum(found.ended) == len(ages_s)
    assert sum(found.stayed_s) == pytest.approx(sum(max(0.0, age_s) for age_s in ages_s))
    assert len(found.ended) == len(found.stayed_s) == (AGES if ages_s else 0)


# Saved and restored.


@given(st.lists(st.floats(0, 1e6), max_size=10), st.lists(st.floats(0, 1e6), max_size=10))
def test_a_restart_in_between_changes_nothing(before: list[float], after: list[float]) -> None:
    first = counted(*before)
    seen = FragmentCounter(msgspec.json.decode(msgspec.json.encode(first), type=Fragments))
    assert seen.fragments == first
    for age_s in after:
        seen.left(age_s)
    assert seen.fragments == counted(*before, *after)
    # What it began with was not written into.
    assert first == counted(*before)


def test_of_a_release_with_other_ages_nothing_is_taken_over() -> None:
    """Its counts would be of the wrong ages."""
    seen = FragmentCounter(Fragments((1.0, 2.0), (3.0, 4.0)))
    assert seen.fragments == Fragments()
    seen.left(25.0)
    assert seen.fragments == counted(25.0)


# Since when a node is there.


def world(*facts: tuple[float, f.Fact]) -> World:
    made = World()
    for when_s, fact in facts:
        apply(made, when_s, fact)
    return made


def test_a_node_is_there_since_it_came_or_longer_if_that_is_known() -> None:
    made = world(
        (100.0, f.NodeJoined(Node("new", 1))),
        (100.0, f.NodeJoined(Node("old", 1, since_s=-50.0))),
    )
    assert {node.name: node.since_s for node in made.nodes.values()} == {"new": 100.0, "old": -50.0}


def test_a_node_that_is_reported_again_keeps_its_age() -> None:
    made = world((100.0, f.NodeJoined(Node("n", 1))))
    assert apply(made, 200.0, f.NodeJoined(Node("n", 1, ends_s=900.0)))
    assert made.nodes["n"] == Node("n", 1, "", 100.0, 900.0)
    # The very same once more is no news.
    assert not apply(made, 300.0, f.NodeJoined(Node("n", 1, ends_s=900.0)))
    apply(made, 400.0, f.NodeLost("n"))
    assert made.seen.fragments == msgspec.structs.replace(counted(300.0), told=1, early=1)


@pytest.mark.parametrize(("left_s", "early"), [(800.0, 1), (839.0, 1), (840.0, 0), (950.0, 0)])
def test_a_node_leaves_early_if_it_is_by_more_than_a_minute(left_s: float, early: int) -> None:
    made = world((0.0, f.NodeJoined(Node("n", 1, ends_s=900.0))), (left_s, f.NodeLost("n")))
    seen = made.seen.fragments
    assert (seen.told, seen.early) == (1, early)


def test_of_a_node_without_an_end_it_is_not_said_that_it_left_early() -> None:
    made = world((0.0, f.NodeJoined(Node("n", 1))), (50.0, f.NodeLost("n")))
    assert (made.seen.fragments.told, made.seen.fragments.early) == (0, 0)


def test_a_node_that_left_and_came_again_is_new() -> None:
    made = world(
        (100.0, f.NodeJoined(Node("n", 1))),
        (130.0, f.NodeLost("n")),
        (500.0, f.NodeJoined(Node("n", 1))),
        (510.0, f.NodeLost("n")),
        (520.0, f.NodeLost("n")),
    )
    assert made.seen.fragments == counted(30.0, 10.0)


def test_policies_see_the_past_alone() -> None:
    made = world((0.0, f.NodeJoined(Node("n", 1))))
    before = made.snapshot(10.0, Cause.NODES)
    apply(made, 20.0, f.NodeLost("n"))
    assert before.fragments == Fragments()
    assert made.snapshot(30.0, Cause.NODES).fragments == counted(20.0)


def test_a_new_manager_knows_what_the_old_one_knew() -> None:
    made = world(
        (0.0, f.NodeJoined(Node("gone", 1))),
        (40.0, f.NodeLost("gone")),
        (60.0, f.NodeJoined(Node("n", 1, ends_s=900.0))),
    )
    saved = msgspec.json.decode(msgspec.json.encode(made.save()), type=Saved)
    again = World.restore(saved)
    assert again.nodes == made.nodes
    # It finds the node there, and does not know for how long.
    assert not apply(again, 500.0, f.NodeJoined(Node("n", 1, ends_s=900.0)))
    apply(again, 560.0, f.NodeLost("n"))
    assert again.seen.fragments == msgspec.structs.replace(counted(40.0, 500.0), told=1, early=1)


def test_what_an_older_release_saved_says_nothing_of_it() -> None:
    """Its nodes count from the beginning on."""
    plain = msgspec.to_builtins(world((60.0, f.NodeJoined(Node("n", 1)))).save())
    del plain["fragments"]
    del plain["nodes"][0]["since_s"], plain["nodes"][0]["ends_s"]
    again = World.restore(msgspec.convert(plain, Saved))
    assert again.nodes["n"].since_s is None
    apply(again, 100.0, f.NodeLost("n"))
    assert again.seen.fragments == counted(100.0)
