"""Leases that are given back since they are not worth their nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_lease_book import Harvester, ScriptedSlurm

from hpcext.core.facts import NodeJoined, NodeLost
from hpcext.harvest.lease import Lease, surplus
from hpcext.launch import agent

COSTS = {"n1": (1, 0), "n2": (0, 1), "n3": (1, 0)}


class Three(Harvester):
    """A book with three leases, on which jobs run."""

    def __init__(self, path: Path, slurm: ScriptedSlurm) -> None:
        slurm.nodes = dict.fromkeys(("n1", "n2", "n3"), "idle")
        super().__init__(path)
        self.costs: dict[str, tuple[int, ...] | None] = dict(COSTS)
        self.loss = lambda node: self.costs[node]
        self.book = self.another()
        self.cycle(3)
        for job in (1, 2, 3):
            lease = next(each for each in self.book.leases.values() if each.job_id == job)
            slurm.begin(self.book, job, lease.node)
        self.cycle(2)
        self.took()

    def released(self) -> set[str]:
        return {
            each.node
            for each in self.book.leases.values()
            if (each.directory / agent.RELEASE_FILE).exists()
        }

    def ends(self, slurm: ScriptedSlurm, node: str) -> None:
        """The agent of a lease has left, since nothing runs there."""
        lease = next(each for each in self.book.leases.values() if each.node == node)
        assert lease.job_id is not None
        slurm.jobs[lease.job_id][0], slurm.nodes[node] = "COMPLETED", "idle"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(monkeypatch)


@pytest.fixture
def three(tmp_path: Path, slurm: ScriptedSlurm) -> Three:
    return Three(tmp_path, slurm)


def test_what_costs_least_is_given_back_and_taken_again_when_it_is_worth_it(
    three: Three, slurm: ScriptedSlurm
) -> None:
    node = three.book.on("n2")
    three.want = 2
    three.cycle()
    (fact,) = three.took()
    assert isinstance(fact, NodeJoined)
    # It has nothing more to offer: so jobs leave it, in whatever way they can.
    assert (fact.node.name, fact.node.gpus) == ("n2", 0)
    assert three.released() == {"n2"}
    # Until it has ended, nothing else is given up, or taken.
    three.cycle(3)
    assert three.took() == []
    assert three.released() == {"n2"}
    assert node is not None
    three.ends(slurm, "n2")
    three.cycle()
    # Its hole did not end there: nobody had wanted it.
    assert three.took() == [NodeLost("n2", unneeded=True)]
    three.cycle(3)
    assert len(slurm.said("sbatch")) == 3
    three.want = 3
    three.cycle(2)
    assert len(slurm.said("sbatch")) == 4


def test_a_lease_that_cannot_be_given_up_now_is_kept(three: Three) -> None:
    three.costs = {"n1": None, "n2": None, "n3": (1, 0)}
    three.want = 1
    three.cycle(2)
    assert three.released() == {"n3"}
    three.costs["n1"] = (0, 0)
    three.cycle(2)
    assert three.released() == {"n1", "n3"}
    three.cycle(2)
    assert three.released() == {"n1", "n3"}


def test_without_a_rule_leases_end_only_when_nothing_has_run_on_them(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    three = Three(tmp_path, slurm)
    three.loss = None  # type: ignore[assignment]
    three.book = three.another()
    three.want = 1
    three.cycle(3)
    assert three.released() == set()


def test_a_lease_that_has_not_begun_goes_first(three: Three, slurm: ScriptedSlurm) -> None:
    slurm.nodes["n4"] = "idle"
    three.want = 4
    three.cycle(2)
    assert len(slurm.said("sbatch")) == 4
    three.want = 3
    three.cycle(2)
    assert slurm.jobs[4][0] == "CANCELLED"
    assert {each.node for each in three.book.leases.values()} == {"n1", "n2", "n3"}
    assert three.released() == set()


def test_a_node_that_is_wanted_meanwhile_was_needed(three: Three, slurm: ScriptedSlurm) -> None:
    three.want = 2
    three.cycle()
    lease = next(each for each in three.book.leases.values() if each.released)
    (lease.directory / agent.LEAVING_FILE).write_text("")
    three.took()
    three.ends(slurm, "n2")
    three.cycle()
    assert three.took() == [NodeLost("n2", unneeded=False)]


def test_the_next_manager_knows_that_it_is_given_back(three: Three) -> None:
    three.want = 2
    three.cycle()
    three.took()
    three.book = three.another()
    three.cycle(2)
    joined = [fact.node for fact in three.took() if isinstance(fact, NodeJoined)]
    last = {node.name: node.gpus for node in joined}
    assert last == {"n1": 2, "n2": 0, "n3": 2}
    assert three.released() == {"n2"}


def test_of_those_that_cost_as_much_the_one_that_ends_soonest(tmp_path: Path) -> None:
    def lease(number: int, ends_at: float, *, leaving: bool = False) -> Lease:
        found = Lease(number, f"n{number}", "", tmp_path, 0.0, 0.0, ends_at=ends_at, joined=True)
        found.leaving = leaving
        return found

    leases = [lease(1, 900.0), lease(2, 300.0), lease(3, 600.0), lease(4, 100.0, leaving=True)]
    costs = {"n1": (0, 1), "n2": (1, 0), "n3": (1, 0)}
    found = surplus(leases, 1, lambda node: costs[node])
    assert [each.number for each in found] == [1, 2]
    assert surplus(leases, 3, lambda node: costs[node]) == []


def test_a_full_disk_is_tried_again(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    three.want = 2
    with monkeypatch.context() as full:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(Path, "touch", refuse)
        three.cycle(2)
        assert three.released() == set()
        assert three.took() == []
    three.cycle()
    assert three.released() == {"n2"}
