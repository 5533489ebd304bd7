"""From counts to nodes: what is kept, what moves, what fits."""

from __future__ import annotations

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.policies.placement.place import PlacementRequest, Shape, place


def wish(gpus: int, nodes: int = 1, *less: Shape, **now: int) -> PlacementRequest:
    return PlacementRequest(Shape(gpus, nodes), lambda: list(less), now)


def test_what_is_held_is_kept() -> None:
    held = wish(2, a=2)
    assert place({"a": 4, "b": 4}, [wish(4), held]) == [{"b": 4}, {"a": 2}]


def test_who_gets_less_keeps_a_part_and_frees_it_for_others() -> None:
    assert place({"a": 4}, [wish(3), wish(1, a=4)]) == [{"a": 3}, {"a": 1}]
    assert place({"a": 4, "b": 4}, [wish(4), wish(4, 1, a=4, b=4)]) == [{"b": 4}, {"a": 4}]


def test_who_grows_does_so_where_he_is() -> None:
    assert place({"a": 4, "b": 8}, [wish(3, a=1)]) == [{"a": 3}]
    assert place({"a": 4, "b": 3, "c": 9}, [wish(3, 2, a=3)]) == [{"a": 3, "b": 3}]


def test_a_job_without_room_to_grow_moves_or_else_stays() -> None:
    other = wish(3, a=3)
    assert place({"a": 4, "b": 4}, [wish(4, a=1), other]) == [{"b": 4}, {"a": 3}]
    assert place({"a": 4}, [wish(4, a=1), other]) == [{"a": 1}, {"a": 3}]


def test_what_is_held_and_does_not_fit_is_given_up() -> None:
    assert place({"a": 2}, [wish(2, a=2), wish(1, a=1)]) == [{"a": 2}, {}]
    # Nobody gets a node that has less than nothing left.
    assert place({"a": 2, "b": 1}, [wish(2, a=2), wish(1, a=1), wish(1)]) == [
        {"a": 2},
        {"b": 1},
        {},
    ]
    assert place({"a": 0, "b": 3}, [wish(3, a=3)]) == [{"b": 3}]


def test_new_ones_go_where_the_least_is_left_the_largest_first() -> None:
    nodes = {"a": 8, "b": 3, "c": 2}
    assert place(nodes, [wish(2), wish(3), wish(8)]) == [{"c": 2}, {"b": 3}, {"a": 8}]


def test_what_has_no_place_takes_less_or_nothing() -> None:
    nodes = {"a": 3, "b": 3}
    assert place(nodes, [wish(4, 1, Shape(3, 1), Shape(2, 1)), wish(4)]) == [{"a": 3}, {}]
    assert place(nodes, [wish(2, 3, Shape(2, 2))]) == [{"a": 2, "b": 2}]


@st.composite
def instances(draw: st.DrawFn) -> tuple[dict[str, int], list[PlacementRequest]]:
    """Nodes, and jobs some of which hold something that fits."""
    capacity = {f"n{i}": draw(st.integers(0, 8)) for i in range(draw(st.integers(1, 5)))}
    left = dict(capacity)
    shape = st.builds(Shape, st.integers(1, 8), st.integers(1, 3))
    wishes = []
    for _ in range(draw(st.integers(0, 8))):
        size = draw(st.integers(1, 4))
        able = [node for node in left if left[node] >= size]
        chosen = able[: draw(st.integers(0, 2))]
        for node in chosen:
            left[node] -= size
        less = draw(st.lists(shape, max_size=2))
        wishes.append(
            PlacementRequest(draw(shape), lambda less=less: less, dict.fromkeys(chosen, size))
        )
    return capacity, wishes


@given(instances())
@settings(max_examples=500)
def test_the_division_always_fits_and_no_job_loses_its_gpus(
    instance: tuple[dict[str, int], list[PlacementRequest]],
) -> None:
    capacity, wishes = instance
    found = place(capacity, wishes)
    used: collections.Counter[str] = collections.Counter()
    for each, alloc in zip(wishes, found, strict=True):
        used.update(alloc)
        if not alloc:
            assert not each.now
            continue
        shape = Shape(min(alloc.values()), len(alloc))
        assert set(alloc.values()) == {shape.gpus}
        assert shape in {each.wanted, *each.less()} or alloc == each.now
    assert all(gpus <= capacity[node] for node, gpus in used.items())
    assert place(capacity, wishes) == found


