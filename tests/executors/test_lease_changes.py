"""How an attempt changes its leases: what is asked of it and of agents, and when it is told.

Slurm is scripted, and what agents and launchers say is written by hand; real ones are in
tests/system/test_harvest_in_place.py.
"""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from test_lease_book import NAME, ScriptedSlurm

from hpcext import documents, protocol
from hpcext.core.facts import Ended, Fact, NodeLost, Noted, Outcome, Registered, Rescaled, Started
from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Action, Kind
from hpcext.harvest import parts
from hpcext.harvest.executor import LeaseExecutor
from hpcext.harvest.leases import Terms
from hpcext.jobfile import parse_jobs
from hpcext.rendezvous import REPAIRS, Rendezvous

JOB = '[[job]]\nname = "one"\ncommand = "true"\n'
PRELOADED = JOB.replace("true", "python train.py") + 'preload = "torch"\n'


class Stage:
    """An executor with leases on three nodes, and an attempt on some."""

    def __init__(self, path: Path, slurm: ScriptedSlurm, text: str = JOB) -> None:
        self.path, self.text = path, text
        self.slurm = slurm
        self.facts: list[Fact] = []
        self.loop = asyncio.new_event_loop()
        weakref.finalize(self, self.loop.close)
        slurm.nodes = dict.fromkeys(("n1", "n2", "n3"), "idle")
        (path / "jobs").mkdir()
        self.executor = self.another()
        self.cycle(3)
        for job in (1, 2, 3):
            lease = next(each for each in self.executor.book.leases.values() if each.job_id == job)
            slurm.begin(self.executor.book, job, lease.node)
        self.cycle(2)
        self.took()
        self.files = path / "jobs" / "1" / "attempt-0001"

    def another(self) -> LeaseExecutor:
        (spec,) = parse_jobs(self.text, "jobs.toml", self.path)
        return LeaseExecutor(
            directory=self.path / "jobs", spec=lambda _: spec, emit=self.facts.append,
            loop=self.loop, name=NAME, began_at=0.0, want=lambda: 3, seen=Fragments,
            loss=lambda _: (),
            terms=Terms(partition="p", gpus=1, cycle_s=0.01, max_nodes=3),
        )  # fmt: skip

    def cycle(self, times: int = 1) -> None:
        for _ in range(times):
            time.sleep(0.02)
            self.loop.run_until_complete(self._cycle())

    async def _cycle(self) -> None:
        self.executor.look()
        await self.executor.book.asked()

    def took(self) -> list[Fact]:
        found, self.facts[:] = list(self.facts), []
        return [fact for fact in found if isinstance(fact, Started | Rescaled | Ended | Registered)]

    def act(self, kind: Kind, *nodes: str, resize: int = 0, gpus: int = 1) -> None:
        alloc = dict.fromkeys(nodes, gpus)
        self.executor.perform(Action(kind, "1", 7, 1, alloc=alloc, resize=resize))

    def asked(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.files / "rescale.json").read_text())
        return document

    def runs(self) -> dict[str, list[int]]:
        """Node → as which nodes of the attempt agents were told to run it."""
        found: dict[str, list[int]] = {}
        for lease in self.executor.book.leases.values():
            for file in sorted(lease.directory.glob("run-7-*.json")):
                found.setdefault(lease.node, []).append(json.loads(file.read_text())["index"])
        return found

    def answer(self, resize: int, gpus: list[str], nodes: list[int], *, ok: bool = True) -> None:
        """What the launcher of the first node says."""
        said = {"attempt": 1, "op": 7, "resize": resize, "gpus": gpus, "nodes": nodes, "ok": ok}
        document = {"schema": protocol.RESCALED, **said, "why": "" if ok else "no", "stall_s": 0.5}
        documents.write_json(self.files / "rescaled.json", document)

    def ended(self, index: int, code: int = 0) -> None:
        """A supervisor says that nothing is left on its node."""
        own = protocol.node_directory(self.files, index)
        own.mkdir(exist_ok=True)
        document = {"schema": protocol.EXIT, "attempt": 1, "op": 7, "exit_code": code}
        documents.write_json(own / "exit.json", document)

    def lose(self, node: str) -> None:
        """The lease on a node is over, and nobody has said anything."""
        lease = self.executor.book.on(node)
        assert lease is not None
        assert lease.job_id is not None
        self.slurm.jobs[lease.job_id][0] = "NODE_FAIL"
        self.slurm.nodes[node] = "down"
        self.cycle(2)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, ScriptedSlurm(monkeypatch))


