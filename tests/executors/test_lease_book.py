"""Leases of a harvester and a scripted Slurm: what takes too long to wait for on a real one.

The real one is in tests/system/test_harvest.py; what this one prints is as recorded in tests/batch.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcext import documents
from hpcext.batch import runner
from hpcext.batch.leasing import Idle, Other
from hpcext.core.errors import BatchError
from hpcext.core.facts import Ended, Fact, NodeJoined, NodeLost, Outcome
from hpcext.core.history.fragments import FragmentCounter, Fragments
from hpcext.core.values import Node
from hpcext.harvest import account as lease_account
from hpcext.harvest import calls, given_up, ground, lease_jobs
from hpcext.harvest.book import LeaseBook
from hpcext.harvest.lease import Lease, Loss, recorded
from hpcext.harvest.leases import Terms
from hpcext.launch import agent

NAME = "hpcext-h"


class ScriptedSlurm:
    """Answers commands; leases are pending until :meth:`begin`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = dict.fromkeys(("n1", "n2"), "idle")
        self.jobs: dict[int, list[str]] = {}
        self.planned = ""
        self.waits = ""
        self.others: list[tuple[str, ...]] = []
        self.calls: list[Sequence[str]] = []
        self.error = ""
        self.refuses = ""
        monkeypatch.setattr(runner, "run", self)

    def __call__(self, argv: Sequence[str], **_: Any) -> str:
        self.calls.append(argv)
        if self.error:
            raise BatchError(self.error)
        if argv[0] == "sinfo":
            rest = "gpu:2|8|100|up|infinite|gpu:(null):0(IDX:N/A)|1/7/0/8|10|\n"
            return "".join(f"{node}|{state}|{rest}" for node, state in self.nodes.items())
        if argv[0] == "scontrol":
            return f"{argv[-1]}\n"
        if argv[0] == "squeue":
            return self._queue(argv)
        if argv[0] == "scancel":
            if "--state=PENDING" not in argv:
                self.jobs[int(argv[-1])][0] = "CANCELLED"
            return ""
        if self.refuses:
            raise BatchError(self.refuses)
        number = len(self.jobs) + 1
        said = dict(word.removeprefix("--").partition("=")[::2] for word in argv)
        self.jobs[number] = ["PENDING", "", "N/A", "Priority", said["comment"]]
        return f"{number}\n"

    def _queue(self, argv: Sequence[str]) -> str:
        # What stands before the first column stands before each row.
        form = next(word for word in argv if word.startswith("--format="))
        before, _, columns = form.removeprefix("--format=").partition("%")
        if any(word.startswith("--partition") for word in argv):
            table = "".join("|".join(facts) + "\n" for facts in self.others)
        elif columns == "r|%j":
            table = self.waits
        elif "--start" in argv:
            table = self.planned
        else:
            table = "".join(f"{job}|{'|'.join(facts)}\n" for job, facts in self.jobs.items())
        return "".join(f"{before}{row}\n" for row in table.splitlines())

    def said(self, command: str) -> list[Sequence[str]]:
        return [argv for argv in self.calls if argv[0] == command]

    def begin(self, book: LeaseBook, job: int, node: str, ends_at: float = 2e9) -> None:
        """A lease runs, and its agent is there."""
        self.jobs[job][:4] = ["RUNNING", node, str(int(ends_at)), "None"]
        self.nodes[node] = "allocated"
        lease = next(each for each in book.leases.values() if each.job_id == job)
        document = {"schema": agent.AGENT, "devices": ["0", "1"]}
        documents.write_json(lease.directory / agent.AGENT_FILE, document)


