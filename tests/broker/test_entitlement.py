"""What weights entitle to, and whole nodes beside it: at an instant and over hours."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.broker.division import Pools, Reserved, Share, Wish, divide
from hpcext.broker.entitlement import entitled
from hpcext.broker.rounding import DUE_NODE_S, LEAST_NODE_S, MOST_NODE_S, Rounding

USERS = "abcde"
LOTS = 1000


def test_levels_rise_by_weight_until_wants_and_limits() -> None:
    shares = {"a": Share(3), "b": Share(1), "c": Share(1, limit=2)}
    wants = {"a": LOTS, "b": LOTS, "c": LOTS}
    assert entitled(5, wants, shares, {}) == pytest.approx({"a": 3, "b": 1, "c": 1})
    assert entitled(18, wants, shares, {}) == pytest.approx({"a": 12, "b": 4, "c": 2})
    assert entitled(18, {**wants, "a": 1}, shares, {}) == pytest.approx({"a": 1, "b": 15, "c": 2})
    assert entitled(18, {}, shares, {}) == {}


def test_priorities_reservations_pools_and_nodes_without_leave_are_those_of_the_division() -> None:
    wants = {"a": LOTS, "b": LOTS, "c": LOTS}
    first = {"c": Share(priority=1)}
    reserved = [Reserved(7, frozenset("ab"))]
    assert entitled(9, wants, first, {}) == pytest.approx({"a": 0, "b": 0, "c": 9})
    found = entitled(9, wants, first, {}, reserved=reserved)
    assert found == pytest.approx({"a": 3.5, "b": 3.5, "c": 2})
    pools = Pools({"x": 5}, {"a": ("x",), "b": ("x",)})
    assert entitled(9, wants, {}, {}, pools) == pytest.approx({"a": 2.5, "b": 2.5, "c": 4})
    # Four of a, which count as had, are not among the nine.
    assert entitled(9, wants, {}, {"a": 4}) == pytest.approx({"a": 1 / 3, "b": 13 / 3, "c": 13 / 3})


wants_of = st.dictionaries(st.sampled_from(USERS), st.integers(0, 40))
share = st.builds(
    Share, st.floats(0.01, 100), st.sampled_from([0.0, 1.0]), st.none() | st.integers(0, 20)
)
shares_of = st.dictionaries(st.sampled_from(USERS), share)
reservation = st.builds(
    Reserved, st.integers(1, 30), st.frozensets(st.sampled_from(USERS), min_size=1)
)


@given(
    st.integers(0, 100),
    wants_of,
    shares_of,
    st.dictionaries(st.sampled_from(USERS), st.integers(0, 5)),
    st.lists(reservation, max_size=2),
)
def test_whole_nodes_are_as_many_as_parts_of_any_size(
    nodes: int,
    wants: dict[str, int],
    shares: dict[str, Share],
    without: dict[str, int],
    reserved: list[Reserved],
) -> None:
    """Two methods, by the same rules: they agree in all that is given, and who is full."""
    wishes = {user: Wish(user, want) for user, want in wants.items()}
    whole = divide(nodes, wishes, shares, without, reserved=reserved)
    parts = entitled(nodes, wants, shares, without, reserved=reserved)
    assert math.fsum(parts.values()) == pytest.approx(sum(whole.values()), abs=1e-6)
    assert all(-1e-6 <= part <= wants[user] + 1e-6 for user, part in parts.items())


@given(st.integers(0, 100), wants_of, shares_of)
def test_who_is_entitled_to_more_by_weight_has_no_less_nodes_left_to_want(
    nodes: int, wants: dict[str, int], shares: dict[str, Share]
) -> None:
    """Max-min: of two users of one priority, who lacks something has no lower level than others."""
    parts = entitled(nodes, wants, shares, {})
    for user, part in parts.items():
        mine = shares.get(user, Share())
        limit = wants[user] if mine.limit is None else min(wants[user], mine.limit)
        if part >= limit - 1e-6:
            continue
        for other, theirs in parts.items():
            share = shares.get(other, Share())
            if share.priority == mine.priority:
                assert theirs / share.weight <= part / mine.weight + 1e-6


def over_hours(users: int, hours: float, *, rounds: bool) -> dict[str, float]:
    """Relative difference of node time from what weights entitle to, nodes coming and going."""
    chance = random.Random(1)
    shares = {f"u{number:02}": Share(1 + number % 3) for number in range(users)}
    wishes = {user: Wish(user, LOTS) for user in shares}
    rounding, nodes = Rounding(), 200
    due, had = dict.fromkeys(shares, 0.0), dict.fromkeys(shares, 0.0)
    for look in range(int(hours * 60)):
        nodes = max(100, min(300, nodes + chance.randint(-3, 3)))
        rounding.pass_to(60.0 * look)
        behind = rounding.behind if rounds else {}
        parts = divide(nodes, wishes, shares, {}, behind=behind)
        wishes = {user: Wish(user, LOTS, part) for user, part in parts.items()}
        entitlement = entitled(nodes, dict.fromkeys(shares, LOTS), shares, {})
        rounding.decided(entitlement, parts)
        for user in shares:
            due[user] += entitlement[user]
            had[user] += parts[user]
    return {user: had[user] / due[user] - 1 for user in shares}


def test_over_hours_nobody_gets_behind_by_rounding() -> None:
    plain, rounded = (over_hours(30, 12, rounds=rounds) for rounds in (False, True))
    assert max(map(abs, plain.values())) > 0.02
    assert max(map(abs, rounded.values())) < 0.02


def test_a_part_is_rounded_up_from_some_time_behind_until_even() -> None:
    rounding = Rounding()
    rounding.pass_to(0.0)
    rounding.decided({"a": 1.5, "b": 1.5}, {"a": 1, "b": 2})
    assert rounding.turns_s() == pytest.approx(2 * LEAST_NODE_S)
    rounding.pass_to(2 * LEAST_NODE_S - 2)
    assert rounding.behind == {}
    rounding.pass_to(2 * LEAST_NODE_S)
    assert rounding.behind == {"a": 0.5, "b": -0.5}
    assert (
        divide(3, {"a": Wish("a", 9, 1), "b": Wish("b", 9, 2)}, {}, {}, behind=rounding.behind)["a"]
        == 2
    )
    rounding.decided({"a": 1.5, "b": 1.5}, {"a": 2, "b": 1})
    rounding.pass_to(4 * LEAST_NODE_S - 2)
    assert rounding.behind == {"a": 0.5, "b": -0.5}
    rounding.pass_to(4 * LEAST_NODE_S + 2)
    assert rounding.behind == {}


def test_who_has_had_much_is_behind_later() -> None:
    """A node changes hands the less often, the less it matters to its user."""
    rounding = Rounding()
    rounding.pass_to(0.0)
    rounding.decided({"a": 20.0, "b": 0.5}, {"a": 20, "b": 0})
    rounding.pass_to(7200.0)
    assert rounding.behind == {"b": 0.5}
    rounding.decided({"a": 20.5}, {"a": 20})
    assert rounding.turns_s() > 2 * LEAST_NODE_S
    rounding.pass_to(7200.0 + 4 * LEAST_NODE_S)
    assert rounding.behind == {}
    rounding.pass_to(7200.0 + 2 * DUE_NODE_S)
    assert rounding.behind == {"a": 0.5}


def test_long_ago_is_forgotten_and_so_is_who_has_gone() -> None:
    rounding = Rounding()
    rounding.pass_to(0.0)
    rounding.decided({"a": 9.0, "b": 1.0}, {"b": 1})
    rounding.pass_to(1e6)
    rounding.decided({"a": 0.0}, {"a": 1})
    rounding.pass_to(1e6 + MOST_NODE_S - 1)
    assert rounding.behind == {"a": 0.5}
    rounding.pass_to(1e6 + MOST_NODE_S + 1)
    assert rounding.behind == {}
