"""Nodes on their way from one user to another: whose time that is."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_sites import Machine

from hpcext.broker import account
from hpcext.broker import rounding as roundings
from hpcext.broker.division import Share, Wish, divide
from hpcext.broker.entitlement import entitled
from hpcext.broker.handover import may_have
from hpcext.broker.rounding import LEAST_NODE_S, Due, Handovers, Rounding

USERS = "abcde"
LOTS = 100


class Hours:
    """Some nodes that users take and give back as real ones do, a look every quarter of a minute.

    Who has less than decided asks for nodes after two looks; who has more gives one back two looks
    after somebody waits for it; and in a minute main jobs take one node in thirteen from whoever
    has it.
    """

    def __init__(self, nodes: int, *, told: bool) -> None:
        self.shares = {f"u{number:02}": Share(1 + number % 4) for number in range(20)}
        self.nodes = self.idle = nodes
        self.told = told
        self.rounding = Rounding()
        self.held = dict.fromkeys(self.shares, 0)
        self.parts = dict.fromkeys(self.shares, 0)
        self.had = dict.fromkeys(self.shares, 0)
        self.short = dict.fromkeys(self.shares, 0)
        self.over = dict.fromkeys(self.shares, 0)
        self.chance = random.Random(1)

    def move(self) -> None:
        """Nodes change hands."""
        for user, has in self.held.items():
            lost = sum(self.chance.random() < 0.02 for _ in range(has))
            self._change(user, -lost)
        waits = {
            user: self.parts[user] - self.held[user] if short > 2 else 0
            for user, short in self.short.items()
        }
        for user in self.chance.sample(list(waits), len(waits)):
            more = max(0, min(waits[user], self.idle))
            self._change(user, more)
            waits[user] -= more
        may = may_have(self.parts, self.held, waits)
        for user, has in self.held.items():
            self.over[user] = self.over[user] + 1 if has > may[user] else 0
            if self.over[user] == 2:
                self._change(user, -1)
                self.over[user] = 0

    def _change(self, user: str, more: int) -> None:
        self.held[user] += more
        self.idle -= more

    def pass_by(self, hours: float) -> dict[str, float]:
        """Return by how much users had more of what all had than weights say."""
        due = entitled(self.nodes, dict.fromkeys(self.shares, LOTS), self.shares, {})
        for look in range(int(hours * 240)):
            self.move()
            self.rounding.pass_to(15.0 * look, self.held if self.told else None)
            wishes = {user: Wish(user, LOTS, has) for user, has in self.held.items()}
            behind = self.rounding.behind
            self.parts = divide(self.nodes, wishes, self.shares, {}, behind=behind)
            self.rounding.decided(due, self.parts)
            for user, has in self.held.items():
                self.had[user] += has
                self.short[user] = self.short[user] + 1 if has < self.parts[user] else 0
        had = sum(self.had.values())
        return {user: self.had[user] / had / (due[user] / self.nodes) - 1 for user in due}


@pytest.mark.parametrize("nodes", [23, 31])
def test_who_gives_back_late_and_takes_early_has_no_more(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of half a node comes and goes, and each time something of the next one's is left.

    As on a compressed day (benchmarks/shared_day.py), on which parts change more often.
    """
    for name, node_s in {"LEAST_NODE_S": 60.0, "DUE_NODE_S": 360.0, "MOST_NODE_S": 720.0}.items():
        monkeypatch.setattr(roundings, name, node_s)
    decided, had = (Hours(nodes, told=told).pass_by(6) for told in (False, True))
    assert max(map(abs, had.values())) < max(map(abs, decided.values())) / 2
    least = [user for number, user in enumerate(had) if number % 4 == 0]
    assert statistics.mean(decided[user] for user in least) > 0.08
    assert abs(statistics.mean(had[user] for user in least)) < 0.02


def test_a_node_counts_as_the_formers_until_it_is_the_latters() -> None:
    handovers, parts = Handovers(), {"a": 1, "b": 2, "c": 1}
    assert not any(handovers.pass_to(10.0, parts, parts).values())
    parts = {"a": 2, "b": 1, "c": 1}
    held = {"a": 1, "b": 2, "c": 1}
    # Nothing is said of it until then: a may not want the node after all.
    assert not any(handovers.pass_to(10.0, parts, held).values())
    found = handovers.pass_to(10.0, parts, {"a": 2, "b": 1, "c": 1})
    # Between two looks in the middle, as nobody knows when.
    assert dict(found) == pytest.approx({"a": -15.0, "b": 15.0})
    assert not any(handovers.pass_to(10.0, parts, {"a": 2, "b": 1, "c": 1}).values())