def likes(each: PlacementRequest, *nodes: str) -> PlacementRequest:
    return each._replace(likes=nodes)


def test_who_gets_less_keeps_the_nodes_that_it_likes() -> None:
    nodes = {"a": 2, "b": 2, "c": 2}
    held = wish(2, 2, a=2, b=2, c=2)
    assert place(nodes, [held]) == [{"a": 2, "b": 2}]
    assert place(nodes, [likes(held, "c", "a")]) == [{"a": 2, "c": 2}]
    # Of those that it does not like the first.
    assert place(nodes, [likes(held, "c")]) == [{"c": 2, "a": 2}]
    assert place(nodes, [likes(wish(1, 1, a=2, b=2), "b")]) == [{"b": 1}]


def test_what_is_liked_comes_before_the_best_fit() -> None:
    nodes = {"a": 2, "b": 4, "c": 3}
    assert place(nodes, [wish(2)]) == [{"a": 2}]
    assert place(nodes, [likes(wish(2), "b", "a")]) == [{"b": 2}]
    assert place(nodes, [likes(wish(2, 2), "b")]) == [{"b": 2, "a": 2}]
    # Who grows does so on its own, and on those.
    assert place(nodes, [likes(wish(2, 2, c=2), "b", "a")]) == [{"c": 2, "b": 2}]
    # And who has to take less takes it there.
    assert place(nodes, [likes(wish(5, 1, Shape(2, 1)), "c")]) == [{"c": 2}]


def test_a_liked_node_without_room_is_passed_over() -> None:
    nodes = {"a": 1, "b": 4, "c": 3}
    assert place(nodes, [likes(wish(2), "a", "b")]) == [{"b": 2}]
    assert place(nodes, [likes(wish(2, 2), "a")]) == [{"c": 2, "b": 2}]
    held = wish(4, b=4)
    assert place(nodes, [likes(wish(2), "b", "c"), held]) == [{"c": 2}, {"b": 4}]
    assert place({"a": 1}, [likes(wish(2), "a")]) == [{}]


def test_what_is_kept_is_not_left_for_what_is_liked() -> None:
    assert place({"a": 2, "b": 2}, [likes(wish(2, a=2), "b")]) == [{"a": 2}]
    assert place({"a": 3, "b": 3}, [likes(wish(3, a=2), "b")]) == [{"a": 3}]


def test_a_node_that_is_liked_twice_is_had_once() -> None:
    nodes = {"a": 2, "b": 2}
    assert place(nodes, [likes(wish(1, 2), "a", "a", "b")]) == [{"a": 1, "b": 1}]
    assert place({"a": 2}, [likes(wish(1, 2), "a", "a")]) == [{}]


def test_no_job_gets_a_preferred_node_that_is_apart() -> None:
    nodes = {"a": 4, "b": 4, "c": 4, "d": 4}
    held = wish(1, 2, a=1, b=1)
    new = likes(wish(1, 2), "a", "b")
    assert place(nodes, [held, new]) == [{"a": 1, "b": 1}, {"a": 1, "b": 1}]
    assert place(nodes, [held, new], apart=()) == [{"a": 1, "b": 1}, {"c": 1, "d": 1}]
    # One on a single node may be there.
    assert place(nodes, [held, likes(wish(1), "a")], apart=()) == [{"a": 1, "b": 1}, {"a": 1}]


@given(instances(), st.data())
@settings(max_examples=300)
def test_whatever_is_liked_all_fits_and_what_is_all_liked_is_had(
    instance: tuple[dict[str, int], list[PlacementRequest]], data: st.DataObject
) -> None:
    capacity, plain = instance
    orders = st.permutations(list(capacity))
    wishes = [
        likes(each, *data.draw(orders)[: data.draw(st.integers(0, len(capacity)))])
        for each in plain
    ]
    found = place(capacity, wishes)
    used: collections.Counter[str] = collections.Counter()
    for each, alloc in zip(wishes, found, strict=True):
        used.update(alloc)
        assert not alloc or len(set(alloc.values())) == 1
        if alloc and alloc != each.now:
            shape = Shape(min(alloc.values()), len(alloc))
            assert shape in {each.wanted, *each.less()}
    assert all(gpus <= capacity[node] for node, gpus in used.items())
    # One alone, without anything, has those of the nodes that it likes that have room.
    (first,) = place(capacity, [each._replace(now={}) for each in wishes[:1]]) or [{}]
    if first and len(first) == wishes[0].wanted.nodes:
        roomy = [node for node in wishes[0].likes if capacity[node] >= min(first.values())]
        assert set(roomy[: len(first)]) <= set(first)