def test_an_agent_that_forks_nothing_is_heard_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, ScriptedSlurm(monkeypatch), PRELOADED)
    stage.act(Kind.START, "n1")
    stage.cycle()
    assert not [fact for fact in stage.facts if isinstance(fact, Noted)]
    document = {"schema": protocol.UNPRELOADED, "why": "torch\x1b: it is away"}
    documents.write_json(stage.files / protocol.UNPRELOADED_FILE, document)
    stage.cycle(2)
    (noted,) = [fact for fact in stage.facts if isinstance(fact, Noted)]
    assert noted.notes == ("preload has no effect: torch\\x1b: it is away",)


def test_a_node_comes_and_another_goes(stage: Stage) -> None:
    """Who leaves has ended before the engine hears that its node is free."""
    stage.act(Kind.START, "n1", "n2")
    assert stage.runs() == {"n1": [0], "n2": [1]}
    stage.act(Kind.RESCALE, "n1", "n3", resize=1)
    assert stage.runs() == {"n1": [0], "n2": [1], "n3": [2]}
    asked = stage.asked()
    assert (asked["had"], asked["gpus"]) == (["n1:0", "n2:0"], ["n1:0", "n3:0"])
    assert (asked["resize"], asked["nodes"]) == (1, [0, 2])
    stage.took()
    stage.answer(1, ["n1:0", "n3:0"], [0, 2])
    stage.cycle()
    assert stage.took() == []
    stage.ended(1)
    stage.cycle()
    assert stage.took() == [Rescaled("1", 7, 1, ("n1:0", "n3:0"), ok=True, stall_s=0.5)]
    # Back on the same lease: it is another node of the attempt.
    stage.act(Kind.RESCALE, "n1", "n3", "n2", resize=2)
    assert stage.runs() == {"n1": [0], "n2": [1, 3], "n3": [2]}
    assert stage.asked()["nodes"] == [0, 2, 3]


def test_a_change_that_is_impossible_in_place_is_refused(stage: Stage) -> None:
    stage.act(Kind.START, "n1", "n2")
    stage.took()
    for nodes, why in ((("n2", "n3"), "first node"), (("n1", "n9"), "lease ended")):
        stage.act(Kind.RESCALE, *nodes, resize=1)
        (fact,) = stage.took()
        assert isinstance(fact, Rescaled)
        assert (fact.ok, fact.gpus) == (False, ("n1:0", "n2:0"))
        assert why in fact.why
    stage.act(Kind.RESCALE, "n1", "n2", resize=1, gpus=2)
    (fact,) = stage.took()
    assert isinstance(fact, Rescaled)
    assert "only the number of nodes can change" in fact.why
    assert not (stage.files / "rescale.json").exists()


def test_a_node_that_is_lost_before_it_came_ends_the_change(stage: Stage) -> None:
    stage.act(Kind.START, "n1")
    stage.act(Kind.RESCALE, "n1", "n2", resize=1)
    stage.took()
    (stage.files / "ranks").mkdir()
    stage.lose("n2")
    launcher = Rendezvous(stage.files / "ranks", host="n1")
    assert "n2 was lost" in launcher.failure(1 * REPAIRS)
    # The training is none the worse for it.
    assert not (stage.files / "order.json").exists()
    stage.answer(1, ["n1:0"], [0], ok=False)
    stage.cycle()
    (fact,) = stage.took()
    assert isinstance(fact, Rescaled)
    assert (fact.ok, fact.gpus) == (False, ("n1:0",))


def test_a_change_waits_for_what_the_one_before_left_on_a_node(stage: Stage) -> None:
    stage.act(Kind.START, "n1")
    stage.act(Kind.RESCALE, "n1", "n2", resize=1)
    stage.act(Kind.RESCALE, "n1", "n2", resize=2)
    assert stage.asked()["resize"] == 1
    stage.answer(1, ["n1:0"], [0], ok=False)
    stage.cycle()
    assert stage.asked()["resize"] == 1
    stage.ended(1)
    stage.cycle()
    assert (stage.asked()["resize"], stage.asked()["nodes"]) == (2, [0, 2])
    assert stage.runs()["n2"] == [1, 2]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("code", [0, 1])
