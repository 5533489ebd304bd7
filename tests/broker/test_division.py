"""Nodes are divided by weights, priorities and limits; what users wish bounds what they get."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcext.broker.division import Pools, Share, Wish, assign, divide

USERS = "abcd"


def parts(nodes: int, wishes: dict[str, Wish], **shares: Share) -> dict[str, int]:
    return divide(nodes, wishes, shares, {})


def test_parts_are_by_weight() -> None:
    wishes = {"a1": Wish("a", 100), "b1": Wish("b", 100)}
    assert parts(12, wishes, a=Share(3), b=Share(1)) == {"a1": 9, "b1": 3}
    assert parts(12, wishes) == {"a1": 6, "b1": 6}


def test_a_second_harvester_gains_its_user_nothing() -> None:
    wishes = {"a1": Wish("a", 100), "a2": Wish("a", 100), "b1": Wish("b", 100)}
    assert parts(12, wishes) == {"a1": 3, "a2": 3, "b1": 6}


def test_what_one_does_not_want_others_have() -> None:
    assert parts(12, {"a1": Wish("a", 2), "b1": Wish("b", 100)}) == {"a1": 2, "b1": 10}


def test_a_higher_priority_has_all_that_it_wants_first() -> None:
    wishes = {"a1": Wish("a", 5), "b1": Wish("b", 100)}
    assert parts(7, wishes, a=Share(0.1, priority=1)) == {"a1": 5, "b1": 2}


def test_a_limit_holds_for_all_harvesters_of_a_user() -> None:
    wishes = {"a1": Wish("a", 100), "a2": Wish("a", 100), "b1": Wish("b", 2)}
    found = parts(12, wishes, a=Share(limit=4))
    assert found == {"a1": 2, "a2": 2, "b1": 2}
    assert parts(12, wishes, a=Share(limit=0))["a1"] == 0


def test_nodes_without_leave_count_as_had() -> None:
    wishes = {"a1": Wish("a", 100), "b1": Wish("b", 100)}
    assert divide(8, wishes, {}, {"a": 4}) == {"a1": 2, "b1": 6}
    assert divide(8, wishes, {"a": Share(limit=3)}, {"a": 4}) == {"a1": 0, "b1": 8}


def test_several_users_have_a_limit_together() -> None:
    wishes = {f"{user}1": Wish(user, 100) for user in "abc"}
    pools = Pools({"group x": 4}, {"a": ("group x",), "b": ("group x",)})
    assert divide(12, wishes, {}, {}, pools) == {"a1": 2, "b1": 2, "c1": 8}
    # Those of a member who does not ask count, too.
    assert divide(12, wishes, {}, {"b": 3}, pools) == {"a1": 1, "b1": 0, "c1": 11}
    assert divide(12, wishes, {}, {"b": 9}, pools) == {"a1": 0, "b1": 0, "c1": 12}
    gone = Pools({"group x": 4}, {"a": ("group x",), "d": ("group x",)})
    assert divide(12, {"a1": Wish("a", 9)}, {}, {"d": 3}, gone) == {"a1": 1}


def test_the_rest_of_a_division_stays_where_it_is() -> None:
    for had in ("a1", "b1"):
        wishes = {name: Wish(name[0], 9, 2 if name == had else 1) for name in ("a1", "b1")}
        assert parts(3, wishes)[had] == 2


wish = st.builds(Wish, st.sampled_from(USERS), st.integers(0, 40), st.integers(0, 40))
share = st.builds(Share, st.floats(0.1, 10), st.sampled_from([0.0, 1.0]), st.none())


@given(
    st.integers(0, 60),
    st.dictionaries(st.text(USERS, min_size=1, max_size=3), wish),
    st.dictionaries(st.sampled_from(USERS), share),
)
def test_no_node_is_left_that_somebody_wants_and_none_is_given_twice(
    nodes: int, wishes: dict[str, Wish], shares: dict[str, Share]
) -> None:
    found = divide(nodes, wishes, shares, {})
    assert sum(found.values()) == min(nodes, sum(each.want for each in wishes.values()))
    assert all(found[name] <= each.want for name, each in wishes.items())


@given(
    st.integers(0, 60),
    st.dictionaries(st.text(USERS, min_size=1, max_size=3), wish),
    st.dictionaries(st.sampled_from("xy"), st.integers(0, 20), min_size=2),
    st.dictionaries(st.sampled_from(USERS), st.sampled_from([(), ("x",), ("y",), ("x", "y")])),
)
def test_no_pool_has_more_than_it_may_and_no_node_is_left_that_one_may_have(
    nodes: int,
    wishes: dict[str, Wish],
    limits: dict[str, int],
    of: dict[str, tuple[str, ...]],
) -> None:
    found = divide(nodes, wishes, {}, {}, Pools(limits, of))
    had = dict.fromkeys(limits, 0)
    for name, part in found.items():
        for pool in of.get(wishes[name].user, ()):
            had[pool] += part
    assert all(had[pool] <= limit for pool, limit in limits.items())
    full = {pool for pool, limit in limits.items() if had[pool] == limit}
    if sum(found.values()) < nodes:
        for name, each in wishes.items():
            assert found[name] == each.want or full & set(of.get(each.user, ()))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 100))
def test_to_wish_for_more_takes_nothing_from_a_user_within_his_part(
    nodes: int, want: int, lie: int
) -> None:
    """Whatever the liar says, the other has what he wants, or half."""
    found = divide(nodes, {"a1": Wish("a", want + lie), "b1": Wish("b", want)}, {}, {})
    assert found["b1"] >= min(want, nodes // 2)


def test_a_part_is_first_what_its_harvester_has() -> None:
    held = {"n3": "a", "n1": "b", "n4": "a"}
    found = assign({"a": 2, "b": 2}, ["n1", "n2", "n3", "n4"], held, {})
    assert found == {"a": ["n3", "n4"], "b": ["n1", "n2"]}


@given(
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)),
    st.dictionaries(st.sampled_from("123456"), st.sampled_from("abx")),
    st.dictionaries(st.sampled_from("ab"), st.sets(st.sampled_from("1234567"))),
)
def test_each_node_is_in_one_part(
    counts: dict[str, int], held: dict[str, str], used: dict[str, set[str]]
) -> None:
    found = assign(counts, "123456", held, used)
    names = [node for nodes in found.values() for node in nodes]
    assert len(names) == len(set(names))
    assert set(names) <= set("123456")
    assert {name: len(nodes) for name, nodes in found.items()} == counts
