"""A site whose nodes have classes: what harvesters are told, and who is seen to take more."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from made_sites import PARTITION, Machine, harvester_of
from msgspec import json
from msgspec.structs import replace

from hpcext.batch.leasing import Other
from hpcext.broker.by_class import Layout
from hpcext.broker.classes import NodeClass
from hpcext.broker.division import Share
from hpcext.broker.handover import excess, over_limits, told
from hpcext.broker.identity import Peer
from hpcext.broker.settings import Settings
from hpcext.broker.simulated.policy import ByWeights, standing_of
from hpcext.cli.broker import main
from hpcext.core.values import Cause, Job, Node, Snapshot
from hpcext.harvest import ways
from hpcext.harvest.leave import Answer
from hpcext.policies import find_policy
from hpcext.sim.workloads.trainers import Trainer, simulated
from hpcext.sim.workloads.workload import of_user, user_of

LOTS = 40
ROOT = Peer(0, "root")
BIG = tuple(f"n{each:04d}" for each in range(4))
CLASSES = (NodeClass("big", frozenset(BIG)),)


def limits(**users: int) -> dict[str, Share]:
    return {user: Share(limits={"big": limit}) for user, limit in users.items()}


def obey(machine: Machine, wants: Mapping[str, int]) -> list[Other]:
    """Users ask, take and give back what they are told; return what they wait for."""
    answers = {user: machine.ask(user, want) for user, want in wants.items()}
    waits = []
    for user, answer in answers.items():
        if answer.only is None:
            continue
        own = [node for node, (who, _) in machine.held.items() if who == user]
        for node in own:
            if node not in answer.only or len(own) > wants[user]:
                del machine.held[node]
                own = [each for each in own if each != node]
        lacks = max(0, min(answer.nodes, wants[user]) - len(own))
        free = [node for node in answer.only if node not in machine.held]
        machine.take(user, *free[:lacks])
        if lacks > len(free):
            others = [node for node in answer.only if machine.held.get(node, ("",))[0] != user]
            waits += [Other(harvester_of(user), user, node, False) for node in others[:1]]
    return waits


def of_big(answer: Answer) -> set[str]:
    assert answer.only is not None
    return set(answer.only) & set(BIG)


def test_nobody_is_told_more_nodes_of_a_class_than_his_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 12, classes=CLASSES, users=limits(ann=1, bob=0))
    found = machine.settle({"ann": LOTS, "bob": LOTS, "cid": LOTS})
    assert {user: len(of_big(answer)) for user, answer in found.items()} == {
        "ann": 1,
        "bob": 0,
        "cid": 3,
    }
    # The others are divided equally, and each node is named to one.
    assert {user: answer.nodes for user, answer in found.items()} == {"ann": 4, "bob": 3, "cid": 5}
    named = Counter(node for answer in found.values() for node in answer.only or ())
    assert named == dict.fromkeys(machine.nodes, 1)
    assert all(len(answer.only or ()) == answer.nodes for answer in found.values())


def test_without_classes_nothing_is_said_of_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 4)
    answer = machine.settle({"ann": LOTS})["ann"]
    assert answer.only is None
    assert b"only" not in json.encode(answer)
    assert "classes" not in machine.site.status(ROOT, machine.now_s)


def test_classes_come_and_go_with_the_settings(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    machine.settle({"ann": LOTS})
    machine.site.reload(machine.settings._replace(classes=CLASSES, users=limits(ann=0)))
    # Until it has decided, it says what it has decided before.
    assert machine.ask("ann", LOTS).only is None
    assert of_big(machine.settle({"ann": LOTS})["ann"]) == set()
    machine.site.reload(machine.settings)
    assert machine.settle({"ann": LOTS})["ann"].only is None


def test_after_a_restart_the_same_nodes_are_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 12, classes=CLASSES, users=limits(ann=1))
    wants = {"ann": LOTS, "bob": 2}
    before = machine.settle(wants)
    machine.take("ann", *(before["ann"].only or ()))
    machine.again()
    after = machine.settle(wants)
    assert {user: answer.only for user, answer in after.items()} == {
        user: answer.only for user, answer in before.items()
    }


def test_why_there_are_no_more(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 6, classes=CLASSES, users=limits(ann=1))
    found = machine.settle({"ann": LOTS})
    assert found["ann"].less == "the limit of the class big is 1"
    assert len(found["ann"].only or ()) == 3
    found = machine.settle({"ann": LOTS, "bob": LOTS})
    assert found["ann"].less == (
        "the limit of the class big is 1, and other users have the rest, by their weights"
    )
    assert found["bob"].less == "other users have the rest, by their weights"
    # A class of which there is nothing else limits nobody.
    machine = Machine(tmp_path / "c", 1, classes=CLASSES, users=limits(ann=1))
    assert machine.settle({"ann": LOTS})["ann"].less == "there are no more"


def test_whoever_waits_by_name_gets_the_node_from_who_has_it_beyond(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 6, classes=CLASSES, users=limits(ann=4, bob=4))
    machine.settle({"ann": LOTS})
    machine.take("ann", *machine.nodes)
    found = machine.settle({"ann": LOTS, "bob": LOTS})
    # Ann keeps all that she has while nobody waits; Bob is told which nodes are to be his.
    assert (found["ann"].nodes, set(found["ann"].only or ())) == (6, set(machine.nodes))
    assert (found["bob"].nodes, len(of_big(found["bob"]))) == (3, 2)
    asked = sorted(of_big(found["bob"]))[1]
    machine.look(waits=[Other(harvester_of("bob"), "bob", asked, False)])
    assert set(machine.ask("ann", LOTS).only or ()) == set(machine.nodes) - {asked}
    assert machine.ask("ann", LOTS).nodes == 5
    assert asked in machine.ask("bob", LOTS).claim
    machine.take("bob", asked)
    machine.look()
    assert set(machine.ask("ann", LOTS).only or ()) == set(machine.nodes) - {asked}


def test_a_limit_that_is_lowered_takes_no_node_by_words_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 6, classes=CLASSES, users=limits(ann=4))
    machine.settle({"ann": LOTS})
    machine.take("ann", *machine.nodes)
    machine.site.reload(machine.settings._replace(users=limits(ann=1)))
    answer = machine.settle({"ann": LOTS})["ann"]
    assert (answer.nodes, len(of_big(answer))) == (6, 4)
    # What she has beyond her limit is counted.
    before = machine.account.of("ann").without_node_s
    machine.look()
    assert machine.account.of("ann").without_node_s - before == 3 * machine.settings.cycle_s


def test_a_harvester_that_takes_other_nodes_is_seen(tmp_path: Path) -> None:
    """As one of release 0.2.0, which reads the number and not the names."""
    machine = Machine(tmp_path / "b", 8, classes=CLASSES, users=limits(ann=1))
    answer = machine.settle({"ann": 4})["ann"]
    assert (answer.nodes, len(of_big(answer))) == (4, 1)
    machine.take("ann", *BIG)
    machine.look()
    before = machine.account.of("ann").without_node_s
    machine.look()
    assert machine.account.of("ann").without_node_s - before == 3 * machine.settings.cycle_s
    # Another user's harvester is told that it may have those nodes.
    found = machine.settle({"ann": 4, "bob": LOTS})
    assert len(of_big(found["bob"])) == 3


def test_nodes_without_leave_count_in_their_class(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8, classes=CLASSES, users=limits(ann=2))
    machine.held[BIG[0]] = ("ann", "hpcext-other-20261124-120000-ab12")
    found = machine.settle({"ann": LOTS})
    assert len(of_big(found["ann"])) == 1


def test_only_idle_nodes_that_one_may_have_make_a_user_stuck(tmp_path: Path) -> None:
    """Nodes of a class that he may not have are idle for hours, and he waits for others."""
    machine = Machine(tmp_path / "b", 6, classes=CLASSES, users=limits(ann=0, bob=0))
    wants = {"ann": LOTS, "bob": LOTS}
    machine.settle({"ann": LOTS})
    machine.take("ann", *machine.nodes[4:])
    assert machine.settle(wants)["bob"].nodes == 1
    for _ in range(60):
        machine.look()
        answers = {user: machine.ask(user, LOTS) for user in wants}
    assert answers["bob"].nodes == 1


def test_whoever_is_stuck_keeps_what_he_has_of_each_class(tmp_path: Path) -> None:
    """A limit of the batch system keeps him from the first class, for example."""
    machine = Machine(tmp_path / "b", 6, classes=CLASSES)
    machine.settle({"ann": 2})
    machine.take("ann", *machine.nodes[4:])
    assert of_big(machine.settle({"ann": 4})["ann"]) == set(BIG[:4])
    for _ in range(12):
        machine.look()
        answer = machine.ask("ann", 4)
    assert set(answer.only or ()) == set(machine.nodes[4:])


def test_over_hours_users_have_what_their_weights_say(tmp_path: Path) -> None:
    """In two classes of three nodes the same user would have two of each for ever."""
    machine = Machine(
        tmp_path / "b", 6, classes=(NodeClass("big", frozenset(BIG[:3])),), cycle_s=60.0
    )
    wants, had = dict.fromkeys(("ann", "bob"), LOTS), Counter[str]()
    for _ in range(600):
        machine.look(waits=obey(machine, wants))
        had.update(user for user, _ in machine.held.values())
    assert had["ann"] == pytest.approx(had["bob"], rel=0.1)


def test_the_status_shows_what_users_have_of_each_class(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 6, classes=CLASSES, users=limits(ann=1))
    machine.settle({"ann": LOTS, "bob": 2})
    machine.take("ann", BIG[0])
    machine.look()
    rows = machine.site.status(ROOT, machine.now_s)["classes"]
    shown = [tuple(row.values()) for row in rows]
    assert shown == [("big", "ann", 1, 1, 1), ("big", "bob", None, 2, 0), ("", "ann", None, 2, 0)]
    own = machine.site.status(machine.peer("bob"), machine.now_s)["classes"]
    assert [row["user"] for row in own] == ["bob"]


def test_the_command_shows_it_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(tmp_path / "b", 6, classes=CLASSES, users=limits(ann=1))
    machine.settle({"ann": LOTS, "bob": 2})
    document = {**machine.site.status(ROOT, machine.now_s)}
    monkeypatch.setattr(ways, "status", lambda _: document)
    assert main(["status", "--socket", str(tmp_path / "socket")]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    at = lines.index("class user limit granted held")
    assert lines[at + 1 :] == ["big ann 1 1 0", "big bob none 2 0", "of no class ann none 2 0"]
    # From a broker of an older release.
    del document["classes"]
    assert main(["status", "--socket", str(tmp_path / "socket")]) == 0
    assert "class" not in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_limits_hold_and_names_are_of_one(tmp_path: Path, seed: int) -> None:
    """Users who obey take and give back; of a class nobody ever has more than his limit."""
    draw = random.Random(seed)
    users = ("ann", "bob", "cid")
    most = {"ann": 1, "bob": 2, "cid": 4}
    machine = Machine(tmp_path / "b", 10, classes=CLASSES, users=limits(**most))
    wants = {user: draw.randint(0, 9) for user in users}
    for _ in range(60):
        if draw.random() < 0.2:
            wants[draw.choice(users)] = draw.randint(0, 9)
        waits = obey(machine, wants)
        had = Counter(user for node, (user, _) in machine.held.items() if node in BIG)
        assert all(had[user] <= most[user] for user in users), had
        machine.look(waits=waits)
    # In the end, with all that all want, no node is left that one may have.
    answers = machine.settle(dict.fromkeys(users, LOTS))
    named = {node for answer in answers.values() for node in answer.only or ()}
    assert named == set(machine.nodes)


def test_what_is_told_class_by_class() -> None:
    layout = Layout(("big", ""), {"b1": "big", "b2": "big"}, {})
    granted = {"a": {"b1", "s1"}, "b": {"b2"}}
    held = {"b1": "a", "b2": "a", "s1": "b"}
    found = told(granted, held, [], ["b1", "b2", "s1", "s2"], layout)
    # Of class "big" a has one more than its grant, and keeps it while nobody waits. The small node
    # that b has is another's by the decision, and s2 is as good.
    assert found.nodes == {"a": 3, "b": 2}
    assert found.only is not None
    assert {name: set(own) for name, own in found.only.items()} == {
        "a": {"b1", "b2", "s1"},
        "b": {"b2", "s1"},
    }
    assert found.beyond == {"b2", "s1"}
    # So far each has as many as it was told, and no others.
    assert excess(granted, held, found) == {"a": 0, "b": 0}
    waits = [("b", "b2"), ("a", "s1")]
    found = told(granted, held, waits, ["b1", "b2", "s1", "s2"], layout)
    assert found.nodes == {"a": 2, "b": 1}
    assert found.only == {"a": ("b1", "s1"), "b": ("b2",)}
    assert excess(granted, held, found) == {"a": 1, "b": 1}
    assert excess(granted, held, found._replace(only=None)) == {"a": 0, "b": 0}
    shares = {"ann": Share(limits={"big": 1}), "bob": Share()}
    holders = {"b1": "ann", "b2": "ann", "s1": "ann", "s2": "bob", "s3": "cid"}
    assert +over_limits(holders, shares, layout) == {"ann": 1}


# In a simulation.


def trainer(user: str, order: int) -> Job:
    job, _ = simulated(Trainer(f"t{order}", {1: 1.0, 4: 3.6}, 1e9, (1, 1), 10, 5, 0.0), order, 4)
    return replace(job, id=of_user(user, job.id))


def test_a_simulated_broker_decides_the_same(tmp_path: Path) -> None:
    users = {**limits(ann=1), "bob": Share(3, limit=7)}
    said = {"classes": CLASSES, "users": users}
    wants = {"ann": 9, "bob": 9, "cid": 2}
    live = Machine(tmp_path / "b", 12, **said).settle(wants)
    jobs = tuple(
        trainer(user, 100 * number + each)
        for number, (user, want) in enumerate(wants.items())
        for each in range(want)
    )
    there = {name: Node(name, 4, "a100") for name in (f"n{each:04d}" for each in range(12))}
    now = Snapshot(0.0, there, jobs, Cause.SUBMITTED)
    settings = Settings(PARTITION, **said)  # type: ignore[arg-type]
    target = ByWeights(settings, find_policy("equal_share"), 1e9)(now)
    found: dict[str, set[str]] = {}
    for job, grant in target.grants.items():
        found.setdefault(user_of(job), set()).update(grant.alloc)
    assert {user: len(nodes) for user, nodes in found.items()} == {
        user: answer.nodes for user, answer in live.items()
    }
    assert {user: len(nodes & set(BIG)) for user, nodes in found.items()} == {
        user: len(of_big(answer)) for user, answer in live.items()
    }
    standing = standing_of(jobs, there, settings, 1e9)
    assert sum(standing.entitled(there).values()) == pytest.approx(12)


def test_classes_by_kind_are_those_of_the_nodes(tmp_path: Path) -> None:
    kinds = (NodeClass("a", kind="a100"),)
    machine = Machine(tmp_path / "b", 4, classes=kinds, everybody=Share(limits={"a": 1}))
    found = machine.settle({"ann": LOTS, "bob": LOTS})
    assert {user: answer.nodes for user, answer in found.items()} == {"ann": 1, "bob": 1}