class Harvester:
    """A book, and who uses it."""

    def __init__(self, path: Path, **terms: Any) -> None:
        self.path = path / "leases"
        self.facts: list[Fact] = []
        self.want = 9
        self.seen = Fragments()
        self.busy: set[int] = set()
        self.unheard: dict[str, Ended] = {}
        self.loss: Loss | None = None
        self.avoid: set[str] = set()
        self.homes: set[str] = set()
        self.bound = True
        self.terms = Terms(**{"partition": "p", "gpus": 2, "cycle_s": 0.01, **terms})
        self.loop = asyncio.new_event_loop()
        weakref.finalize(self, self.loop.close)
        self.now_s = 1e6
        self.book = self.another()

    def another(self) -> LeaseBook:
        return LeaseBook(
            directory=self.path, name=NAME, terms=self.terms, emit=self.facts.append,
            loop=self.loop, began_at=1000.0, want=lambda: self.want,
            seen=lambda: self.seen, busy=self.is_busy, hear=self.hear,
            loss=self.loss or (lambda _: ()), bound=self.bound and self.loss is not None,
            avoid=lambda: self.avoid, homes=lambda: self.homes, clock=lambda: self.now_s,
        )  # fmt: skip

    def hear(self, lease: Lease) -> None:
        """What ran on its node has ended, and has not been heard yet."""
        if (end := self.unheard.pop(lease.node, None)) is not None:
            self.facts.append(end)

    def is_busy(self, lease: Lease) -> bool:
        return lease.number in self.busy

    def cycle(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += 0.02
            self.loop.run_until_complete(self._cycle())

    async def _cycle(self) -> None:
        self.book.look()
        await self.book.asked()

    def took(self) -> list[Fact]:
        """What was emitted since the last time."""
        found, self.facts[:] = list(self.facts), []
        return found


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(monkeypatch)


@pytest.fixture
def one(tmp_path: Path, slurm: ScriptedSlurm) -> Harvester:
    return Harvester(tmp_path)


def test_the_second_look_at_a_hole_comes_soon(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    """It, and no third one: nodes that come and go are asked for at most half as often again."""
    one = Harvester(tmp_path, cycle_s=3600.0)
    one.cycle()
    assert len(slurm.said("sinfo")) == 1
    # A third of a cycle.
    one.now_s += 1200.0
    one.cycle()
    assert len(slurm.said("sinfo")) == 2
    assert len(slurm.said("sbatch")) == 2
    one.now_s += 1200.0
    slurm.nodes["n4"] = "idle"
    one.cycle()
    assert len(slurm.said("sinfo")) == 2
    one.now_s += 2400.0
    one.cycle()
    assert len(slurm.said("sinfo")) == 3


def test_a_lease_from_its_hole_to_its_end(one: Harvester, slurm: ScriptedSlurm) -> None:
    """Asked for at the second look; joins with its agent; is leaving, and gone."""
    one.cycle()
    assert not slurm.said("sbatch")
    one.cycle()
    assert len(slurm.said("sbatch")) == 2
    one.cycle(3)
    assert len(slurm.said("sbatch")) == 2
    assert one.took() == []
    slurm.begin(one.book, 1, "n1", 2000.0)
    one.cycle(2)
    joined = one.took()
    since_s = joined[0].node.since_s  # type: ignore[union-attr]
    node = Node("n1", 2, since_s=since_s, ends_s=970.0, planned=False)
    assert joined[-1] == NodeJoined(node)
    lease = one.book.on("n1")
    assert lease is not None
    assert documents.read_json(lease.directory / "lease.json", agent.LEASE)["leave_at"] == 1970.0
    (lease.directory / agent.LEAVING_FILE).touch()
    one.cycle()
    assert one.took() == [NodeJoined(replace(node, gpus=0))]
    slurm.jobs[1][0] = "COMPLETED"
    slurm.nodes["n1"] = "allocated"
    # Had the engine lost the node first, nothing would have been suspended there.
    one.unheard["n1"] = Ended("1", 7, Outcome.SUSPENDED)
    one.cycle()
    assert one.took() == [Ended("1", 7, Outcome.SUSPENDED), NodeLost("n1")]
    assert not lease.directory.exists()
    account = lease_account.load(one.path.parent)
    assert account.leases == 2
    assert 0 < account.held_node_s < account.offered_node_s


@pytest.mark.parametrize(
    ("why", "ends_in_s", "unneeded"),
    [("", None, False), (agent.UNUSED, None, True), (agent.AT_ITS_END, None, True),
     (agent.AT_ITS_END, 1200, False)],
)  # fmt: skip
def test_who_gives_a_node_back_says_whether_anybody_needs_it(
    one: Harvester, slurm: ScriptedSlurm, why: str, ends_in_s: int | None, unneeded: bool
) -> None:
    """Else the harvester would learn from its own leases how long holes last."""
    slurm.nodes = {"n1": "idle"}
    if ends_in_s:
        slurm.planned = f"5|{int(time.time()) + ends_in_s}|n1|wide\n"
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    one.cycle()
    joined = one.took()[-1]
    assert isinstance(joined, NodeJoined)
    assert joined.node.planned == (ends_in_s is not None)
    (next(iter(one.book.leases.values())).directory / agent.LEAVING_FILE).write_text(why)
    one.cycle()
    slurm.jobs[1][0] = "COMPLETED"
    one.cycle()
    assert one.took()[-1] == NodeLost("n1", unneeded)


@pytest.mark.parametrize("said", ["COMPLETED", "PREEMPTED"])
def test_a_node_that_was_given_up_is_left_to_the_job_that_waits_for_it(
    one: Harvester, slurm: ScriptedSlurm, said: str
) -> None:
    """It looks idle until the job's other nodes are free, too. One whose agent had not begun is
    given up as well, though that could not say so."""
    slurm.nodes = {"n1": "idle"}
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    lease = next(iter(one.book.leases.values()))
    if said == "COMPLETED":
        one.cycle()
        (lease.directory / agent.LEAVING_FILE).touch()
        one.cycle()
    else:
        (lease.directory / agent.AGENT_FILE).unlink()
    slurm.jobs[1][0], slurm.nodes["n1"] = said, "idle"
    slurm.waits = "Resources|wide\n"
    one.cycle(5)
    assert len(slurm.said("sbatch")) == 1
    # It has begun elsewhere.
    slurm.waits = f"BeginTime|later\nResources|{NAME}-20261124-120000-ab12\n"
    one.cycle(3)
    assert len(slurm.said("sbatch")) == 2


def test_a_node_that_others_do_not_take_is_leased_after_a_while(
    one: Harvester, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.nodes = {"n1": "idle"}
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    one.cycle()
    (next(iter(one.book.leases.values())).directory / agent.LEAVING_FILE).touch()
    one.cycle()
    slurm.jobs[1][0], slurm.nodes["n1"] = "COMPLETED", "idle"
    slurm.waits = "Resources|wide\n"
    one.cycle(3)
    assert len(slurm.said("sbatch")) == 1
    monkeypatch.setattr(given_up, "KEPT_S", 0.0)
    one.cycle(3)
    assert len(slurm.said("sbatch")) == 2


def test_a_lease_ends_when_nodes_have_left_so_far(one: Harvester, slurm: ScriptedSlurm) -> None:
    """Of which nobody has planned the end: 95 of 100 left before."""
    seen = FragmentCounter()
    seen.left(600.0, 100_000)
    one.seen = seen.fragments
    one.cycle(2)
    limits = [word for argv in slurm.said("sbatch") for word in argv if word.startswith("--time=")]
    minutes = [int(word.partition("=")[2]) for word in limits]
    assert len(minutes) == 2
    assert all(8 <= each <= 16 for each in minutes), minutes


def test_no_more_than_trainers_can_use(one: Harvester, slurm: ScriptedSlurm) -> None:
    one.want = 1
    one.cycle(4)
    assert len(slurm.said("sbatch")) == 1
    one.want = 0
    one.cycle(2)
    assert len(slurm.said("sbatch")) == 1


def test_a_node_that_a_trainer_waits_for_is_taken_first_and_beside_all_others(
    one: Harvester, slurm: ScriptedSlurm
) -> None:
    slurm.nodes = dict.fromkeys(("n1", "n2", "n3"), "idle")
    one.want, one.homes = 0, {"n2", "n9"}
    one.cycle(3)
    # That which is idle, and no other in place of the one that is not.
    assert [lease.node for lease in one.book.leases.values()] == ["n2"]
    slurm.begin(one.book, 1, "n2")
    one.want, one.homes = 1, set()
    one.cycle(3)
    assert [lease.node for lease in one.book.leases.values()] == ["n2"]


def test_one_that_does_not_begin_is_withdrawn(
    one: Harvester, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.cycle(2)
    monkeypatch.setattr(lease_jobs, "PATIENCE_S", 0.0)
    one.cycle()
    assert [argv[-1] for argv in slurm.said("scancel")] == ["1", "2"]
    one.cycle(3)
    assert not one.book.leases
    # Its node is not asked for again at once.
    assert len(slurm.said("sbatch")) == 2
    assert lease_account.load(one.path.parent).withdrawn == 2
    later = time.time() + ground.REFUSED_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    one.cycle(2)
    assert len(slurm.said("sbatch")) == 4


def test_a_hole_that_others_fill_says_nothing_of_the_next(
    one: Harvester, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.cycle(2)
    patience_s = lease_jobs.PATIENCE_S
    monkeypatch.setattr(lease_jobs, "PATIENCE_S", 0.0)
    slurm.nodes["n1"] = "allocated"
    one.cycle(2)
    assert not one.book.leases
    monkeypatch.setattr(lease_jobs, "PATIENCE_S", patience_s)
    slurm.nodes["n1"] = "idle"
    one.cycle(3)
    # The other one is idle all the time, and Slurm does not give it.
    assert [lease.node for lease in one.book.leases.values()] == ["n1"]


def test_what_slurm_does_not_take(
    one: Harvester, slurm: ScriptedSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.refuses = "sbatch failed: Invalid account"
    one.cycle(4)
    assert len(slurm.said("sbatch")) == 2
    assert caplog.text.count("Invalid account") == 2
    assert not one.book.leases
    assert not list(one.path.iterdir())


def test_slurm_gives_no_answer(
    one: Harvester, slurm: ScriptedSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, nothing is lost, and it goes on when Slurm does."""
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    one.cycle(2)
    one.took()
    slurm.error = "slurm_load_jobs error: Unable to contact slurm controller"
    one.cycle(4)
    assert one.took() == []
    assert caplog.text.count("Unable to contact") == 1
    slurm.error = ""
    one.cycle(2)
    assert "leases are managed again" in caplog.text
    assert one.book.on("n1") is not None


def test_the_next_manager_knows_all_of_them(one: Harvester, slurm: ScriptedSlurm) -> None:
    """One that runs, one whose job it never heard of, and one that is over."""
    slurm.nodes["n3"] = "idle"
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    one.cycle()
    mute = next(each for each in one.book.leases.values() if each.job_id == 2)
    file = mute.directory / "lease.json"
    documents.write_json(file, {**documents.read_json(file, agent.LEASE), "job_id": None})
    slurm.jobs[3][0] = "COMPLETED"
    one.took()
    assert recorded(one.path) == {"n1", "n2", "n3"}
    one.book = one.another()
    one.cycle()
    assert [type(fact) for fact in one.took()] == [NodeJoined]
    assert {each.job_id for each in one.book.leases.values()} == {1, 2}
    (one.path / "9").mkdir()
    (one.path / "9" / "lease.json").write_text("{")
    assert len(one.another().leases) == 2


def test_a_job_that_no_lease_stands_for_is_cancelled(one: Harvester, slurm: ScriptedSlurm) -> None:
    slurm.jobs[1] = ["RUNNING", "n1", "2000000000", "None", "77"]
    slurm.jobs[2] = ["COMPLETED", "n2", "2000000000", "None", "78"]
    one.cycle()
    assert [argv[-1] for argv in slurm.said("scancel")] == ["1"]


def test_a_lease_that_slurm_has_forgotten_is_over(
    one: Harvester, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    one.cycle(2)
    one.took()
    del slurm.jobs[1]
    one.cycle(2)
    assert one.took() == []
    monkeypatch.setattr(lease_jobs, "PATIENCE_S", 0.0)
    one.cycle(2)
    assert NodeLost("n1") in one.took()


def test_an_end_that_moves_is_reported(one: Harvester, slurm: ScriptedSlurm) -> None:
    one.cycle(2)
    slurm.begin(one.book, 1, "n1", 5000.0)
    one.cycle(2)
    one.took()
    slurm.jobs[1][2] = "5010"
    one.cycle()
    assert one.took() == []
    slurm.jobs[1][2] = "4000"
    one.cycle()
    (fact,) = one.took()
    assert isinstance(fact, NodeJoined)
    assert fact.node.ends_s == 2970.0


def test_the_time_limit_is_that_of_the_hole(one: Harvester, slurm: ScriptedSlurm) -> None:
    soon = int(time.time()) + 600
    slurm.planned = f"5|{soon}|n1|wide\n6|{soon - 500}|n2|soon\n7|{soon}|n2|{NAME}\n"
    one.cycle(2)
    (words,) = slurm.said("sbatch")
    assert {"--nodelist=n1", "--time=9", "--no-requeue", "--exclusive", "--gres=gpu:2"} <= set(
        words
    )
    one.cycle(2)
    assert lease_account.load(one.path.parent).short_node_s > 0


def test_an_unused_lease_is_not_taken_again_at_once(one: Harvester, slurm: ScriptedSlurm) -> None:
    one.want = 1
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    one.cycle(2)
    lease = one.book.on("n1")
    assert lease is not None
    (lease.directory / agent.LEAVING_FILE).write_text(agent.UNUSED)
    one.cycle()
    slurm.jobs[1][0], slurm.nodes["n1"] = "COMPLETED", "idle"
    slurm.nodes["n2"] = "allocated"
    one.cycle(4)
    assert len(slurm.said("sbatch")) == 1


def test_a_node_that_is_set_aside_is_given_back_and_not_taken_again(
    one: Harvester, slurm: ScriptedSlurm
) -> None:
    slurm.nodes["n3"] = "idle"
    one.avoid.add("n3")
    one.cycle(3)
    leases = {lease.node: lease for lease in one.book.leases.values()}
    assert set(leases) == {"n1", "n2"}
    for lease in leases.values():
        assert lease.job_id is not None
        slurm.begin(one.book, lease.job_id, lease.node)
    one.cycle(2)
    one.took()
    one.avoid.add("n1")
    one.cycle(2)
    assert (leases["n1"].released, leases["n2"].released) == (True, False)
    (left,) = one.took()
    assert isinstance(left, NodeJoined)
    assert (left.node.name, left.node.gpus) == ("n1", 0)
    slurm.jobs[leases["n1"].job_id or 0][0], slurm.nodes["n1"] = "COMPLETED", "idle"
    one.cycle(5)
    assert [lease.node for lease in one.book.leases.values()] == ["n2"]
    one.avoid.clear()
    one.cycle(5)
    assert {lease.node for lease in one.book.leases.values()} == {"n1", "n2", "n3"}


def test_the_end_releases_unused_leases(one: Harvester, slurm: ScriptedSlurm) -> None:
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    one.cycle(2)
    used = one.book.on("n1")
    assert used is not None
    one.busy = {used.number}
    one.book.close()
    released = {each.node for each in one.book.leases.values()
                if (each.directory / agent.RELEASE_FILE).exists()}  # fmt: skip
    assert released == {"n2"}
    # And what has not begun is taken back.
    assert [argv for argv in slurm.said("scancel") if f"--jobname={NAME}" in argv]


def test_slots_where_nodes_have_no_gpus(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    one = Harvester(tmp_path, gpus=3, logical=True)
    one.cycle(2)
    assert not [word for word in slurm.said("sbatch")[0] if word.startswith("--gres")]
    slurm.begin(one.book, 1, "n1")
    one.cycle(2)
    lease = one.book.on("n1")
    assert lease is not None
    assert lease.devices == ("0", "1", "2")


def test_a_lease_without_gpus_is_reported_once(
    one: Harvester, slurm: ScriptedSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    one.cycle(2)
    for job, node in ((1, "n1"), (2, "n2")):
        slurm.begin(one.book, job, node)
    for lease in one.book.leases.values():
        documents.write_json(
            lease.directory / agent.AGENT_FILE, {"schema": agent.AGENT, "devices": []}
        )
    one.cycle(2)
    assert one.took() == []
    assert caplog.text.count("has no GPUs: give --slots") == 1


def test_after_three_leases_without_gpus_no_more_are_asked_for(
    tmp_path: Path, slurm: ScriptedSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    one = Harvester(tmp_path)
    slurm.nodes = dict.fromkeys(("n1", "n2", "n3", "n4", "n5"), "idle")
    one.want = 3
    one.cycle(2)
    for lease in list(one.book.leases.values()):
        assert lease.job_id is not None
        slurm.begin(one.book, lease.job_id, lease.node)
        document = {"schema": agent.AGENT, "devices": []}
        documents.write_json(lease.directory / agent.AGENT_FILE, document)
    one.cycle(2)
    assert caplog.text.count("3 leases had no GPUs: no more are requested") == 1
    one.want = 9
    one.cycle(4)
    assert len(slurm.said("sbatch")) == 3


def test_a_full_disk_is_reported_and_loses_no_lease(
    one: Harvester,
    slurm: ScriptedSlurm,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one.cycle(2)
    slurm.begin(one.book, 1, "n1")
    with monkeypatch.context() as full:

        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(documents, "write_file", refuse)
        one.cycle(2)
        assert "No space left" in caplog.text
    one.cycle(2)
    lease = one.book.on("n1")
    assert lease is not None
    said = documents.read_json(lease.directory / "lease.json", agent.LEASE)
    assert said["leave_at"] == 2e9 - 30


def test_nodes_with_fewer_gpus_are_left_alone(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    one = Harvester(tmp_path, gpus=3)
    one.cycle(3)
    assert not slurm.said("sbatch")


@pytest.mark.parametrize("whole", [False, True])
def test_nodes_that_others_use_in_part_are_left_alone_if_asked(whole: bool) -> None:
    one = ground.Ground(Terms(partition="harvest", whole=whole), seen=Fragments)
    free = Idle("n1", True, False, 4, "", 8, 1000)
    one.see({"n1": free, "n2": free._replace(name="n2", shared=True)}, (), 0.0)
    assert one.idle == (["n1"] if whole else ["n1", "n2"])


def test_nodes_whose_leases_were_not_used_are_asked_for_again_together() -> None:
    """Seed 20 of the virtual room: what needs them all would never have them all at once."""
    one = ground.Ground(Terms(partition="harvest"), seen=Fragments)
    one.refuse("n1")
    first = one.refused_for(0.0)["n1"]
    time.sleep(0.01)
    one.refuse("n2")
    one.refuse("n3", passed_over=True)
    until = one.refused_for(0.0)
    assert until["n2"] == first
    assert until["n3"] > first


# Agents that are called, since ranks on their leases cannot reach each other.


class Called(Harvester):
    """A harvester with two leases whose agents answer calls, and a look a second."""

    def __init__(self, path: Path, slurm: ScriptedSlurm, *, answers: bool = True) -> None:
        super().__init__(path, cycle_s=1000.0)
        slurm.nodes = dict.fromkeys(("n1", "n2"), "idle")
        for _ in range(3):
            self.cycle()
            self.now_s += 1000
        for number, lease in enumerate(list(self.book.leases.values()), start=1):
            slurm.begin(self.book, number, lease.node)
            document = {"schema": agent.AGENT, "devices": ["0", "1"], "answers": answers}
            documents.write_json(lease.directory / agent.AGENT_FILE, document)
        self.cycle()
        self.facts.clear()

    def look(self, times: int) -> None:
        for _ in range(times):
            self.now_s += calls.LOOK_S
            self.loop.run_until_complete(self._cycle())

    def call(self) -> list[Path]:
        """Call both; the files of the calls."""
        self.book.hurry(self.book.leases)
        return sorted((self.path).glob(f"*/{agent.CALL_FILE}"))


def test_a_lease_whose_agent_does_not_answer_is_lost(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    one = Called(tmp_path, slurm)
    first, second = one.call()
    one.look(2)
    first.unlink()
    one.look(calls.LOOKS - 2)
    assert not one.facts
    one.look(1)
    (kept,) = one.book.leases.values()
    assert kept.directory == first.parent
    (lost,) = [fact for fact in one.facts if isinstance(fact, NodeLost)]
    assert {lost.name, kept.node} == {"n1", "n2"}
    assert not second.parent.exists()
    one.look(2 * calls.LOOKS)
    assert len(one.book.leases) == 1


@pytest.mark.parametrize("why", ["old", "leaves"])
def test_who_cannot_answer_is_not_lost(tmp_path: Path, slurm: ScriptedSlurm, why: str) -> None:
    """An agent of the release before knows of no calls; one that leaves does not look any more."""
    one = Called(tmp_path, slurm, answers=why != "old")
    found = one.call()
    assert len(found) == (0 if why == "old" else 2)
    for path in found:
        (path.parent / agent.LEAVING_FILE).touch()
    one.look(2 * calls.LOOKS)
    assert not [fact for fact in one.facts if isinstance(fact, NodeLost)]


def test_a_manager_that_hung_itself_does_not_blame_agents(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    """As if the file system had been away for an hour: nobody could answer."""
    one = Called(tmp_path, slurm)
    one.call()
    one.now_s += 3600
    one.look(1)
    assert not [fact for fact in one.facts if isinstance(fact, NodeLost)]


# A clock that is set back while a harvester runs.

BACK_S = 3600.0


class Clock:
    """The clock of the host, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_800_000_000.0
        monkeypatch.setattr(time, "time", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_lease_that_does_not_begin_is_withdrawn_as_soon(
    one: Harvester, slurm: ScriptedSlurm, clock: Clock
) -> None:
    one.cycle(2)
    clock.now_s -= BACK_S
    one.cycle()
    assert not slurm.said("scancel")
    clock.now_s += lease_jobs.PATIENCE_S + 1
    one.cycle()
    assert [argv[-1] for argv in slurm.said("scancel")] == ["1", "2"]
    one.cycle()
    clock.now_s -= BACK_S
    one.cycle()
    refused = one.book._ground.refused_for(clock.now_s)
    assert refused.keys() == {"n1", "n2"}
    assert max(refused.values()) <= ground.REFUSED_S
    clock.now_s += ground.REFUSED_S + 1
    one.cycle(2)
    assert len(slurm.said("sbatch")) == 4


def test_a_node_is_on_its_way_no_longer() -> None:
    one, now_s = given_up.GivenUp(), 1e9
    one.add("n1", now_s)
    ended = Other("h", "bob", "n2", True, now_s - 100.0, now_s - 1.0)
    idle = {"n1", "n2"}
    assert one.on_their_way(idle, [ended], now_s) == idle
    # When that of others ended cannot be known any more.
    assert one.on_their_way(idle, [ended], now_s - BACK_S) == {"n1"}
    assert one.on_their_way(idle, [ended], now_s - BACK_S + given_up.KEPT_S) == set()
