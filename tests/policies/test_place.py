"""From counts to nodes: what is kept, what moves, what fits."""

from __future__ import annotations

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.policies.place import Shape, Wish, place


def wish(gpus: int, nodes: int = 1, *less: Shape, **now: int) -> Wish:
    return Wish(Shape(gpus, nodes), lambda: list(less), now)


def test_what_is_held_is_kept() -> None:
    held = wish(2, a=2)
    assert place({"a": 4, "b": 4}, [wish(4), held]) == [{"b": 4}, {"a": 2}]


def test_who_gets_less_keeps_a_part_and_frees_it_for_others() -> None:
    assert place({"a": 4}, [wish(3), wish(1, a=4)]) == [{"a": 3}, {"a": 1}]
    assert place({"a": 4, "b": 4}, [wish(4), wish(4, 1, a=4, b=4)]) == [{"b": 4}, {"a": 4}]


def test_who_grows_does_so_where_he_is() -> None:
    assert place({"a": 4, "b": 8}, [wish(3, a=1)]) == [{"a": 3}]
    assert place({"a": 4, "b": 3, "c": 9}, [wish(3, 2, a=3)]) == [{"a": 3, "b": 3}]


def test_who_cannot_moves_and_if_there_is_no_place_stays() -> None:
    other = wish(3, a=3)
    assert place({"a": 4, "b": 4}, [wish(4, a=1), other]) == [{"b": 4}, {"a": 3}]
    assert place({"a": 4}, [wish(4, a=1), other]) == [{"a": 1}, {"a": 3}]


def test_new_ones_go_where_the_least_is_left_the_largest_first() -> None:
    nodes = {"a": 8, "b": 3, "c": 2}
    assert place(nodes, [wish(2), wish(3), wish(8)]) == [{"c": 2}, {"b": 3}, {"a": 8}]


def test_what_has_no_place_takes_less_or_nothing() -> None:
    nodes = {"a": 3, "b": 3}
    assert place(nodes, [wish(4, 1, Shape(3, 1), Shape(2, 1)), wish(4)]) == [{"a": 3}, {}]
    assert place(nodes, [wish(2, 3, Shape(2, 2))]) == [{"a": 2, "b": 2}]


@st.composite
def instances(draw: st.DrawFn) -> tuple[dict[str, int], list[Wish]]:
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
        wishes.append(Wish(draw(shape), lambda less=less: less, dict.fromkeys(chosen, size)))
    return capacity, wishes


@given(instances())
@settings(max_examples=500)
def test_it_always_fits_and_nobody_loses_what_he_had(
    instance: tuple[dict[str, int], list[Wish]],
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
