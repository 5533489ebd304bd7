"""Classes of nodes by when they leave, and what is believed of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcext.core.history.fragments import EDGES_S, Fragments
from hpcext.core.values import Node
from hpcext.policies.bftrainer.holes import (
    BEYOND,
    FIRST,
    LATER_S,
    LEAST,
    PIECES,
    Holes,
    Horizon,
    holes,
)

HAZARD = 0.01
"""Per second, of nodes of every age that ONE_RATE has seen."""

MANY_S = 1e12

ONE_RATE = Fragments(
    (HAZARD * MANY_S,) * len(EDGES_S), (MANY_S,) * len(EDGES_S), told=1_000_000_000
)
"""So much was seen that nothing else counts; who says when it leaves does not leave earlier."""

THREE = Horizon(np.array([0.0, 10.0, 20.0, 30.0]))


def node(name: str, since_s: float | None = None, ends_s: float | None = None) -> Node:
    return Node(name, 1, since_s=since_s, ends_s=ends_s)


def found(
    *nodes: Node,
    now_s: float = 100.0,
    stall_s: float = 4.0,
    seen: Fragments = ONE_RATE,
    span: Horizon = THREE,
) -> Holes:
    return holes({each.name: each for each in nodes}, seen, now_s, span, stall_s)


def test_a_span_has_longer_and_longer_pieces() -> None:
    span = Horizon.of(160.0)
    assert len(span.pieces_s) == PIECES + BEYOND
    assert (span.edges_s[0], span.edges_s[1]) == (0.0, pytest.approx(160.0 * FIRST))
    assert span.edges_s[PIECES] == pytest.approx(160.0)
    assert span.edges_s[-1] == pytest.approx(160.0 + LATER_S)
    assert np.all(np.diff(span.pieces_s[1:]) > 0)


def test_what_is_far_ahead_counts_less_and_for_stalls_alone() -> None:
    span = Horizon.of(160.0)
    assert span.beyond.tolist() == [0.0] * PIECES + [1.0] * BEYOND
    assert span.after(0.0)[:PIECES] == pytest.approx(span.pieces_s[:PIECES])
    later_s = (span.edges_s[PIECES:-1] + span.edges_s[PIECES + 1 :]) / 2
    seconds = span.pieces_s[PIECES:] * np.exp(-later_s / LATER_S)
    assert span.after(0.0)[PIECES:] == pytest.approx(seconds)


def test_far_ahead_known_ends_alone_are_believed() -> None:
    span = Horizon(np.array([0.0, 10.0, 20.0, 30.0]), near=1)
    learned = found(node("a", 10.0), span=span)
    assert np.all(learned.calm[:, 0] < 0)
    assert np.all(learned.calm[:, 1:] == 0)
    assert np.all(np.diff(learned.stays) < 0)
    told = found(node("a", 10.0, 100.0 + 20.0), span=span)
    assert np.exp(told.calm[0]) == pytest.approx([1.0, 1.0, 0.6], abs=1e-4)


def test_what_lies_after_a_stall() -> None:
    assert THREE.after(0.0).tolist() == [10, 10, 10]
    assert THREE.after(13.0).tolist() == [0, 7, 10]
    assert THREE.after(np.array([4.0, 99.0])).tolist() == [[6, 10, 10], [0, 0, 0]]


def test_who_came_at_one_instant_or_leaves_at_one_is_of_one_class() -> None:
    of = found(
        node("a", 10.0), node("b", 20.0), node("c", 10.0), node("d", 10.0, 300.0),
        node("e", 20.0, 300.0), node("f", 20.0, 301.0),
    ).of  # fmt: skip
    assert list(of) == list("abcdef")
    assert of["a"] == of["c"]
    assert of["d"] == of["e"]
    assert len({of["a"], of["b"], of["d"], of["f"]}) == 4
    assert set(of.values()) == set(range(4))


def test_who_does_not_say_since_when_came_now() -> None:
    of = found(node("a"), node("b"), node("c", 100.0), node("d", 99.0)).of
    assert of["a"] == of["b"] == of["c"] != of["d"]


def test_a_known_end_within_a_piece_counts_in_part() -> None:
    stays = found(node("a", 0.0, 115.0), node("b", 0.0, 130.0), node("c", 0.0, 102.5)).stays
    expected = [[1.0, 0.5, 0.0], [1.0, 1.0, 1.0], [0.25, 0.0, 0.0]]
    assert stays == pytest.approx(np.array(expected), abs=1e-6)


def test_the_end_of_a_lease_is_not_the_end_of_the_hole() -> None:
    """It leaves by then, and before as others did, whoever kept their word."""
    lease = found(Node("a", 1, since_s=10.0, ends_s=120.0, planned=False))
    open_ = found(node("a", 10.0))
    assert lease.stays[0] == pytest.approx(open_.stays[0] * [1.0, 1.0, 0.0])
    assert lease.calm[0, 0] == pytest.approx(open_.calm[0, 0])


def test_a_job_stalls_after_a_known_end() -> None:
    """For 4 s: within a piece, over the edge of two, behind the last, and for a whole piece."""
    calm = found(node("a", 0.0, 115.0), node("b", 0.0, 118.0), node("c", 0.0, 130.0)).calm
    expected = [[1.0, 0.6, 1.0], [1.0, 0.8, 0.8], [1.0, 1.0, 1.0]]
    assert np.exp(calm) == pytest.approx(np.array(expected), abs=1e-6)
    calm = found(node("a", 0.0, 105.0), stall_s=20.0).calm
    assert np.exp(calm) == pytest.approx(np.array([[0.5, LEAST, 0.5]]), abs=1e-6)
    assert np.isfinite(calm).all()


def test_without_a_known_end_a_node_stays_as_others_did() -> None:
    """At the middle of each piece, 5, 15 and 25 s; it stalls whose node left in the 8 s before."""
    seen = found(node("a", 40.0), stall_s=8.0)
    then = [math.exp(-HAZARD * after_s) for after_s in (5, 15, 25)]
    before = [math.exp(-HAZARD * after_s) for after_s in (0, 7, 17)]
    calm = [1.0 - was + still for was, still in zip(before, then, strict=True)]
    assert seen.stays[0] == pytest.approx(then)
    assert np.exp(seen.calm[0]) == pytest.approx(calm)


@pytest.mark.parametrize("end_s", [99.0, 100.0])
def test_a_node_past_its_end_is_one_without(end_s: float) -> None:
    late, other = node("a", 40.0, end_s), node("b", 40.0)
    assert len(set(found(late, other).of.values())) == 1
    assert found(late).stays.tolist() == found(other).stays.tolist()
    assert found(late).calm.tolist() == found(other).calm.tolist()


def test_how_many_leave_before_their_end_is_learned() -> None:
    """Of 8 that told, 1 left early: believed are 2 of 10. None told: one of two."""
    for seen, early in (((8, 1), 0.2), ((0, 0), 0.5)):
        told = Fragments(ONE_RATE.ended, ONE_RATE.stayed_s, *seen)
        there = found(node("a", 0.0, 115.0), seen=told).stays[0]
        left = [1 - early + early * math.exp(-HAZARD * after_s) for after_s in (5, 15)]
        assert there == pytest.approx([left[0], left[1] / 2, 0.0])


def test_who_may_leave_early_may_stall_early() -> None:
    """Half of them leave as those do that say nothing: in the first piece there is nothing else."""
    told = Fragments(ONE_RATE.ended, ONE_RATE.stayed_s)
    calm = np.exp(found(node("a", 0.0, 400.0), seen=told, stall_s=8.0).calm[0])
    left = [(0, 5), (7, 15), (17, 25)]
    gone = [math.exp(-HAZARD * before) - math.exp(-HAZARD * then) for before, then in left]
    assert calm == pytest.approx([1 - each / 2 for each in gone])


def test_a_class_is_as_old_as_its_nodes_are_on_the_average() -> None:
    all_early = Fragments(told=10**9, early=10**9)
    both = found(node("a", 90.0, 400.0), node("b", 10.0, 400.0), seen=all_early)
    young, old = (found(node("a", since_s, 400.0), seen=all_early) for since_s in (90.0, 10.0))
    assert young.stays[0, -1] < both.stays[0, -1] < old.stays[0, -1]


def test_the_longer_one_has_lasted_the_longer_it_will() -> None:
    nothing = Fragments()
    stays = found(node("a", 90.0), node("b", -5000.0), node("c", -1e5), seen=nothing).stays
    assert np.all(np.diff(stays, axis=0) > 0)


def test_what_is_seen_counts() -> None:
    short = Fragments((50.0,) * len(EDGES_S), (100.0,) * len(EDGES_S))
    seen, not_seen = (found(node("a", 90.0), seen=each).stays for each in (short, Fragments()))
    assert np.all(seen < not_seen)


def test_without_nodes_there_are_no_classes() -> None:
    assert found().of == {}
    assert found().stays.shape == found().calm.shape == (0, 3)


def test_a_node_of_which_it_is_known_that_it_never_leaves_stays() -> None:
    """No end at all is something else than an end that nobody knows."""
    there = {"stays": Node("stays", 1, "", 0.0, math.inf), "new": Node("new", 1, "", 0.0)}
    told = Fragments(told=1_000_000)
    found = holes(there, told, 0.0, Horizon.of(600.0), 10.0)
    assert found.stays[found.of["stays"]] == pytest.approx(np.ones(PIECES + BEYOND), abs=1e-4)
    assert found.stays[found.of["new"]][-1] < 0.6
