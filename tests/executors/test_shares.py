"""How harvesters divide idle nodes among them: the rule, and what many of them make of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.harvest.shares import WINDOW_S, Stake, drawn, parts


@pytest.mark.parametrize(
    ("nodes", "stakes", "expected"),
    [
        # The first one has all, and the second one comes.
        (6, {"a": ("ann", 6, 6), "b": ("bob", 0, 9)}, {"a": 3, "b": 3}),
        # It wants less than its part: what it leaves is the other's.
        (6, {"a": ("ann", 4, 9), "b": ("bob", 0, 2)}, {"a": 4, "b": 2}),
        # What is left over stays where it is.
        (7, {"a": ("ann", 4, 9), "b": ("bob", 3, 9)}, {"a": 4, "b": 3}),
        (7, {"a": ("ann", 3, 9), "b": ("bob", 4, 9)}, {"a": 3, "b": 4}),
        (7, {"a": ("ann", 3, 9), "b": ("bob", 3, 9), "c": ("cy", 1, 9)}, None),
        # A second harvester gives a user no more nodes.
        (6, {"a": ("ann", 3, 9), "a2": ("ann", 0, 9), "b": ("bob", 3, 9)}, None),
        (8, {"a": ("ann", 0, 9), "a2": ("ann", 0, 9), "b": ("bob", 0, 9)},
         {"a": 2, "a2": 2, "b": 4}),
        (0, {"a": ("ann", 0, 9)}, {"a": 0}),
        (5, {"a": ("ann", 2, 3)}, {"a": 3}),
        (5, {}, {}),
    ],
)  # fmt: skip
def test_the_parts(
    nodes: int, stakes: dict[str, tuple[str, int, int]], expected: dict[str, int] | None
) -> None:
    found = parts(nodes, {name: Stake(*each) for name, each in stakes.items()})
    if expected is not None:
        assert found == expected
    elif "c" in stakes:
        # Of two that have one more than the third, one may keep it.
        assert sorted((found["a"], found["b"])) == [2, 3]
        assert found["c"] == 2
    else:
        assert found["a"] + found["a2"] == found["b"] == 3


@pytest.mark.parametrize(
    ("nodes", "stakes", "expected"),
    [
        # What is left over goes to who had less; but not for little, and nobody pays twice.
        (3, {"a": ("ann", 2, 9, 600.0), "b": ("bob", 1, 9, 400.0)}, {"a": 1, "b": 2}),
        (3, {"a": ("ann", 2, 9, 410.0), "b": ("bob", 1, 9, 400.0)}, {"a": 2, "b": 1}),
        (3, {"a": ("ann", 1, 9, 410.0), "b": ("bob", 2, 9, 400.0)}, {"a": 1, "b": 2}),
        (3, {"a": ("ann", 2, 9, 40.0), "b": ("bob", 1, 9, 10.0)}, {"a": 1, "b": 2}),
        # Equal parts are left for who had much less, by one node.
        (4, {"a": ("ann", 2, 9, 900.0), "b": ("bob", 2, 9, 300.0)}, {"a": 1, "b": 3}),
        (40, {"a": ("ann", 20, 99, 9000.0), "b": ("bob", 20, 99, 0.0)}, {"a": 19, "b": 21}),
        (1, {"a": ("ann", 1, 9, 60.0), "b": ("bob", 0, 9, 0.0)}, {"a": 0, "b": 1}),
        # Who wants no more is no measure: what it did not want is not owed to it, or to others.
        (5, {"a": ("ann", 2, 9, 600.0), "b": ("bob", 2, 9, 400.0), "c": ("cy", 1, 1, 0.0)},
         {"a": 1, "b": 3, "c": 1}),
        (4, {"a": ("ann", 3, 9, 900.0), "c": ("cy", 1, 1, 0.0)}, {"a": 3, "c": 1}),
        # Who is alone has all, whatever it had.
        (4, {"a": ("ann", 4, 9, 9000.0)}, {"a": 4}),
        # So it is between harvesters of one user.
        (3, {"a": ("ann", 2, 9, 600.0), "a2": ("ann", 1, 9, 400.0)}, {"a": 1, "a2": 2}),
    ],
)  # fmt: skip
def test_the_parts_of_those_that_had_more_or_less_lately(
    nodes: int, stakes: dict[str, tuple[str, int, int, float]], expected: dict[str, int]
) -> None:
    assert parts(nodes, {name: Stake(*each) for name, each in stakes.items()}) == expected


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_main_jobs_that_come_and_go_leave_users_equal(names: str) -> None:
    """They take nodes away at random; over five minutes users had as much, but for 10 %."""
    draw = random.Random(7)
    held, look_s = dict.fromkeys(names, 0), 15.0
    past: list[dict[str, int]] = []
    off = []
    window = int(WINDOW_S / look_s)
    for at in range(400):
        if at % 2 == 0:
            nodes = draw.randint(len(names), 3 * len(names))
        while sum(held.values()) > nodes:
            held[draw.choice([name for name in names if held[name]])] -= 1
        used = {name: look_s * sum(each[name] for each in past[-window:]) for name in names}
        held = parts(nodes, {name: Stake(name, held[name], 99, used[name]) for name in names})
        past.append(held)
        if at > window:
            found = [sum(each[name] for each in past[-window:]) for name in names]
            mean = sum(found) / len(found)
            off.append(max(abs(each - mean) for each in found) / mean)
    assert sum(each <= 0.1 for each in off) > 0.9 * len(off)
    assert sum(off) / len(off) < 0.07


STAKES = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["ann", "bob", "cy"]), st.integers(0, 9), st.integers(0, 12)),
    min_size=1,
    max_size=6,
)


@given(STAKES, st.integers(0, 30))
def test_nothing_is_idle_that_anybody_wants_and_users_are_equal(
    said: dict[str, tuple[str, int, int]], nodes: int
) -> None:
    stakes = {name: Stake(*each) for name, each in said.items()}
    found = parts(nodes, stakes)
    assert sum(found.values()) == min(nodes, sum(each.want for each in stakes.values()))
    assert all(0 <= found[name] <= stakes[name].want for name in stakes)
    has: dict[str, int] = {}
    wants: dict[str, int] = {}
    for name, stake in stakes.items():
        has[stake.user] = has.get(stake.user, 0) + found[name]
        wants[stake.user] = wants.get(stake.user, 0) + stake.want
    short = [user for user in has if has[user] < wants[user]]
    for user in short:
        assert all(has[other] <= has[user] + 1 for other in has)


class Game:
    """Harvesters that look one after the other, in any order, and see what a queue shows."""

    def __init__(self, nodes: int, wants: dict[str, int], held: dict[str, int]) -> None:
        self.nodes = nodes
        self.wants = wants
        self.held = dict(held)
        self.asked = dict.fromkeys(wants, 0)
        self.changes = 0

    @property
    def idle(self) -> int:
        return self.nodes - sum(self.held.values())

    def look(self, me: str) -> None:
        """What LeaseBook does at one look."""
        seen = {
            name: Stake(name, self.held[name], self.held[name] + self.asked[name])
            for name in self.wants
            if self.held[name] + self.asked[name] or name == me
        }
        seen[me] = seen[me]._replace(want=self.wants[me])
        part = parts(self.nodes, seen)[me]
        if self.held[me] > part:
            self.changes += self.held[me] - part
            self.held[me] = part
        taken = min(self.idle, max(0, part - self.held[me]))
        self.changes += taken
        self.held[me] += taken
        self.asked[me] = max(0, part - self.held[me])


@given(
    st.integers(1, 24),
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 24), min_size=1),
    st.integers(0, 2**32),
)
def test_it_comes_to_rest_with_nothing_idle(nodes: int, wants: dict[str, int], seed: int) -> None:
    """From any beginning and in any order of looks; no node changes hands after that."""
    draw = random.Random(seed)
    held, left = {}, nodes
    for name, want in wants.items():
        held[name] = draw.randint(0, min(left, want))
        left -= held[name]
    game = Game(nodes, wants, held)
    for _ in range(4 * len(wants) + 8):
        for name in draw.sample(sorted(wants), len(wants)):
            game.look(name)
    before = dict(game.held)
    changes = game.changes
    for _ in range(4):
        for name in draw.sample(sorted(wants), len(wants)):
            game.look(name)
    assert (game.held, game.changes) == (before, changes)
    assert sum(before.values()) == min(nodes, sum(wants.values()))
    short = [name for name in wants if before[name] < wants[name]]
    assert all(before[other] <= before[name] + 1 for name in short for other in wants)


def test_each_harvester_has_its_own_order() -> None:
    names = [f"n{number}" for number in range(12)]
    one, other = (sorted(names, key=lambda node: drawn(seed, node)) for seed in ("one", "other"))
    assert one != other
    assert sorted(one) == sorted(other)
    assert one == sorted(names, key=lambda node: drawn("one", node))


def test_what_is_left_over_is_not_always_for_the_same_one() -> None:
    """If nobody has it: who has it keeps it in every turn."""
    even = {"a": Stake("ann", 1, 9), "b": Stake("bob", 1, 9)}
    assert {parts(3, even, turn)["a"] for turn in range(20)} == {1, 2}
    odd = {"a": Stake("ann", 2, 9), "b": Stake("bob", 1, 9)}
    assert {parts(3, odd, turn)["a"] for turn in range(20)} == {2}
