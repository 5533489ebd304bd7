"""A harvester that sees those of other users in the queue."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from test_lease_book import Harvester, ScriptedSlurm

from hpcext.batch.leasing import Other
from hpcext.executors import lease_account
from hpcext.executors.neighbours import Neighbours

THEIRS = "hpcext-theirs-20261124-120000-ab12"
NODES = ("n1", "n2", "n3", "n4")


def other(node: str, state: str = "RUNNING", user: str = "bob") -> tuple[str, ...]:
    """A lease of theirs, as squeue shows it."""
    has, asks = ("", node) if state == "PENDING" else (node, node)
    return (state, has, asks, user, THEIRS, "1795441398")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(monkeypatch)


class Beside(Harvester):
    """A book that may have leases on all four nodes, on which jobs run."""

    def __init__(self, path: Path, slurm: ScriptedSlurm, held: int) -> None:
        slurm.nodes = dict.fromkeys(NODES[:held], "idle")
        super().__init__(path)
        self.bound = False
        self.loss = lambda _: (1, 0)
        self.book = self.another()
        self.cycle(3)
        for lease in list(self.book.leases.values()):
            assert lease.job_id is not None
            slurm.begin(self.book, lease.job_id, lease.node)
        slurm.nodes = dict.fromkeys(NODES, "allocated")
        self.cycle(2)
        self.took()

    def released(self) -> set[str]:
        return {lease.node for lease in self.book.leases.values() if lease.released}

    def claims(self) -> set[str]:
        return {lease.node for lease in self.book.leases.values() if lease.claim}


def test_what_is_more_than_its_part_is_given_back_where_another_waits_for_it(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    """And at the second look only: two answers that do not fit together move no node."""
    one = Beside(tmp_path, slurm, 4)
    slurm.others = [other("n2", "PENDING"), other("n3", "PENDING")]
    one.cycle()
    assert one.released() == set()
    one.cycle()
    assert one.released() == {"n2", "n3"}
    one.cycle(4)
    assert one.released() == {"n2", "n3"}
    assert lease_account.load(one.path.parent).others == 0


def test_another_that_wants_less_than_its_part_gets_no_more(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    one = Beside(tmp_path, slurm, 3)
    slurm.others = [other("n4")]
    one.cycle(4)
    assert one.released() == set()
    assert one.claims() == set()
    assert lease_account.load(one.path.parent).others == 1


def test_nodes_of_who_has_too_many_are_asked_for_and_waited_for(
    tmp_path: Path, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Beside(tmp_path, slurm, 0)
    slurm.others = [other(node) for node in NODES]
    one.cycle()
    claimed = one.claims()
    assert len(claimed) == 2
    # They are no leases yet, and however long it takes nobody is at fault.
    monkeypatch.setattr("hpcext.executors.lease_book.PATIENCE_S", 0.0)
    one.cycle(3)
    assert one.claims() == claimed
    (first, _) = sorted(claimed)
    job = next(lease.job_id for lease in one.book.leases.values() if lease.node == first)
    assert job is not None
    slurm.begin(one.book, job, first)
    slurm.others = [other(node) for node in NODES if node != first]
    one.cycle(2)
    assert one.book.on(first) is not None
    assert one.claims() == claimed - {first}
    # The next manager knows what is what.
    one.book = one.another()
    one.cycle()
    assert one.claims() == claimed - {first}


def test_a_claim_is_taken_back_when_another_node_is_idle(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    one = Beside(tmp_path, slurm, 0)
    one.want = 1
    slurm.others = [other(node) for node in NODES[:3]]
    one.cycle()
    (claimed,) = one.claims()
    slurm.nodes["n4"] = "idle"
    one.cycle(3)
    waits = {lease.node for lease in one.book.leases.values() if not lease.withdrawn}
    assert waits == {"n4"}
    assert claimed not in waits


def test_a_node_that_another_was_faster_to_take_is_not_waited_for(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    slurm.nodes = {"n1": "idle"}
    one = Harvester(tmp_path)
    one.bound = False
    one.cycle(2)
    slurm.nodes["n1"] = "allocated"
    slurm.others = [other("n1")]
    one.cycle(3)
    assert not one.book.leases
    # It says nothing of the node: when that is idle it is asked for at once.
    slurm.others, slurm.nodes["n1"] = [], "idle"
    one.cycle(2)
    assert [lease.node for lease in one.book.leases.values()] == ["n1"]


def test_nodes_that_another_has_asked_for_are_left_to_it(
    tmp_path: Path, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcext.executors.lease_book.BEGINS", 1e9)
    slurm.nodes = dict.fromkeys(NODES, "idle")
    slurm.others = [other("n1", "PENDING"), other("n2", "CONFIGURING"), other("n3", "PENDING")]
    one = Harvester(tmp_path)
    one.cycle(3)
    assert {lease.node for lease in one.book.leases.values()} == {"n4"}


def test_a_share_is_one_of_what_all_harvesters_have(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    """Two with a half each leave nothing idle."""
    slurm.nodes = {"n1": "allocated", "n2": "allocated", "n3": "idle", "n4": "idle"}
    slurm.others = [other("n1"), other("n2")]
    one = Harvester(tmp_path, share=0.5)
    one.cycle(3)
    assert {lease.node for lease in one.book.leases.values()} == {"n3", "n4"}


def test_a_second_harvester_of_ones_own_does_not_count_as_another_user() -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    mine = "hpcext-mine-20261124-120000-cd34"
    beside = Neighbours("hpcext-h", 45.0)
    beside.see([Other(mine, me, f"n{number}", True) for number in range(3)], False, 0.0)
    assert beside.divide(0, 3, 3, 9) == 3
    beside.see([Other(mine, "bob", f"n{number}", True) for number in range(3)], False, 0.0)
    assert beside.divide(3, 0, 0, 9) == 3
    assert beside.to_give() == []
    assert beside.divide(0, 0, 0, 9) is not None
    assert len(beside.to_give()) == 3


def test_no_node_stays_idle_for_a_lease_that_does_not_begin() -> None:
    """A limit of the site may keep it waiting; who does begin leases is believed again."""
    beside = Neighbours("hpcext-h", 45.0)
    waits = [Other(THEIRS, "bob", "n1", False)]
    assert [_part(beside, waits, at_s) for at_s in (0.0, 44.0)] == [3, 3]
    assert beside.asked == {"n1"}
    assert [_part(beside, waits, at_s) for at_s in (45.0, 600.0)] == [None, None]
    assert beside.asked == frozenset()
    # Also while it asks for another one.
    assert _part(beside, [], 601.0) is None
    assert _part(beside, [Other(THEIRS, "bob", "n2", False)], 602.0) is None
    begun = [Other(THEIRS, "bob", "n2", True), Other(THEIRS, "bob", "n1", False)]
    assert _part(beside, begun, 603.0) == 2


def test_who_waits_while_nothing_is_idle_waits_for_good() -> None:
    beside = Neighbours("hpcext-h", 45.0)
    for at_s in (0.0, 100.0, 1000.0):
        beside.see([Other(THEIRS, "bob", "n1", False)], False, at_s)
        assert beside.divide(0, 4, 4, 9) == 3


def _part(beside: Neighbours, others: list[Other], at_s: float) -> int | None:
    beside.see(others, True, at_s)
    return beside.divide(4 - sum(each.begun for each in others) - 3, 3, 3, 9)
