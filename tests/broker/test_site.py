"""What a broker decides, remembers, and says to whom."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_sites import Machine, harvester_of, one_node_trainers, weights

from hpcext.broker import account, harvesters, metrics, view
from hpcext.broker import settings as settings_module
from hpcext.broker import site as sites
from hpcext.broker.account import Had
from hpcext.broker.division import Share
from hpcext.broker.handover import may_have
from hpcext.broker.identity import Peer
from hpcext.harvest.leave import MOST_ANSWER_BYTES, Ask, Trainer

LOTS = 100


def test_users_have_parts_by_their_weights(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 12, users=weights(ann=3, bob=1))
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 9, "bob": 3}


@pytest.mark.parametrize("policy", ["equal_share", "bftrainer", "pollux", "marble"])
def test_the_policies_are_those_of_pilots(tmp_path: Path, policy: str) -> None:
    machine = Machine(tmp_path / "b", 8, policy=policy)
    assert machine.grants({"ann": LOTS, "bob": 2}) == {"ann": 6, "bob": 2}


def test_a_user_who_comes_has_his_part_and_one_who_goes_leaves_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    assert machine.grants({"ann": LOTS}) == {"ann": 8}
    machine.take("ann", *machine.nodes)
    # Till bob's leases wait in the queue, ann keeps what she has.
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 8, "bob": 4}
    machine.waits = ["bob", "bob", "bob"]
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 5, "bob": 4}
    machine.waits += ["bob", "bob"]
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 4, "bob": 4}
    machine.waits.clear()
    assert set(machine.ask("bob", LOTS).claim) == set(machine.nodes)
    machine.held.clear()
    assert machine.grants({"ann": LOTS, "bob": 0}) == {"ann": 8, "bob": 0}


def test_a_node_that_a_policy_cannot_use_for_one_user_goes_to_another(tmp_path: Path) -> None:
    """Half of the nodes are too few for the one trainer of ann, which needs five."""
    machine = Machine(tmp_path / "b", 8)
    wide = (Trainer(1, (4,), (5, 8)),)
    for _ in range(6):
        ann, bob = machine.ask("ann", 8, wide), machine.ask("bob", LOTS)
        machine.look()
    assert (ann.nodes, bob.nodes) == (0, 8)


def test_trainers_without_nodes_of_their_own_share_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    small = tuple(Trainer(each, (1, 2), None) for each in range(4))
    for _ in range(6):
        answer = machine.ask("ann", 2, small)
        machine.look()
    assert answer.nodes == 2


def test_what_other_jobs_take_is_no_longer_divided(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 4, "bob": 4}
    taken = frozenset(machine.nodes[:6])
    for _ in range(3):
        machine.look(taken=taken)
    assert [machine.ask(user, LOTS).nodes for user in ("ann", "bob")] == [1, 1]


def test_more_trainers_or_harvesters_gain_nothing(tmp_path: Path) -> None:
    """Nor does any weight or priority that a user gives his own trainers."""
    machine = Machine(tmp_path / "b", 8)
    lies = tuple(Trainer(each, (4,), (1, 8), 1e6, 1e6) for each in range(200))
    for _ in range(6):
        machine.ask("bob", LOTS)
        machine.ask("eve", 10_000, lies)
        eve = machine.peer("eve")
        for name in ("x", "y", "z"):
            ask = Ask(harvester_of(name), "harvest", 4, 10_000, one_node_trainers(50))
            machine.site.hear(eve, ask, machine.now_s)
        machine.look()
    rows = machine.site.status(Peer(0, "root"), machine.now_s)["users"]
    assert {row["user"]: row["granted"] for row in rows} == {"bob": 4, "eve": 4}


def test_another_users_harvester_cannot_be_spoken_for(tmp_path: Path) -> None:
    """What eve says under the name of ann's harvester is about eve; ann keeps all of hers."""
    machine = Machine(tmp_path / "b", 8)
    assert machine.grants({"ann": LOTS}) == {"ann": 8}
    forged = Ask(harvester_of("ann"), "harvest", 4, 0, ())
    for _ in range(3):
        machine.site.hear(machine.peer("eve"), forged, machine.now_s)
        machine.look()
    assert machine.ask("ann", LOTS).nodes == 8