def test_who_takes_nothing_is_owed_nothing() -> None:
    """A wish alone takes nothing from anybody, however long others have the nodes."""
    handovers, parts, held = Handovers(), {"a": 8, "b": 1}, {"a": 1, "b": 8}
    handovers.pass_to(15.0, held, held)
    for _ in range(1000):
        assert not any(handovers.pass_to(15.0, parts, held).values())
    # Nor of what it was not to have any more when it took something.
    handovers.pass_to(15.0, {"a": 1, "b": 8}, held)
    parts = {"a": 2, "b": 7}
    assert not any(handovers.pass_to(15.0, parts, held).values())
    found = handovers.pass_to(15.0, parts, {"a": 2, "b": 7})
    assert dict(found) == pytest.approx({"a": -22.5, "b": 22.5})


def test_who_waits_for_fewer_is_owed_less() -> None:
    handovers, held = Handovers(), {"a": 0, "b": 5}
    handovers.pass_to(10.0, held, held)
    for _ in range(2):
        handovers.pass_to(10.0, {"a": 4, "b": 1}, held)
    handovers.pass_to(10.0, {"a": 2, "b": 3}, held)
    # Of 80 node-seconds half are forgotten, 20 have come since, and one of two nodes has come.
    found = handovers.pass_to(10.0, {"a": 2, "b": 3}, {"a": 1, "b": 4})
    assert dict(found) == pytest.approx({"a": -37.5, "b": 37.5})


def test_what_users_have_at_the_first_look_has_not_come_just_then() -> None:
    """A broker that begins finds all as the last one has left it."""
    handovers = Handovers()
    assert not any(handovers.pass_to(15.0, {"a": 2, "b": 1}, {"a": 1, "b": 9}).values())


def test_who_comes_back_is_owed_nothing_of_before() -> None:
    handovers, held = Handovers(), {"a": 0, "b": 2}
    for parts in ({"a": 0, "b": 2}, {"a": 1, "b": 1}, {"b": 2}):
        handovers.pass_to(10.0, parts, held)
    found = handovers.pass_to(10.0, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert dict(found) == pytest.approx({"a": -5.0, "b": 5.0})


@given(
    looks=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(USERS), st.integers(0, 4)),
            st.dictionaries(st.sampled_from(USERS), st.integers(0, 4)),
        ),
        max_size=12,
    )
)
def test_what_is_owed_is_what_others_had(
    looks: list[tuple[dict[str, int], dict[str, int]]],
) -> None:
    handovers = Handovers()
    for parts, held in looks:
        found = handovers.pass_to(10.0, parts, held)
        assert math.fsum(found.values()) == pytest.approx(0.0, abs=1e-6)
        assert set(found) <= set(USERS)


def test_what_the_last_broker_has_counted_goes_on() -> None:
    rounding = Rounding({"a": Due(LEAST_NODE_S, 7200.0), "b": Due(-1.0, 60.0)})
    assert rounding.behind == {"a": 0.5}
    rounding.pass_to(5000.0)
    rounding.decided({"a": 1.5, "b": 1.5}, {"a": 2, "b": 1})
    rounding.pass_to(5060.0)
    assert rounding.due == {"a": Due(LEAST_NODE_S - 30, 7290.0), "b": Due(29.0, 150.0)}


def test_a_broker_counts_what_users_hold_and_so_does_the_next_one(tmp_path: Path) -> None:
    machine, wants = Machine(tmp_path / "state", 2), {"a": 4, "b": 4}
    machine.grants(wants)
    machine.take("a", "n0000", "n0001")

    def pass_by(looks: int) -> float:
        for _ in range(looks):
            machine.look()
            assert {machine.ask(user, want).nodes for user, want in wants.items()} <= {1, 2}
        return machine.account.due["b"].node_s - machine.account.due["a"].node_s

    # Each is to have one: what a keeps, b has not missed until it has taken it.
    assert pass_by(10) == 0.0
    machine.take("b", "n0001")
    late = pass_by(1)
    assert late == pytest.approx(2 * 15.0 * 10.5, abs=30.0)
    account.save(machine.account, tmp_path)
    machine.account = account.go_on(tmp_path)
    machine.again()
    machine.settle(wants)
    assert pass_by(1) == pytest.approx(late)
