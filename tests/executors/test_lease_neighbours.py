"""A harvester that sees those of other users in the queue."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from test_lease_book import Harvester, ScriptedSlurm

from hpcext import documents
from hpcext.batch.leasing import Other
from hpcext.batch.slurm.leasing import SlurmLeasing
from hpcext.core.facts import NodeJoined
from hpcext.harvest import account as lease_account
from hpcext.harvest.neighbours import STUCK_S, Neighbours
from hpcext.launch import agent

THEIRS = "hpcext-theirs-20261124-120000-ab12"
NODES = ("n1", "n2", "n3", "n4")


def other(node: str, state: str = "RUNNING", user: str = "bob") -> tuple[str, ...]:
    """A lease of theirs, as squeue shows it: it began just now."""
    has, asks, since = ("", node, "N/A") if state == "PENDING" else (node, node, _now())
    return (state, has, asks, user, _now(), since, "2000000000", THEIRS, "1795441398")


def _now() -> str:
    return str(int(time.time()))


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
    assert lease_account.load(one.path.parent).others == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_who_is_next_waits_in_the_queue_for_whatever_comes_free(
    tmp_path: Path, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """One lease of it, and no one that has more than its part, or all that it wants.

    None where that could begin on a node from which a lease was preempted for another job.
    """
    monkeypatch.setattr(SlurmLeasing, "keeps_nodes", keeps)
    one = Beside(tmp_path, slurm, 2)
    slurm.others = [other("n3"), other("n4")]
    one.cycle(3)
    # They want no more.
    assert len(one.claims()) == keeps
    # They do, and have less.
    slurm.others = [other("n3"), other("n4", "PENDING")]
    one.cycle(2)
    assert one.claims() == set()
    slurm.others = [other("n3"), other("n4")]
    one.want = 2
    one.cycle(2)
    assert one.claims() == set()


def test_who_is_next_does_not_wait_before_those_that_have_less_than_their_part() -> None:
    """It would take the node that it has given back for them."""
    beside = Neighbours("hpcext-h", 45.0)
    beside.see([Other(THEIRS, "bob", "", False)], True, 0.0)
    # Three of ours, and one that is idle, which is theirs.
    assert beside.divide(1, 3, 3, 9) == 3
    assert not beside.next
    beside.see([Other(THEIRS, "bob", "n4", True)], False, 0.0)
    assert beside.divide(0, 3, 3, 9) == 3
    assert beside.next


def test_it_waits_also_when_main_jobs_have_taken_all(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    """Then nobody else is in the queue, and yet the next node should not be nobody's."""
    one = Beside(tmp_path, slurm, 0)
    slurm.others = [other(node) for node in NODES]
    one.cycle()
    slurm.others = []
    one.cycle(3)
    assert len(one.claims()) == 1


@pytest.mark.parametrize("whole", [False, True])
def test_who_takes_whole_nodes_only_waits_for_a_whole_one(
    tmp_path: Path, slurm: ScriptedSlurm, whole: bool
) -> None:
    """Others use a part of every node: waiting for as much as is left would begin beside them."""
    slurm.nodes = dict.fromkeys(NODES, "mixed")
    one = Harvester(tmp_path, whole=whole, max_nodes=1)
    slurm.others = [other("n3")]
    one.cycle()
    # Their lease is over, and theirs was the last one: the next node is ours.
    slurm.others = []
    one.cycle(3)
    asked = slurm.said("sbatch")
    assert asked
    assert all(("--exclusive" in argv) == whole for argv in asked)
    if whole:
        assert not any(word.startswith("--nodelist") for argv in asked for word in argv)