def test_nodes_of_a_training_end_one_after_the_other(stage: Stage, first: int, code: int) -> None:
    """One that is told to end when all is done would have failed; for one that failed the others
    would wait."""
    stage.act(Kind.START, "n1", "n2")
    stage.ended(first, code)
    stage.cycle(2)
    assert (stage.files / protocol.ORDER_FILE).exists() == bool(code)
    stage.ended(1 - first, code)
    stage.cycle()
    outcome = Outcome.FAILED if code else Outcome.COMPLETED
    assert [fact.outcome for fact in stage.took() if isinstance(fact, Ended)] == [outcome]


def test_a_training_that_loses_a_node_is_evicted(stage: Stage) -> None:
    """Its first node fails for it, which is no fault of its own."""
    stage.act(Kind.START, "n1", "n2")
    stage.took()
    stage.lose("n2")
    assert json.loads((stage.files / "order.json").read_text())["order"] == "end"
    stage.ended(0, code=1)
    stage.cycle()
    assert stage.took() == [Ended("1", 7, Outcome.EVICTED, 1, why="n2 was lost")]


def mends(stage: Stage) -> Rendezvous:
    """The ranks say that they can go on without some."""
    (stage.files / "ranks").mkdir()
    ranks = Rendezvous(stage.files / "ranks", host="n1")
    ranks.mends()
    return ranks


def test_a_training_goes_on_without_a_node_that_is_lost(stage: Stage) -> None:
    stage.act(Kind.START, "n1", "n2", "n3")
    mends(stage)
    stage.took()
    stage.lose("n2")
    assert not (stage.files / protocol.ORDER_FILE).exists()
    assert [fact for fact in stage.facts if isinstance(fact, NodeLost)] == [NodeLost("n2")]
    stage.act(Kind.RESCALE, "n1", "n3", resize=1)
    asked = stage.asked()
    assert (asked["had"], asked["gpus"]) == (["n1:0", "n2:0", "n3:0"], ["n1:0", "n3:0"])
    assert (asked["lost"], asked["nodes"]) == (["n2:0"], [0, 2])
    stage.answer(1, ["n1:0", "n3:0"], [0, 2])
    stage.cycle()
    assert stage.took() == [Rescaled("1", 7, 1, ("n1:0", "n3:0"), ok=True, stall_s=0.5)]
    # Of the next loss that one is no part.
    stage.lose("n3")
    stage.act(Kind.RESCALE, "n1", resize=2)
    assert stage.asked()["lost"] == ["n3:0"]


def test_another_manager_goes_on_with_the_loss_of_a_node(stage: Stage) -> None:
    """The one before was killed when it had heard of it, and had told nobody."""
    stage.act(Kind.START, "n1", "n2")
    mends(stage)
    stage.lose("n2")
    stage.executor.close()
    stage.executor = stage.another()
    stage.cycle(2)
    stage.act(Kind.START, "n1", "n2")
    stage.cycle()
    assert not (stage.files / protocol.ORDER_FILE).exists()
    stage.act(Kind.RESCALE, "n1", resize=1)
    assert stage.asked()["lost"] == ["n2:0"]


def test_its_end_is_that_on_the_nodes_that_it_has_then(stage: Stage) -> None:
    """One that is lost says nothing of it, and one that came may fail."""
    stage.act(Kind.START, "n1", "n2")
    mends(stage)
    stage.lose("n2")
    stage.act(Kind.RESCALE, "n1", "n3", resize=1)
    stage.answer(1, ["n1:0", "n3:0"], [0, 2])
    stage.cycle()
    stage.ended(2, 1)
    stage.ended(0)
    stage.cycle(2)
    (ended,) = [fact for fact in stage.took() if isinstance(fact, Ended)]
    assert (ended.outcome, ended.exit_code) == (Outcome.FAILED, 1)
    assert ended.why.startswith("on its node 2: ")


@pytest.mark.parametrize("why", ["suspended", "first"])
def test_without_a_node_that_is_lost_not_all_go_on(stage: Stage, why: str) -> None:
    """Its ranks cannot suspend without the others; and rank 0 has what ranks meet by."""
    stage.act(Kind.START, "n1", "n2")
    mends(stage)
    stage.lose("n1" if why == "first" else "n2")
    if why == "suspended":
        assert not (stage.files / protocol.ORDER_FILE).exists()
        stage.act(Kind.SUSPEND)
    assert json.loads((stage.files / protocol.ORDER_FILE).read_text())["order"] == "end"


