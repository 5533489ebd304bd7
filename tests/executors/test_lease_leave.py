"""A harvester whose site has a broker: it takes what it may, and keeps what it has without one."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from test_lease_book import NAME, Harvester, ScriptedSlurm
from test_lease_neighbours import NODES, other

from hpcext import jobfields
from hpcext.batch.slurm.leasing import SlurmLeasing
from hpcext.broker.desk import Desk
from hpcext.broker.identity import Peer
from hpcext.core.values import Job
from hpcext.harvest import account as lease_account
from hpcext.harvest import leave, ways
from hpcext.harvest.book import LeaseBook
from hpcext.harvest.leases import Terms
from hpcext.harvest.site import PATIENCE_S, SiteLeave

HERE = "/run/hpcext-broker/socket"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(monkeypatch)


class Broker:
    """A broker that says what a test wants it to, or is away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: leave.Answer | None = leave.Answer()
        self.heard: list[leave.Ask] = []
        monkeypatch.setattr(ways, "ask", self._ask)

    def _ask(self, way: ways.Way, message: leave.Ask, answer_s: float = 5.0) -> leave.Answer:
        self.heard.append(message)
        if self.answer is None:
            raise leave.BrokerError("does not answer (Connection refused)", where=str(way))
        return self.answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


JOBS = (
    Job("1", "secret", 1, (2,), 2, nodes=(1, 3), weight=2.0),
    Job("2", "private", 2, tuple(range(1, 300)), 4, priority=1.0),
)


class Asking(Harvester):
    """A book with a broker, on four idle nodes."""

    def __init__(self, path: Path, slurm: ScriptedSlurm, **terms: Any) -> None:
        slurm.nodes = dict.fromkeys(NODES, "idle")
        super().__init__(path, broker=HERE, **terms)
        self.bound = False

    def another(self) -> LeaseBook:
        book = super().another()
        book._balance._site = SiteLeave(NAME, self.terms, lambda: JOBS)
        return book

    def leased(self) -> int:
        return sum(not each.claim and not each.released for each in self.book.leases.values())

    def begin_all(self, slurm: ScriptedSlurm) -> None:
        for lease in list(self.book.leases.values()):
            assert lease.job_id is not None
            slurm.begin(self.book, lease.job_id, lease.node)

    @property
    def said(self) -> str:
        return lease_account.load(self.path.parent).broker


def test_it_takes_as_many_as_it_may(tmp_path: Path, slurm: ScriptedSlurm, broker: Broker) -> None:
    one = Asking(tmp_path, slurm)
    broker.answer = leave.Answer(nodes=3)
    one.cycle(4)
    assert one.leased() == 3
    assert one.said == "the site's broker grants it 3 nodes now"
    broker.answer = leave.Answer(nodes=4)
    one.cycle(2)
    assert one.leased() == 4


def test_of_none_it_says_who_grants_it_none(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker
) -> None:
    one = Asking(tmp_path, slurm)
    one.cycle(4)
    assert one.leased() == 0
    missing = lease_account.load(one.path.parent).missing
    assert missing == "the site's broker grants it 0 nodes now"


def test_it_says_its_part_of_how_many_and_why_it_is_no_more(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker
) -> None:
    one = Asking(tmp_path, slurm)
    broker.answer = leave.Answer(nodes=1, of=4, less="other users have the rest")
    one.cycle(2)
    part = "the site's broker grants it 1 of 4 nodes now"
    assert one.said == f"{part}: other users have the rest"
    broker.answer = leave.Answer(nodes=1, of=4, less="\x1b[2J" + "x" * 10_000)
    one.cycle()
    assert "\x1b" not in one.said
    assert len(one.said) < 300


def test_the_broker_hears_sizes_and_no_names(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker
) -> None:
    one = Asking(tmp_path, slurm, max_nodes=3)
    one.cycle()
    ask = broker.heard[-1]
    assert ask == leave.Ask(
        NAME, "p", 2, 3,
        (
            leave.Trainer(1, (2,), (1, 3), 2.0),
            leave.Trainer(2, (*range(1, 128), 299), None, 1.0, 1.0),
        ),
    )  # fmt: skip