def test_who_is_alone_waits_for_nothing(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    one = Beside(tmp_path, slurm, 2)
    one.cycle(3)
    assert len(one.book.leases) == 2


@pytest.mark.parametrize("keeps", [True, False])
def test_a_claim_does_not_begin_on_what_is_preempted_for_another_job(
    tmp_path: Path, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """Slurm would begin it there first, and preempt more for that job only much later."""
    monkeypatch.setattr(SlurmLeasing, "keeps_nodes", keeps)
    one = Beside(tmp_path, slurm, 0)
    slurm.others = [other(node) for node in NODES]
    one.cycle()
    assert len(one.claims()) == 2
    later = [word for argv in slurm.said("sbatch") for word in argv if word.startswith("--begin")]
    # If nobody takes it back, because its harvester was killed, it ends like any unused lease.
    assert later == [] if keeps else ["--begin=now+720"] * 2


def test_nodes_of_who_has_too_many_are_asked_for_and_waited_for(
    tmp_path: Path, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Beside(tmp_path, slurm, 0)
    slurm.others = [other(node) for node in NODES]
    one.cycle()
    claimed = one.claims()
    assert len(claimed) == 2
    # They are no leases yet, and however long it takes nobody is at fault.
    monkeypatch.setattr("hpcext.harvest.lease_jobs.PATIENCE_S", 0.0)
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


def test_a_claim_begins_wherever_a_node_comes_free(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    """Not on the node alone that somebody had when it was made: main jobs may take that one."""
    one = Beside(tmp_path, slurm, 0)
    one.want = 1
    slurm.others = [other(node) for node in NODES[:3]]
    one.cycle()
    (claimed,) = one.claims()
    (command,) = slurm.said("sbatch")
    assert not any(word.startswith("--nodelist") for word in command)
    assert one.took() == []
    slurm.begin(one.book, 1, "n4")
    # Its agent is there, and nobody has asked Slurm since; the next manager neither.
    (lease,) = one.book.leases.values()
    documents.write_json(
        lease.directory / agent.AGENT_FILE,
        {"schema": agent.AGENT, "devices": ["0", "1"], "node": "n4"},
    )
    one.book = one.another()
    for each in one.book.leases.values():
        one.book._look(each)
    assert one.took() == []
    one.cycle(2)
    joined = [fact.node.name for fact in one.took() if isinstance(fact, NodeJoined)]
    assert set(joined) == {"n4"} != {claimed}
    assert one.claims() == set()
    assert {lease.node for lease in one.another().leases.values()} == {"n4"}


def test_no_node_is_given_back_unless_another_waits_for_it(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    """Two that see the queue at different times may divide it differently."""
    one = Beside(tmp_path, slurm, 3)
    one.book._neighbours.divide = lambda *_: 1  # type: ignore[method-assign]
    slurm.others = [other("n4")]
    one.cycle(4)
    assert one.released() == set()
    slurm.others.append(other("n4", "PENDING"))
    one.cycle(2)
    assert len(one.released()) == 1


def test_a_lease_that_others_want_has_the_queue_asked_soon(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    """What is left is divided anew then."""
    one = Beside(tmp_path, slurm, 2)
    one.book._terms = replace(one.terms, cycle_s=3600.0)
    one.cycle(2)
    looks = len(slurm.said("sinfo"))
    lease = next(iter(one.book.leases.values()))
    (lease.directory / agent.LEAVING_FILE).touch()
    one.book.look()
    one.now_s += 1200.0
    one.cycle()
    assert len(slurm.said("sinfo")) == looks + 1
    one.now_s += 1200.0
    one.cycle()
    assert len(slurm.said("sinfo")) == looks + 1


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


class BeginsAtOnce(ScriptedSlurm):
    """It begins the first claim right after it has said for the second time that n4 is idle."""

    looks = 0

    def __call__(self, argv: Sequence[str], **more: Any) -> str:
        said = super().__call__(argv, **more)
        if argv[0] == "sinfo" and self.nodes.get("n4") == "idle":
            self.looks += 1
            if self.looks == 2:
                self.jobs[1][:3] = ["RUNNING", "n4", "2000000000"]
                self.nodes["n4"] = "allocated"
        return said


def test_a_claim_that_has_begun_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the node would be given back, only to be leased again; and it is not asked for, too."""
    slurm = BeginsAtOnce(monkeypatch)
    one = Beside(tmp_path, slurm, 0)
    one.want = 1
    slurm.others = [other(node) for node in NODES[:3]]
    one.cycle()
    slurm.nodes["n4"] = "idle"
    one.cycle(3)
    assert slurm.jobs[1][0] == "RUNNING"
    (lease,) = (each for each in one.book.leases.values() if not each.withdrawn)
    assert (lease.job_id, lease.node, lease.claim) == (1, "n4", False)
    assert len(slurm.jobs) == 1


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
    assert all(lease.claim for lease in one.book.leases.values())
    # It says nothing of the node: when that is idle it is asked for at once.
    slurm.others, slurm.nodes["n1"] = [], "idle"
    one.cycle(3)
    assert [(lease.node, lease.claim) for lease in one.book.leases.values()] == [("n1", False)]


def test_nodes_that_another_has_asked_for_are_left_to_it(
    tmp_path: Path, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcext.harvest.book.BEGINS", 1e9)
    slurm.nodes = dict.fromkeys(NODES, "idle")
    slurm.others = [other("n1", "PENDING"), other("n2", "CONFIGURING"), other("n3", "PENDING")]
    one = Harvester(tmp_path)
    one.cycle(3)
    assert {lease.node for lease in one.book.leases.values()} == {"n4"}


def test_a_node_that_another_has_given_up_is_left_to_the_job_that_waits_for_it(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    beside = Beside(tmp_path, slurm, 0)
    slurm.nodes["n1"] = "idle"
    ended = list(other("n1", "COMPLETED"))
    ended[6] = _now()
    slurm.others = [tuple(ended), other("n2")]
    slurm.waits = "Resources|wide\n"
    beside.cycle(4)
    assert {lease.node for lease in beside.book.leases.values() if not lease.claim} == set()
    slurm.waits = ""
    beside.cycle(3)
    assert {lease.node for lease in beside.book.leases.values() if not lease.claim} == {"n1"}


def test_nothing_waits_for_any_node_while_another_job_is_given_some(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    """Slurm would begin it on the first node that is free, before the job has all of its own."""
    beside = Beside(tmp_path, slurm, 1)
    slurm.others = [other("n2"), other("n3"), other("n4")]
    beside.cycle(3)
    assert beside.claims()
    slurm.waits = "Resources|wide\n"
    (mine,) = (each for each in beside.book.leases.values() if not each.claim)
    (mine.directory / agent.LEAVING_FILE).touch()
    beside.cycle(3)
    assert beside.claims() == set()
    slurm.waits = ""
    beside.cycle(3)
    assert beside.claims()


def test_a_share_is_one_of_what_all_harvesters_have(tmp_path: Path, slurm: ScriptedSlurm) -> None:
    """Two with a half each leave nothing idle."""
    slurm.nodes = {"n1": "allocated", "n2": "allocated", "n3": "idle", "n4": "idle"}
    slurm.others = [other("n1"), other("n2")]
    one = Harvester(tmp_path, share=0.5)
    one.cycle(3)
    assert {lease.node for lease in one.book.leases.values()} == {"n3", "n4"}


def test_a_second_harvester_of_ones_own_does_not_count_as_another_user() -> None:
    me = _me()
    mine = "hpcext-mine-20261124-120000-cd34"
    beside = Neighbours("hpcext-h", 45.0)
    beside.see([Other(mine, me, f"n{number}", True) for number in range(3)], False, 0.0)
    assert beside.divide(0, 3, 3, 9) == 3
    beside.see([Other(mine, "bob", f"n{number}", True) for number in range(3)], False, 0.0)
    assert beside.divide(3, 0, 0, 9) == 3
    assert beside.divide(0, 0, 0, 9) is not None
    assert beside.to_ask(["n4", "n2"]) == ["n2", "n4"]


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


def lease(
    user: str, node: str, since_s: float | None, until_s: float | None = None, name: str = ""
) -> Other:
    """One that was asked for when it began."""
    begun = since_s is not None
    return Other(name or f"{THEIRS}-{user}", user, node, begun, since_s, until_s, since_s)


def test_the_remainder_goes_to_the_user_who_had_less() -> None:
    """As the queue shows it, and as long as it does; what it forgets is remembered."""
    me = _me()
    mine = [lease(me, "n1", 0.0, name="hpcext-h"), lease(me, "n2", 0.0, name="hpcext-h")]
    theirs = [lease("bob", "n3", 0.0), lease("bob", "n4", 0.0, 45.0)]
    waits = lease("bob", "", None)
    beside = Neighbours("hpcext-h", 45.0)
    beside.see([*mine, *theirs, waits], False, 60.0)
    assert (beside.waiting, beside.asked) == (1, frozenset())
    assert beside.divide(0, 2, 2, 9) == 2
    beside.see([*mine, theirs[0], waits], False, 70.0)
    assert beside.divide(0, 2, 2, 9) == 1
    # Another that sees it for the first time comes to the same.
    other = Neighbours("hpcext-h", 45.0)
    other.see([*mine, *theirs, waits], False, 70.0)
    assert other.divide(0, 2, 2, 9) == 1
    # Five minutes later nobody thinks of it any more.
    mine = [each._replace(since_s=600.0) for each in mine[:1]]
    theirs = [each._replace(since_s=600.0, until_s=None) for each in theirs]
    beside.see([*mine, *theirs], False, 615.0)
    assert beside.divide(0, 1, 1, 9) == 1


def test_a_clock_that_is_set_back_leaves_nobody_out_for_longer() -> None:
    waits = lease("bob", "n1", None)
    beside = Neighbours("hpcext-h", 45.0)
    for now_s in (10_000.0, 5_000.0, 5_044.0):
        beside.see([waits], True, now_s)
        assert beside.waiting == 1
    beside.see([waits], True, 5_045.0)
    assert beside.waiting == 0
    for now_s in (1_000.0, 1_000.0 + STUCK_S - 1):
        beside.see([waits], False, now_s)
        assert beside.waiting == 0
    beside.see([waits], False, 1_000.0 + STUCK_S)
    assert beside.waiting == 1


def test_a_newcomer_has_no_claim_to_earlier_time() -> None:
    me = _me()
    mine = [lease(me, f"n{number}", 0.0, name="hpcext-h") for number in range(4)]
    beside = Neighbours("hpcext-h", 45.0)
    waits = lease("bob", "n1", None)._replace(asked_s=290.0)
    beside.see([*mine, waits, waits], False, 300.0)
    assert beside.divide(0, 4, 4, 9) == 2
    # Where others' leases do not say when they began it is as if nobody had been there before.
    unsaid = [each._replace(since_s=None, asked_s=None) for each in (*mine, waits, waits)]
    beside = Neighbours("hpcext-h", 45.0)
    beside.see(unsaid, False, 300.0)
    assert beside.divide(0, 4, 4, 9) == 2


def test_a_user_is_charged_with_what_harvesters_had_that_have_ended() -> None:
    """Another name makes nobody poorer."""
    me = _me()
    mine = [lease(me, "n1", 0.0, name="hpcext-h")]
    before = [lease("bob", "n3", 0.0, 200.0), lease("bob", "n4", 0.0, 200.0)]
    now = [lease("bob", node, 200.0, name=THEIRS) for node in ("n3", "n4")]
    beside = Neighbours("hpcext-h", 45.0)
    beside.see([*mine, *before, *now], False, 210.0)
    assert beside.divide(0, 1, 1, 9) == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ann", "bob", "cy"]),
            st.sampled_from(["", *NODES]),
            st.none() | st.floats(0.0, 290.0),
            st.none() | st.floats(0.0, 10.0),
        ),
        max_size=12,
    ),
    st.integers(0, 4),
)
def test_all_of_them_come_to_the_same_division(
    said: list[tuple[str, str, float | None, float | None]], idle: int
) -> None:
    """Without a word to each other, from the same queue."""
    shown = []
    for user, node, since_s, took_s in said:
        ended = since_s is not None and took_s is not None
        until_s = (since_s or 0.0) + (took_s or 0.0) if ended else None
        shown.append(lease(user, node, since_s, until_s, f"{THEIRS}-{user}"))
    there = [each for each in shown if each.until_s is None]
    nodes = {each.node for each in there if each.begun}
    # Each node has one lease at most.
    if len(nodes) < sum(each.begun for each in there):
        return
    found = {}
    for user in {each.user for each in there}:
        name = f"{THEIRS}-{user}"
        beside = Neighbours(name, 45.0)
        beside._user = user
        beside.see(shown, False, 300.0)
        own = [each for each in there if each.harvester == name]
        have = sum(each.begun for each in own)
        if beside.divide(idle, have, have, len(own)) is not None:
            found[user] = beside._parts
    assert all(each == next(iter(found.values())) for each in found.values())


def _me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _part(beside: Neighbours, others: list[Other], at_s: float) -> int | None:
    beside.see(others, True, at_s)
    return beside.divide(4 - sum(each.begun for each in others) - 3, 3, 3, 9)
