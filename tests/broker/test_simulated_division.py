"""A simulated broker decides as the live one does, and what it decides can be carried out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from made_sites import PARTITION, Machine, weights
from msgspec.structs import replace

from hpcext.broker.decision import decide
from hpcext.broker.division import Share
from hpcext.broker.reservations import Reservation
from hpcext.broker.settings import Settings
from hpcext.broker.simulated.account import Account
from hpcext.broker.simulated.policy import ByWeights, standing_of
from hpcext.core.facts import Fact, NodeJoined, NodeLost
from hpcext.core.values import Cause, Job, Node, Run, Snapshot, State, Target
from hpcext.policies import find_policy
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.workloads.trainers import Trainer, simulated
from hpcext.sim.workloads.workload import of_user, user_of

EQUAL = find_policy("equal_share")
SPEED = {1: 1.0, 2: 1.9, 4: 3.6, 8: 6.8}


def trainer(
    user: str, order: int, most: int = 8, submit_s: float = 0.0, samples: float = 1e9
) -> tuple[Job, Physics]:
    job, physics = simulated(
        Trainer(f"t{order}", SPEED, samples, (1, most), 10, 5, submit_s), order, 4
    )
    return replace(job, id=of_user(user, job.id)), physics


def snapshot(jobs: list[Job], nodes: int) -> Snapshot:
    there = {f"n{each}": Node(f"n{each}", 4) for each in range(nodes)}
    return Snapshot(0.0, there, tuple(jobs), Cause.SUBMITTED)


def parts(target: Target) -> dict[str, int]:
    found: dict[str, set[str]] = {}
    for job, grant in target.grants.items():
        found.setdefault(user_of(job), set()).update(grant.alloc)
    return {user: len(nodes) for user, nodes in found.items()}


@pytest.mark.parametrize(
    "said",
    [
        {"users": weights(ann=3, bob=1)},
        {"users": {"ann": Share(priority=1, limit=9), "bob": Share(limit=3)}},
        {"reservations": (Reservation("user", "cat", 11, 0.0, 1e12),)},
    ],
)
def test_the_live_broker_and_a_simulated_one_decide_alike(
    tmp_path: Path, said: Mapping[str, object]
) -> None:
    wants = {"ann": 12, "bob": 20, "cat": 14}
    live = Machine(tmp_path / "b", 17, **said).grants(wants)
    jobs = [
        trainer(user, 100 * number + each, 1)[0]
        for number, (user, want) in enumerate(wants.items())
        for each in range(want)
    ]
    settings = Settings(PARTITION, **said)  # type: ignore[arg-type]
    assert parts(ByWeights(settings, EQUAL, 1e9)(snapshot(jobs, 17))) == live


def test_the_policy_of_a_user_sees_his_trainers_and_nodes_alone() -> None:
    seen = []

    def spy(now: Snapshot) -> Target:
        seen.append(({user_of(job.id) for job in now.jobs}, len(now.nodes)))
        return EQUAL(now)

    jobs = [trainer(user, number)[0] for number, user in enumerate(("ann", "bob"))]
    ByWeights(Settings("p", users=weights(ann=3)), spy, 0.0)(snapshot(jobs, 8))
    assert sorted(seen, key=str) == [({"ann"}, 6), ({"bob"}, 2)]


def running(user: str, order: int, nodes: str) -> Job:
    held = {f"n{each}": 4 for each in nodes}
    job = trainer(user, order)[0]
    run_ = Run(registered=True, in_place=True, elastic=True)
    return replace(job, state=State.RUNNING, goal=held, held=held, run=run_)


def test_trainers_that_give_nodes_back_keep_the_others() -> None:
    """They shrink on their own nodes, and do not begin anew on those of one another."""
    ann = [running("ann", 0, "0246"), running("ann", 1, "1357")]
    bob = trainer("bob", 2)[0]
    target = ByWeights(Settings("p"), EQUAL, 0.0)(snapshot([*ann, bob], 8))
    for each in ann:
        assert target.grants[each.id].alloc.keys() < each.held.keys()
    assert parts(target) == {"ann": 4, "bob": 4}


def test_nodes_on_their_way_between_trainers_are_granted_once() -> None:
    """One has been told to leave node 2, which the other waits for; node 3 goes to another user."""
    both = {"n0": 4, "n1": 4}
    leaves = running("ann", 0, "2013")
    leaves = replace(leaves, state=State.RESCALING, goal=both)
    comes = running("ann", 1, "4")
    comes = replace(comes, goal={"n4": 4, "n2": 4})
    now = snapshot([leaves, comes, running("bob", 2, "567")], 8)
    standing = standing_of(now.jobs, now.nodes, Settings("p"), 0.0)
    target = decide(now, standing, EQUAL, standing.parts(now.nodes))
    granted = [node for grant in target.grants.values() for node in grant.alloc]
    assert len(granted) == len(set(granted)) == 8
    assert target.grants[leaves.id].alloc == both


def test_a_trainer_that_cannot_go_on_with_the_rest_begins_anew() -> None:
    wide, _ = simulated(Trainer("wide", SPEED, 1e9, (4, 4), 10, 5), 0, 4)
    wide = replace(running("ann", 0, "0123"), nodes=wide.nodes)
    small = [trainer("bob", number, 1)[0] for number in range(1, 9)]
    target = ByWeights(Settings("p"), EQUAL, 0.0)(snapshot([wide, *small], 6))
    # Three nodes are too few for her trainer, so that bob has all six.
    assert parts(target) == {"bob": 6}


def changes(seed: int, nodes: int, hours: float) -> Iterator[tuple[float, tuple[Fact, ...]]]:
    """Nodes that come and go at random."""
    chance, there = random.Random(seed), set[int]()
    now_s = 0.0
    while now_s < 3600 * hours:
        node = chance.randrange(nodes)
        fact = NodeLost(f"n{node}") if node in there else NodeJoined(Node(f"n{node}", 4))
        there ^= {node}
        yield now_s, (fact,)
        now_s += chance.expovariate(1 / 40)


@pytest.mark.cases(2)
@pytest.mark.parametrize("policy", ["equal_share", "bftrainer", "marble", "exclusive"])
def test_whatever_happens_a_decision_can_be_carried_out(policy: str) -> None:
    """A refused one ends the run with an error; users come and go beside nodes."""
    chance = random.Random(policy)
    jobs = sorted(
        (
            trainer(
                f"u{number % 7}",
                number,
                chance.choice((1, 3, 8)),
                chance.uniform(0, 7200) if number > 9 else 0.0,
                chance.choice((500.0, 5000.0, 1e9)),
            )
            for number in range(40)
        ),
        key=lambda each: each[0].submitted_s,
    )
    settings = Settings(
        "p",
        users={"u1": Share(3), "u2": Share(priority=1, limit=4), "u3": Share(limit=2)},
        reservations=(Reservation("user", "u4", 6, 1800.0, 5400.0),),
    )
    users = [f"u{number}" for number in range(7)]
    account = Account(settings, users, 0.0, "weights")
    found = run(
        Scenario(jobs, (), changes(3, 30, 3)),
        ByWeights(settings, find_policy(policy), 0.0),
        Named(policy),
        SimulationOptions(until_s=3 * 3600.0),
        account.begin,
    )
    found = account.completed(found)
    had = {row.user: row for row in found.users}
    assert max(had["u3"].had) <= 2 + 1
    assert max(had["u2"].had) <= 4 + 1
    assert sum(row.had_node_s for row in found.users) <= sum(
        (span.end_s - span.start_s) * span.offered / 4 for span in found.spans
    )
    if policy == "equal_share":
        for row in found.users:
            assert row.had_node_s == pytest.approx(row.entitled_node_s, rel=0.1), row.user
