"""`marble` and `exclusive` decide in less time what they decided in the plainest way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core.values import Alloc, Cause, Job, Node, Role, Run, Snapshot, State, per_node
from hpcext.policies import exclusive, marble
from hpcext.policies.common import AS_ASKED, ONE_NODE, avoided, free_beside, keep, largest, movable


def drawn(seed: int) -> Snapshot:
    """Nodes of some widths and kinds, jobs on some of their GPUs, and jobs that wait."""
    rng = random.Random(seed)
    kinds = rng.choice([("",), ("a", "b")])
    nodes = {}
    for number in range(rng.randint(1, 12)):
        name = f"n{number}"
        nodes[name] = Node(name, rng.choice([4, 4, 4, 2, 6]), rng.choice(kinds))
    free = {name: node.gpus for name, node in nodes.items()}
    jobs = []
    for order in range(rng.randint(1, 14)):
        least, more = rng.randint(1, 4), rng.randint(0, 3)
        sizes = tuple(range(least, least + more + 1))
        fewest = rng.randint(1, 4)
        span = rng.choice([None, (1, 1), (fewest, fewest), (fewest, fewest + 2)])
        known: dict[str, Any] = {
            "nodes": span,
            "ready": rng.random() < 0.9,
            "failed_on": tuple(rng.sample(sorted(nodes), rng.randint(0, 1))),
            "stated": rng.choice([(), (), (1, 2, 3)]),
            "suspendable": rng.random() < 0.8,
        }
        able = [name for name in free if free[name] >= min(sizes)]
        count = rng.randint(*(span or ONE_NODE))
        if rng.random() < 0.5 and len(able) >= count:
            goal = dict.fromkeys(rng.sample(able, count), rng.randint(1, min(sizes)))
            for name, gpus in goal.items():
                free[name] -= gpus
            known |= {
                "goal": goal, "held": goal, "run": Run(registered=rng.random() < 0.8),
                "state": rng.choice([State.RUNNING, State.STARTING]),
                "role": rng.choice(list(Role)), "why": rng.choice(["", f"runs, {AS_ASKED}"]),
            }  # fmt: skip
        jobs.append(Job(str(order), f"j{order}", order, sizes, rng.choice(sizes), **known))
    busy = tuple(job for job in jobs if job.goal) if rng.random() < 0.5 else None
    return Snapshot(0.0, nodes, tuple(jobs), Cause.ENDED, busy=busy)


def plainly_placed(job: Job, now: Snapshot, free: Mapping[str, int]) -> Alloc:
    """Algorithm 1 of MARBLE on nodes of one kind: all of them are looked at for each job."""
    fewest, most = job.nodes or ONE_NODE

    def best(name: str) -> int:
        gpus = now.nodes[name].gpus
        return largest(job, min(job.optimal, gpus)) or largest(job, gpus)

    fits = (name for name in free if 0 < best(name) <= free[name])
    fitting = sorted(fits, key=lambda name: (name in job.failed_on, free[name]))
    if len(fitting) >= fewest:
        size = sorted(map(best, fitting), reverse=True)[fewest - 1]
        chosen = [name for name in fitting if best(name) >= size][:most]
        return {name: size for name in now.nodes if name in chosen}
    usable = {name: largest(job, gpus) for name, gpus in free.items()}
    ranked = sorted(
        usable, key=lambda name: (not usable[name], name in job.failed_on, -usable[name])
    )
    size = min(usable[name] for name in ranked[:fewest]) if len(ranked) >= fewest else 0
    chosen = [name for name in ranked if usable[name] >= size][:most] if size else []
    return {name: size for name in now.nodes if name in chosen}


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_marble_starts_the_jobs_that_algorithm_1_does(seed: int) -> None:
    now = drawn(seed)
    target = marble.allocate(now)
    had = keep(now)
    # What it does first is make running jobs larger or smaller.
    free = free_beside(now, {name: target.grants[name] for name in had})
    blocked = False
    for job in now.jobs:
        if job.id in had or not job.ready:
            continue
        alloc: Alloc = {}
        if not blocked:
            kinds = {node.kind for node in now.nodes.values()}
            if (job.nodes or ONE_NODE)[1] == 1 or len(kinds) == 1:
                alloc = plainly_placed(job, now, free)
            else:
                alloc = target.grants[job.id].alloc if job.id in target.grants else {}
                parts = [
                    {name: free[name] for name in free if now.nodes[name].kind == kind}
                    for kind in sorted(kinds)
                ]
                assert alloc in [{}, *(plainly_placed(job, now, part) for part in parts)]
                assert alloc or not any(plainly_placed(job, now, part) for part in parts)
        blocked = blocked or not alloc
        granted = target.grants.get(job.id)
        assert (dict(granted.alloc) if granted else {}) == alloc
        assert (job.id in target.waits) == blocked
        for name, gpus in alloc.items():
            free[name] -= gpus


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_exclusive_starts_the_next_jobs_on_the_nodes_that_nobody_has(seed: int) -> None:
    now = drawn(seed)
    target = exclusive.allocate(now)
    had = keep(now)
    jobs_on = Counter(name for grant in had.values() for name in grant.alloc)
    for job in now.jobs:
        if job.id not in had:
            continue
        alloc = had[job.id].alloc
        right = per_node(alloc) in job.sizes and job.role is Role.PRIMARY
        same = right and bool(job.stated) == (AS_ASKED in job.why)
        size = largest(job, min(now.nodes[name].gpus for name in alloc))
        alone = all(jobs_on[name] == 1 for name in alloc)
        changes = alone and not same and movable(job) and size
        assert target.grants[job.id].alloc == (dict.fromkeys(alloc, size) if changes else alloc)
    taken, blocked = set(jobs_on), False
    for job in now.jobs:
        if job.id in had or not job.ready:
            continue
        fewest, most = job.nodes or ONE_NODE
        free = [node for node in now.nodes.values() if node.name not in taken]
        fit = [node for node in free if largest(job, node.gpus)]
        kinds = [
            sum(node.kind == kind and node.name not in left_out for node in fit)
            for left_out in avoided(job)
            for kind in {node.kind for node in fit}
        ]
        blocked = blocked or max(kinds, default=0) < fewest
        assert (job.id in target.waits) == blocked
        if blocked:
            continue
        alloc = target.grants[job.id].alloc
        assert fewest <= len(alloc) <= most
        assert set(alloc) <= {node.name for node in fit}
        assert len({now.nodes[name].kind for name in alloc}) == 1
        assert per_node(alloc) == min(largest(job, now.nodes[name].gpus) for name in alloc)
        taken.update(alloc)


class Counting(dict[str, Node]):
    """The nodes of a machine, which count how often one is looked up."""

    looked = 0

    def __getitem__(self, name: str) -> Node:
        self.looked += 1
        return super().__getitem__(name)


@pytest.mark.parametrize("policy", [marble, exclusive])
def test_a_decision_looks_at_no_node_of_jobs_that_stay(policy: Any) -> None:
    """What is known of an allocation is looked up once, for all decisions in which it stays."""
    nodes = Counting({f"n{number}": Node(f"n{number}", 4) for number in range(400)})
    goals = [dict.fromkeys(list(nodes)[at : at + 100], 4) for at in range(0, 400, 100)]
    jobs = [
        Job(str(at), f"j{at}", at, (4,), 4, nodes=(100, 100), goal=goal, role=Role.PRIMARY,
            state=State.RUNNING, run=Run(registered=True))
        for at, goal in enumerate(goals)
    ]  # fmt: skip
    jobs += [Job(str(at), f"j{at}", at, (4,), 4, nodes=(9, 9)) for at in range(4, 50)]
    now = Snapshot(0.0, nodes, tuple(jobs), Cause.ENDED, busy=tuple(jobs[:4]))
    policy.allocate(now)
    nodes.looked = 0
    assert len(policy.allocate(now).waits) == 46
    assert nodes.looked == 0
