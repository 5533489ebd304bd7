"""A harvester whose broker says which nodes it may have: it takes, and waits for, no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from test_lease_book import ScriptedSlurm
from test_lease_leave import Asking, Broker
from test_lease_neighbours import NODES, other

from hpcext.harvest import account as lease_account
from hpcext.harvest import leave


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(monkeypatch)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def one(tmp_path: Path, slurm: ScriptedSlurm) -> Asking:
    return Asking(tmp_path, slurm)


def nodes(one: Asking, *, claims: bool = False) -> set[str]:
    return {
        each.node
        for each in one.book.leases.values()
        if each.claim == claims and not (each.released or each.withdrawn)
    }


def lists(said: Sequence[Sequence[str]]) -> list[list[str]]:
    """The nodes that each submission names."""
    return [[word for word in argv if word.startswith("--nodelist")] for argv in said]


def test_it_takes_the_nodes_that_are_named_and_no_others(
    one: Asking, slurm: ScriptedSlurm, broker: Broker
) -> None:
    broker.answer = leave.Answer(nodes=4, only=("n2", "n4"))
    one.cycle(4)
    assert nodes(one) == {"n2", "n4"}
    assert nodes(one, claims=True) == set()
    broker.answer = leave.Answer(nodes=4)
    one.cycle(2)
    assert nodes(one) == set(NODES)


def test_of_idle_nodes_that_are_not_its_own_it_says_what_the_broker_says(
    one: Asking, broker: Broker
) -> None:
    broker.answer = leave.Answer(nodes=1, of=4, less="the limit of the class a100 is 1", only=())
    one.cycle(3)
    assert nodes(one) == set()
    said = "the site's broker grants it 1 of 4 nodes now: the limit of the class a100 is 1"
    assert lease_account.load(one.path.parent).missing == said


def test_it_claims_nodes_by_name(one: Asking, slurm: ScriptedSlurm, broker: Broker) -> None:
    slurm.nodes = dict.fromkeys(NODES, "allocated")
    slurm.others = [other(node) for node in NODES]
    broker.answer = leave.Answer(nodes=3, claim=("n1", "n3"), only=("n3", "n4"))
    one.cycle(2)
    assert nodes(one, claims=True) == {"n3", "n4"}
    assert sorted(lists(slurm.said("sbatch"))) == [["--nodelist=n3"], ["--nodelist=n4"]]
    # Not the same names any more.
    broker.answer = leave.Answer(nodes=3, only=("n2", "n4"))
    one.cycle(2)
    assert nodes(one, claims=True) == {"n2", "n4"}


def test_what_it_waits_for_on_any_node_is_withdrawn(
    one: Asking, slurm: ScriptedSlurm, broker: Broker
) -> None:
    """It could begin where the harvester may have none."""
    slurm.nodes = dict.fromkeys(NODES, "allocated")
    slurm.others = [other(node) for node in NODES]
    broker.answer = leave.Answer(nodes=1, claim=("n3",))
    one.cycle(2)
    assert lists(slurm.said("sbatch")) == [[]]
    [claim] = one.book.leases.values()
    broker.answer = leave.Answer(nodes=1, only=("n3",))
    one.cycle(1)
    assert claim.withdrawn
    one.cycle(2)
    assert nodes(one, claims=True) == {"n3"}
    assert lists(slurm.said("sbatch"))[-1] == ["--nodelist=n3"]


def test_a_node_that_is_not_its_own_goes_to_whoever_waits(
    one: Asking, slurm: ScriptedSlurm, broker: Broker
) -> None:
    broker.answer = leave.Answer(nodes=4)
    one.cycle(3)
    one.begin_all(slurm)
    one.cycle(2)
    # As many as before, and others: the number says nothing.
    broker.answer = leave.Answer(nodes=4, only=("n1", "n3"))
    one.cycle(4)
    assert nodes(one) == set(NODES), "nobody waits for any"
    slurm.others = [other("n2", "PENDING")]
    one.cycle(2)
    assert nodes(one) == {"n1", "n3", "n4"}
    one.cycle(3)
    assert nodes(one) == {"n1", "n3", "n4"}


def test_what_has_not_begun_is_cancelled_when_it_is_not_named_any_more(
    one: Asking, slurm: ScriptedSlurm, broker: Broker
) -> None:
    broker.answer = leave.Answer(nodes=2, only=("n1", "n2"))
    one.cycle(3)
    jobs = {each.node: str(each.job_id) for each in one.book.leases.values()}
    broker.answer = leave.Answer(nodes=2, only=("n2", "n3"))
    one.cycle(2)
    assert nodes(one) >= {"n2", "n3"}
    assert "n1" not in nodes(one)
    assert any(jobs["n1"] in argv for argv in slurm.said("scancel"))