def test_a_training_goes_on_without_ranks_that_have_failed_alone(stage: Stage) -> None:
    """The lease of their node is given up, once, and may be taken again."""
    stage.act(Kind.START, "n1", "n2")
    leases = stage.executor.book.leases.values()
    given = {lease.node: str(lease.job_id) for lease in leases}
    ranks = mends(stage)
    stage.ended(1, 1)
    stage.cycle(2)
    # The others may be about to end as well.
    assert not (stage.files / protocol.ORDER_FILE).exists()
    assert not stage.slurm.said("scancel")
    ranks.cut(0)
    stage.cycle(4)
    assert not (stage.files / protocol.ORDER_FILE).exists()
    (argv,) = stage.slurm.said("scancel")
    assert argv[-1] == given["n2"]
    assert NodeLost("n2") in stage.facts
    stage.act(Kind.RESCALE, "n1", resize=1)
    assert stage.asked()["lost"] == ["n2:0"]
    stage.answer(1, ["n1:0"], [0])
    stage.took()
    stage.ended(0)
    stage.cycle(2)
    (ended,) = [fact for fact in stage.took() if isinstance(fact, Ended)]
    assert ended.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("why", ["silent", "often", "first"])
def test_without_ranks_that_have_failed_not_all_go_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Others do not wait to do so, it is one failure too many, or rank 0 was among them."""
    stage.act(Kind.START, "n1", "n2")
    ranks = mends(stage)
    if why == "silent":
        monkeypatch.setattr(parts, "CUT_S", 0.0)
    else:
        ranks.cut(0)
    if why == "often":
        monkeypatch.setattr(parts, "FAILURES", 0)
    stage.ended(0 if why == "first" else 1, 1)
    stage.cycle(2)
    assert json.loads((stage.files / protocol.ORDER_FILE).read_text())["order"] == "end"
    assert not stage.slurm.said("scancel")


def test_ranks_that_are_cut_have_the_batch_system_asked_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.act(Kind.START, "n1", "n2")
    ranks = mends(stage)
    stage.executor.book.look()
    asked: list[float] = []
    monkeypatch.setattr(stage.executor.book, "hurry", lambda _: asked.append(1.0))
    stage.cycle(2)
    assert not asked
    ranks.cut(0)
    stage.cycle(3)
    assert asked == [1.0]


@pytest.mark.parametrize("gpus", [[], ["n9:0"], ["n2:0"], [3, None]], ids=str)
def test_an_answer_that_cannot_be_ends_with_its_attempt(stage: Stage, gpus: list[Any]) -> None:
    """What a job wrote is hostile: nobody else's lease is touched, and nothing waits for ever."""
    stage.act(Kind.START, "n1", "n2")
    stage.act(Kind.RESCALE, "n1", "n3", resize=1)
    stage.answer(1, gpus, [7] * len(gpus))
    stage.cycle()
    for index in (0, 1, 2):
        stage.ended(index)
    stage.cycle(2)
    assert isinstance(stage.took()[-1], Ended)
    assert not stage.executor._watches


def test_another_manager_knows_the_parts(stage: Stage) -> None:
    """In the middle of a change: those that train, and the one that is to."""
    stage.act(Kind.START, "n1", "n2")
    stage.act(Kind.RESCALE, "n1", "n3", resize=1)
    stage.answer(1, ["n1:0", "n3:0"], [0, 2])
    stage.ended(1)
    stage.cycle()
    stage.act(Kind.RESCALE, "n1", "n3", "n2", resize=2)
    stage.executor.close()
    stage.took()
    stage.executor = stage.another()
    stage.cycle(2)
    stage.act(Kind.START, "n1", "n2")
    (started,) = stage.took()[:1]
    assert isinstance(started, Started)
    assert set(started.gpus) == {"n1:0", "n2:0", "n3:0"}
    # What was asked is not asked again.
    before = (stage.files / "rescale.json").stat().st_ino
    stage.act(Kind.RESCALE, "n1", "n3", "n2", resize=2)
    assert (stage.files / "rescale.json").stat().st_ino == before
    stage.answer(2, ["n1:0", "n3:0", "n2:0"], [0, 2, 3])
    stage.cycle()
    assert [type(fact) for fact in stage.took()][-1] is Rescaled
    # It completes when all that it has now have ended well.
    for index in (0, 2, 3):
        stage.ended(index)
    stage.cycle()
    (fact,) = stage.took()
    assert isinstance(fact, Ended)
    assert fact.outcome is Outcome.COMPLETED