def test_a_grant_that_is_not_used_goes_to_others_for_a_while(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    assert machine.grants({"ann": LOTS, "eve": LOTS}) == {"ann": 4, "eve": 4}
    machine.take("ann", *machine.nodes[:4])
    for _ in range(12):
        machine.ask("ann", LOTS)
        machine.ask("eve", LOTS)
        machine.look()
    assert (machine.ask("ann", LOTS).nodes, machine.ask("eve", LOTS).nodes) == (8, 0)
    for _ in range(int(harvesters.AGAIN_S / machine.settings.cycle_s) + 1):
        machine.ask("ann", LOTS)
        machine.ask("eve", LOTS)
        machine.look()
    assert machine.ask("eve", LOTS).nodes == 4


@pytest.mark.slow
def test_a_user_who_never_uses_leave_has_it_less_and_less_under_any_name(tmp_path: Path) -> None:
    """Eve's harvester has another name in each look; bob can use all nodes."""
    machine = Machine(tmp_path / "b", 8)
    eve, lost, hours = machine.peer("eve"), [], 6
    for turn in range(int(hours * 3600 / machine.settings.cycle_s)):
        may = machine.ask("bob", LOTS).nodes
        machine.held.clear()
        machine.take("bob", *machine.nodes[:may])
        ask = Ask(harvester_of(f"x{turn % 4}"), "harvest", 4, 8, one_node_trainers(8))
        machine.site.hear(eve, ask, machine.now_s)
        machine.look()
        lost.append(8 - may)
    first, last = lost[20 : len(lost) // hours], lost[-len(lost) // hours :]
    assert sum(first) / len(first) <= 8 * 0.1
    assert sum(last) / len(last) <= 8 * 0.03


def test_a_harvester_that_asks_no_more_is_forgotten(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 4, "bob": 4}
    machine.take("ann", *machine.nodes[:4])
    for _ in range(12):
        machine.ask("ann", LOTS)
        machine.look()
    assert machine.ask("ann", LOTS).nodes == 8
    assert machine.ask("bob", LOTS).keep


def test_the_next_free_node_is_promised_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 2)
    machine.grants({"ann": LOTS, "bob": LOTS})
    machine.take("ann", "n0000")
    machine.take("bob", "n0001")
    answers = machine.settle({"ann": LOTS, "bob": LOTS})
    assert sum(each.next for each in answers.values()) == 1


def test_leases_without_leave_are_seen_counted_and_charged_to_their_user(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    # A harvester of eve that does not ask, beside one that does.
    machine.held.update(dict.fromkeys(machine.nodes[:4], ("eve", harvester_of("rogue"))))
    assert machine.grants({"bob": LOTS, "eve": LOTS}) == {"bob": 4, "eve": 0}
    rows = machine.site.status(Peer(0, "root"), machine.now_s)["users"]
    without = {row["user"]: row["without_leave_node_s"] for row in rows}
    assert without == {"bob": 0.0, "eve": 4 * 4 * machine.settings.cycle_s}


# Why no more.


def said(machine: Machine, user: str, want: int = LOTS) -> tuple[int, int, str]:
    answer = machine.ask(user, want)
    return answer.nodes, answer.of, answer.less


def test_a_harvester_hears_its_part_and_why_it_is_no_more(tmp_path: Path) -> None:
    shares = {"ann": Share(3), "bob": Share(1), "cid": Share(limit=1), "kim": Share(priority=1)}
    machine = Machine(tmp_path / "b", 12, users=shares)
    machine.grants({"ann": LOTS, "bob": 2, "cid": LOTS})
    by_weight = "other users have the rest, by their weights"
    assert said(machine, "ann") == (9, 12, by_weight)
    assert said(machine, "bob", 2) == (2, 12, "")
    assert said(machine, "cid") == (1, 12, "the limit of its user is 1")
    machine.grants({"ann": LOTS, "bob": LOTS, "kim": 4})
    nodes, _, why = said(machine, "bob")
    assert nodes < 12
    assert why == "users of a higher priority, and others by their weights, have the rest"
    assert said(machine, "kim", 4) == (4, 12, "")


def test_one_alone_hears_that_there_are_no_more(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 3)
    machine.grants({"ann": LOTS})
    assert said(machine, "ann") == (3, 3, "there are no more")
    machine = Machine(tmp_path / "c", 8, policy="equal_share")
    for _ in range(6):
        answer = machine.ask("ann", 8, (Trainer(1, (4,), (1, 2)),))
        machine.look()
    assert (answer.nodes, answer.less) == (2, "its trainers cannot use more of its part")


def test_the_limit_of_a_group_is_named_and_no_member_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"ann": {"physics"}, "bob": {"physics"}}
    monkeypatch.setattr(settings_module, "groups_of", lambda user: groups.get(user, set()))
    machine = Machine(tmp_path / "b", 12, pools={"group physics": 4})
    machine.grants({"ann": LOTS, "bob": LOTS, "cid": LOTS})
    assert said(machine, "ann") == (2, 12, "all users of its group physics may have 4 together")
    assert "physics" not in said(machine, "cid")[2]


def test_who_has_not_used_his_leave_hears_that(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    machine.grants({"ann": LOTS, "eve": LOTS})
    machine.take("ann", *machine.nodes[:4])
    for _ in range(12):
        machine.ask("ann", LOTS)
        machine.ask("eve", LOTS)
        machine.look()
    assert "has not used what was granted before" in said(machine, "eve")[2]


def test_no_sentence_names_another_user(tmp_path: Path) -> None:
    names = ("annabel", "bartholomew", "cordelia")
    machine = Machine(tmp_path / "b", 9, users={"annabel": Share(2), "cordelia": Share(priority=1)})
    for _ in range(6):
        answers = {name: machine.ask(name, LOTS) for name in names}
        machine.look()
    for user, answer in answers.items():
        document = str(machine.site.status(machine.peer(user), machine.now_s)) + str(answer)
        assert not [name for name in names if name != user and name in document]


# Before it knows, and when it cannot write.


def test_a_broker_that_has_just_begun_decides_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    assert machine.ask("ann", LOTS).keep == "it has begun a moment ago"
    machine.look()
    assert machine.ask("ann", LOTS).keep


def test_nobody_is_told_what_is_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "b", 8)
    assert machine.grants({"ann": LOTS}) == {"ann": 8}

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        machine.ask("bob", LOTS)
        machine.look()
        assert machine.ask("ann", LOTS).keep == "its journal cannot be written"
        assert not machine.site.status(Peer(0, "root"), machine.now_s)["decides"]
    machine.look()
    assert machine.ask("ann", LOTS).nodes == 4


def test_too_much_of_one_user_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    eve, refused = machine.peer("eve"), []
    for each in range(harvesters.MOST_HARVESTERS + 1):
        ask = Ask(harvester_of(f"h{each}"), "harvest", 4, 1, one_node_trainers(1))
        refused.append(machine.site.hear(eve, ask, machine.now_s).refused)
    assert [bool(each) for each in refused] == [False] * harvesters.MOST_HARVESTERS + [True]
    many = Ask(harvester_of("h1"), "harvest", 4, 1, one_node_trainers(harvesters.MOST_OF_USER))
    assert machine.site.hear(eve, many, machine.now_s).refused
    twice = Ask(harvester_of("h1"), "harvest", 4, 1, one_node_trainers(1) * 2)
    assert machine.site.hear(eve, twice, machine.now_s).refused == "two trainers have one number"
    for wrong in (Trainer(1, (4, 2)), Trainer(1, (4,), (3, 2))):
        ask = Ask(harvester_of("h1"), "harvest", 4, 1, (wrong,))
        assert machine.site.hear(eve, ask, machine.now_s).refused


def test_another_partition_is_not_its_business(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    ask = Ask(harvester_of("ann"), "other", 4, 1)
    assert machine.site.hear(machine.peer("ann"), ask, machine.now_s).elsewhere


# Recovery.


def test_it_goes_on_from_every_record(tmp_path: Path) -> None:
    """Whatever line was the last that was written: after asking once, all is as it was."""
    wants = {"ann": LOTS, "bob": LOTS, "cid": 2}
    machine = Machine(tmp_path / "b", 9, users=weights(ann=2))
    whole = machine.grants(wants)
    assert sum(whole.values()) == 9
    machine.journal.close()
    lines = (tmp_path / "b" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) >= 8
    for count in range(1, len(lines) + 1):
        other = Machine.__new__(Machine)
        other.__dict__.update(machine.__dict__)
        other.path = tmp_path / f"c{count}"
        other.path.mkdir(mode=0o700)
        (other.path / "journal.jsonl").write_bytes(b"".join(lines[:count]) + b'[12.5,[{"ty')
        (other.path / "journal.jsonl").chmod(0o600)
        other.begin()
        assert other.grants(wants) == whole, count
        other.journal.close()


def test_what_was_granted_holds_when_it_comes_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8, users=weights(ann=3))
    whole = machine.grants({"ann": LOTS, "bob": LOTS})
    machine.take("ann", *machine.nodes[:6])
    machine.take("bob", *machine.nodes[6:])
    machine.again()
    assert machine.ask("ann", LOTS).keep
    # bob's harvester asks late: nothing of his is given to ann.
    for _ in range(5):
        machine.ask("ann", LOTS)
        machine.look()
        answer = machine.ask("ann", LOTS)
        assert answer.keep or answer.nodes == whole["ann"]
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == whole


def test_it_does_not_grow_with_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers that have ended are forgotten, in memory and in the journal."""
    monkeypatch.setattr(sites, "MOST_ENDED", 50)
    machine = Machine(tmp_path / "b", 4)
    machine.grants({"ann": 4})
    for turn in range(40):
        machine.ask("ann", 4, tuple(Trainer(turn * 10 + each, (4,), (1, 1)) for each in range(10)))
        machine.look()
    assert len(machine.site._engine.world.jobs) <= 70
    machine.again()
    assert len(machine.site._engine.world.jobs) <= 70
    assert machine.grants({"ann": 4}) == {"ann": 4}


# Who sees what.


def test_a_user_sees_himself_and_an_administrator_all(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8, administrators=("adm",))
    machine.grants({"ann": LOTS, "bob": LOTS})

    def seen(peer: Peer) -> list[str]:
        return [row["user"] for row in machine.site.status(peer, machine.now_s)["users"]]

    assert seen(machine.peer("ann")) == ["ann"]
    assert seen(machine.peer("nobody-else")) == ["nobody-else"]
    assert seen(Peer(0, "root")) == seen(Peer(77_001, "adm")) == ["ann", "bob"]


def test_a_status_has_room_for_whoever_ever_had_a_node(tmp_path: Path) -> None:
    """Those who have something now are shown, then those who had most; the rest is one."""
    machine = Machine(tmp_path / "b", 8)
    wants = {"annabel": LOTS, "zoe": LOTS}
    machine.grants(wants)
    machine.take("rogue", *machine.nodes[:2])
    machine.look()
    root = Peer(0, "root")
    for number in range(5000):
        had = Had(1e9 + number + 0.06, number + 0.06)
        machine.account.users[f"somebody-with-a-long-name-{number}"] = had
    document = machine.site.status(root, machine.now_s)
    assert len(msgspec.json.encode(document)) < MOST_ANSWER_BYTES
    rows = {row["user"]: row for row in document["users"]}
    assert len(rows) == view.MOST_ROWS
    assert {*wants, "rogue", "somebody-with-a-long-name-4999"} < rows.keys()
    assert document["others"]["users"] == 5003 - view.MOST_ROWS

    def total(document: dict[str, Any]) -> dict[str, float]:
        return {each.name: each.value for each in metrics.samples(document, users=False)}

    before = total(document)
    assert before["hpcext_broker_held_seconds_total"] > 5000 * 1e9
    assert before["hpcext_broker_harvesters"] == 2
    # One of the rest comes back, another one is no more among those who are shown.
    machine.grants({**wants, "somebody-with-a-long-name-0": LOTS})
    document = machine.site.status(root, machine.now_s)
    assert "somebody-with-a-long-name-0" in {row["user"] for row in document["users"]}
    after = total(document)
    assert after["hpcext_broker_harvesters"] == 3
    for name, description in metrics.METRICS.items():
        assert description.kind == "gauge" or after[name] >= before[name], name


def test_the_account_of_any_number_of_users_is_gone_on_with(tmp_path: Path) -> None:
    saved = account.Account(users={f"somebody-{number}": Had(1e9) for number in range(20_000)})
    account.save(saved, tmp_path)
    assert account.go_on(tmp_path) == saved


def test_new_settings_hold_from_the_next_look_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    machine.grants({"ann": LOTS, "bob": LOTS})
    machine.site.reload(machine.settings._replace(users={"bob": Share(limit=1)}))
    machine.look()
    assert [machine.ask(user, LOTS).nodes for user in ("ann", "bob")] == [7, 1]


def test_a_node_that_changes_hands_is_not_missed_at_once(tmp_path: Path) -> None:
    """It is neither idle nor leased at one look."""
    machine = Machine(tmp_path / "b", 4)
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 2, "bob": 2}
    machine.look(taken=frozenset({"n0001"}))
    assert [machine.ask(user, LOTS).nodes for user in ("ann", "bob")] == [2, 2]
    machine.look(taken=frozenset({"n0001"}))
    assert sum(machine.ask(user, LOTS).nodes for user in ("ann", "bob")) == 3


@pytest.mark.slow
def test_a_liar_gains_nothing_in_an_hour(tmp_path: Path) -> None:
    """Eve can use all nodes, and says it, or says anything: it is the same for her and for bob,
    who comes and goes meanwhile, as main jobs do. All take what they may have."""

    def hour(path: Path, lies: bool) -> dict[str, int]:
        machine = Machine(path, 10, policy="bftrainer")
        had = {"eve": 0, "bob": 0}
        for turn in range(int(3600 / machine.settings.cycle_s)):
            wants = {"eve": 10, "bob": turn // 20 % 4 * 3}
            number = 250 if lies else 10
            said = tuple(
                Trainer(turn * 1000 + each, (4,), (1, 10_000), 1e6, 1e6)
                if lies
                else Trainer(each, (4,), (1, 1))
                for each in range(number)
            )
            may = machine.ask("eve", 10_000 if lies else 10, said).nodes
            may_bob = machine.ask("bob", wants["bob"]).nodes
            taken = frozenset(machine.nodes[: turn // 30 % 3])
            free = [node for node in machine.nodes if node not in taken]
            machine.held.clear()
            machine.take("eve", *free[:may])
            machine.take("bob", *free[may : may + may_bob])
            had["eve"] += len(free[:may])
            had["bob"] += len(free[may : may + may_bob])
            machine.look(taken=taken)
        return had

    honest, lied = hour(tmp_path / "honest", False), hour(tmp_path / "lied", True)
    assert lied["eve"] <= honest["eve"]
    assert lied["bob"] >= honest["bob"]


def test_words_that_come_and_go_take_no_node_from_anybody(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    machine.grants({"ann": LOTS, "eve": 0})
    machine.take("ann", *machine.nodes)
    for turn in range(20):
        assert machine.ask("ann", LOTS).nodes == 8
        machine.ask("eve", LOTS * (turn % 2))
        machine.look()


def test_those_give_back_who_have_most_beyond_their_part() -> None:
    grants, have = {"a": 2, "b": 2, "c": 4}, {"a": 5, "b": 3}
    assert may_have(grants, have, {}) == {"a": 5, "b": 3, "c": 4}
    assert may_have(grants, have, {"c": 2}) == {"a": 3, "b": 3, "c": 4}
    assert may_have(grants, have, {"c": 9}) == {"a": 2, "b": 2, "c": 4}
    # Whoever has his part, and waits for the next node, is owed none.
    assert may_have(grants, have, {"a": 3, "": 7}) == {"a": 5, "b": 3, "c": 4}