def on(kind: str | None, each: PlacementRequest) -> PlacementRequest:
    return each._replace(kind=kind)


KINDS = {"a": "fast", "b": "slow", "c": "slow"}


def test_a_request_for_a_kind_is_placed_there_or_nowhere() -> None:
    nodes = {"a": 2, "b": 3, "c": 4}
    assert place(nodes, [on("fast", wish(2)), on("slow", wish(2))], kinds=KINDS) == [
        {"a": 2}, {"b": 2}
    ]  # fmt: skip
    assert place(nodes, [on("fast", wish(3))], kinds=KINDS) == [{}]
    assert place(nodes, [on("fast", wish(3, 1, Shape(2, 1)))], kinds=KINDS) == [{"a": 2}]


def test_several_nodes_are_of_one_kind() -> None:
    nodes = {"a": 2, "b": 2, "c": 4}
    assert place(nodes, [wish(2, 2)], kinds=KINDS) == [{"b": 2, "c": 2}]
    assert place({"a": 2, "b": 2}, [wish(2, 2)], kinds=KINDS) == [{}]
    assert place(nodes, [wish(2, 2, a=2)], kinds=KINDS) == [{"b": 2, "c": 2}]
    assert place(nodes, [wish(2, 2, a=2, b=2)], kinds=KINDS) == [{"b": 2, "c": 2}]


def test_two_that_want_each_other_s_place_change_it() -> None:
    one, other = on("slow", wish(4, a=4)), on("fast", wish(4, b=4))
    assert place({"a": 4, "b": 4}, [one, other], kinds=KINDS) == [{"b": 4}, {"a": 4}]


def test_who_finds_no_room_on_another_kind_stays_if_that_is_still_free() -> None:
    held = on("slow", wish(4, b=4))
    moves = on("slow", wish(3, a=3))
    assert place({"a": 4, "b": 4}, [moves, held], kinds=KINDS) == [{"a": 3}, {"b": 4}]
    new = on("fast", wish(4))
    assert place({"a": 4, "b": 4}, [moves, held, new], kinds=KINDS) == [{}, {"b": 4}, {"a": 4}]


def test_what_is_liked_is_of_the_right_kind() -> None:
    nodes = {"a": 4, "b": 2, "c": 4}
    assert place(nodes, [on("slow", likes(wish(2), "a", "c"))], kinds=KINDS) == [{"c": 2}]
    assert place(nodes, [likes(wish(2, 2), "a", "c")], kinds=KINDS) == [{"c": 2, "b": 2}]


@given(instances(), st.data())
@settings(max_examples=300)
def test_whatever_the_kinds_all_fits_and_each_is_on_its_own(
    instance: tuple[dict[str, int], list[PlacementRequest]], data: st.DataObject
) -> None:
    capacity, plain = instance
    names = st.sampled_from(["fast", "slow"])
    kinds = {node: data.draw(names) for node in capacity}
    there = st.sampled_from([None, *dict.fromkeys(kinds.values())])
    wishes = [on(data.draw(there), each) for each in plain]
    found = place(capacity, wishes, kinds=kinds)
    used: collections.Counter[str] = collections.Counter()
    for each, alloc in zip(wishes, found, strict=True):
        used.update(alloc)
        if alloc and alloc != each.now:
            (kind,) = {kinds[node] for node in alloc}
            assert each.kind in (None, kind)
            assert len(set(alloc.values())) == 1
    assert all(gpus <= capacity[node] for node, gpus in used.items())
    alike = dict.fromkeys(capacity, "slow")
    unnamed = [on(None, each) for each in plain]
    assert place(capacity, unnamed, kinds=alike) == place(capacity, unnamed)