def test_whatever_a_job_file_may_say_a_broker_takes() -> None:
    """One trainer costs its harvester no answer."""
    factors = (jobfields.MAX_FACTOR, 1e-9)
    nodes = ((1, jobfields.MAX_NODES), (jobfields.MAX_NODES, jobfields.MAX_NODES), None)
    jobs = [
        Job("1", "x", number, tuple(range(1, jobfields.MAX_GPUS + 1)), 1, nodes=span,
            weight=factor, priority=sign * factor)
        for number, (factor, sign, span) in enumerate(itertools.product(factors, (1, -1), nodes))
    ]  # fmt: skip
    terms = Terms(partition="p", gpus=jobfields.MAX_GPUS)
    ask = SiteLeave("hpcext-x-20261124-120000-ab12", terms, lambda: jobs).message(10**9)
    heard: list[Any] = []

    def hear(_peer: Peer, message: Any) -> leave.Answer:
        heard.append(message)
        return leave.Answer()

    assert Desk(hear).answer(Peer(1, "ann"), msgspec.json.encode(ask)) == b"{}\n"
    assert heard == [ask]
    # Those that need more nodes than a broker divides are not for it.
    assert [each.number for each in ask.trainers] == [0, 2, 3, 5, 6, 8, 9, 11]
    assert {each.priority for each in ask.trainers} == {1e6, -1e6, 1e-9, -1e-9}


def test_what_is_more_than_it_may_have_is_given_back_to_whoever_waits(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker
) -> None:
    one = Asking(tmp_path, slurm)
    broker.answer = leave.Answer(nodes=4)
    one.cycle(3)
    one.begin_all(slurm)
    one.cycle(2)
    broker.answer = leave.Answer(nodes=2)
    one.cycle(4)
    assert one.leased() == 4, "nobody waits for any"
    slurm.others = [other("n2", "PENDING"), other("n3", "PENDING")]
    one.cycle(2)
    released = {lease.node for lease in one.book.leases.values() if lease.released}
    assert released == {"n2", "n3"}


def test_it_claims_the_nodes_that_the_broker_names(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmLeasing, "keeps_nodes", True)
    one = Asking(tmp_path, slurm)
    slurm.nodes = dict.fromkeys(NODES, "allocated")
    slurm.others = [other(node) for node in NODES]
    broker.answer = leave.Answer(nodes=1, claim=("n3",))
    one.cycle(2)
    assert [lease.node for lease in one.book.leases.values() if lease.claim] == ["n3"]
    broker.answer = leave.Answer(nodes=0, next=True)
    one.cycle(2)
    assert len([lease for lease in one.book.leases.values() if not lease.withdrawn]) == 1


@pytest.mark.parametrize(
    "away",
    [
        (None, "is away"),
        (leave.Answer(keep="it has begun a moment ago"), "decides nothing now"),
        (leave.Answer(refused="too many calls"), "refuses this harvester"),
    ],
)
def test_without_an_answer_it_keeps_what_it_has_and_then_looks_at_the_queue(
    tmp_path: Path,
    slurm: ScriptedSlurm,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    away: tuple[leave.Answer | None, str],
) -> None:
    caplog.set_level(logging.INFO)
    one = Asking(tmp_path, slurm)
    broker.answer = leave.Answer(nodes=2)
    one.cycle(3)
    one.begin_all(slurm)
    one.cycle(2)
    broker.answer, what = away
    one.cycle(4)
    assert one.leased() == 2
    assert one.said == f"the site's broker {what}, so no node is taken for 300 s"
    assert caplog.text.count(f"{what}, so") == 1
    one.now_s += PATIENCE_S
    one.cycle(3)
    assert one.leased() == 4
    assert one.said == ""
    assert caplog.text.count("divided by the queue") == 1
    broker.answer = leave.Answer(nodes=4)
    one.cycle(2)
    assert one.said == "the site's broker grants it 4 nodes now"
    assert one.leased() == 4


def test_the_first_node_waits_for_a_broker_that_is_away(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker
) -> None:
    """One that nobody answers for is a reason to wait: others have its leave."""
    broker.answer = None
    one = Asking(tmp_path, slurm)
    one.cycle(4)
    assert one.leased() == 0
    assert "is away" in lease_account.load(one.path.parent).missing


def test_another_partition_is_harvested_as_without_a_broker(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker
) -> None:
    broker.answer = leave.Answer(elsewhere=True)
    one = Asking(tmp_path, slurm)
    one.cycle(3)
    assert one.leased() == 4


def test_where_there_is_no_broker_nobody_is_asked(
    tmp_path: Path, slurm: ScriptedSlurm, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leave, "SOCKET", tmp_path / "socket")
    for setting in ("auto", "none"):
        site = SiteLeave(NAME, replace(Terms(partition="p"), broker=setting), lambda: ())
        assert site.ask(site.message(3), 0.0) is None
    assert broker.heard == []
    # There is one, it goes away, and with it its socket.
    (tmp_path / "socket").touch()
    site = SiteLeave(NAME, replace(Terms(partition="p"), broker="auto"), lambda: ())
    broker.answer = leave.Answer(nodes=3)
    found = site.ask(site.message(3), 0.0)
    assert found is not None
    assert found.nodes == 3
    (tmp_path / "socket").unlink()
    broker.answer = None
    found = site.ask(site.message(3), 1.0)
    assert found is not None
    assert found.nodes is None
    assert site.ask(site.message(3), PATIENCE_S) is None
