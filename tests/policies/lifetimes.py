"""Jobs on nodes that leave, and what they are worth there, written down once more."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcext.core.estimate import Estimate
from hpcext.core.history.fragments import EDGES_S, Fragments
from hpcext.core.values import Alloc, Cause, Job, Node, Run, Snapshot, State, Target
from hpcext.policies import find_policy
from hpcext.policies.bftrainer.holes import LATER_S, Horizon, holes

FORWARD_S = 120.0
NOW_S = 1000.0
LONG_S = 1e8
"""A node that ends then stays."""

TOLD = Fragments(told=1_000_000_000)
"""Nobody leaves before the end that it says."""


def curve(*speeds: float) -> Estimate:
    """Speeds on 1, 2, ... GPUs as multiples of the first one."""
    return Estimate(stated={gpus: float(speed) for gpus, speed in enumerate(speeds, 1)})


def linear(most: int) -> Estimate:
    return curve(*range(1, most + 1))


def trainer(order: int, known: Estimate, *goal: str, **more: Any) -> Job:
    """It runs on some nodes with one GPU each, if it has any; on as many as it has speeds for."""
    has = dict.fromkeys(goal, 1)
    running = (
        {"state": State.RUNNING, "run": Run(registered=True), "held": has, "goal": has}
        if goal
        else {}
    )
    spread = (1, max(known.stated, default=1))
    said = {"sizes": (1,), "nodes": spread, "estimate": known, **running, **more}
    said.setdefault("optimal", max(said["sizes"]))
    return Job(str(order), f"j{order}", order, **said)


def costing(known: Estimate, up_s: float, down_s: float | None = None) -> Estimate:
    return Estimate(stated=known.stated, up_s=up_s, down_s=up_s if down_s is None else down_s)


def nodes(gpus: int = 1, since_s: float = 0.0, **ends_s: float | None) -> dict[str, Node]:
    """Node → when it ends, from now on; None: nobody knows."""
    return {
        name: Node(name, gpus, "", since_s, None if end_s is None else NOW_S + end_s)
        for name, end_s in ends_s.items()
    }


def at(there: Mapping[str, Node], *jobs: Job, seen: Fragments = TOLD) -> Snapshot:
    return Snapshot(NOW_S, dict(there), jobs, Cause.TIME, fragments=seen)


def asked(now: Snapshot, **options: Any) -> Target:
    """What the policy says; of every job that is ready either a grant or why it waits."""
    said = ",".join(f"{key}={value}" for key, value in options.items())
    target = find_policy("bftrainer-lifetime" + (f":{said}" if said else ""))(now)
    # Who is not among the first ones that may run is not asked about.
    others = {each.id for each in now.jobs if each.ready} - set(target.grants)
    assert set(target.waits) <= others if "parallel" in options else set(target.waits) == others
    return target


def allocs(now: Snapshot, **options: Any) -> dict[str, Alloc]:
    """Job → GPUs by node, of those that get any."""
    return {name: dict(grant.alloc) for name, grant in asked(now, **options).grants.items()}


def having(now: Snapshot, **options: Any) -> dict[str, str]:
    """Job → the names of its nodes, one after the other."""
    return {name: "".join(sorted(alloc)) for name, alloc in allocs(now, **options).items()}


class Judge:
    """What jobs are worth on nodes with one GPU each: from the classes of these nodes on, without
    any array.

    A job that gets a node that it did not have is rescaled upwards, however many it gives up.
    """

    def __init__(self, now: Snapshot) -> None:
        self.now = now
        self.jobs = [job for job in now.jobs if job.nodes and job.nodes[0] <= len(now.nodes)]
        self.changes_s = [
            tuple(10.0 if cost_s is None else cost_s for cost_s in (known.up_s, known.down_s))
            for known in (job.estimate for job in self.jobs)
        ]
        self.long_s = FORWARD_S + max(itertools.chain(*self.changes_s), default=0.0)
        span = Horizon.of(self.long_s)
        stall_s = sum(down_s for _, down_s in self.changes_s) / max(1, len(self.jobs))
        classes = holes(now.nodes, now.fragments, now.now_s, span, stall_s)
        self.of = classes.of
        self.stays, self.calm = classes.stays.tolist(), classes.calm.tolist()
        self.edges_s = span.edges_s.tolist()

    def worth(self, number: int, chosen: frozenset[str]) -> float:
        """Of one job."""
        if not chosen:
            return 0.0
        job, (up_s, down_s) = self.jobs[number], self.changes_s[number]
        has = set(job.goal or ())
        if chosen - has:
            stall_s = up_s
        elif chosen < has:
            stall_s = down_s
        else:
            stall_s = down_s if job.run.degraded else 0.0
        work = 0.0
        for piece, (begin_s, end_s) in enumerate(itertools.pairwise(self.edges_s)):
            alive = sum(self.stays[self.of[node]][piece] for node in chosen)
            calm = sum(self.calm[each][piece] for each in {self.of[node] for node in chosen})
            seconds = max(0.0, end_s - max(begin_s, stall_s))
            if begin_s < 0.999 * self.long_s:
                work += self.speed(job, alive) * math.exp(calm) * seconds
            else:
                # What stalls cost, alone.
                seconds *= math.exp(-(begin_s + end_s) / 2 / LATER_S)
                work -= self.speed(job, alive) * (1.0 - math.exp(calm)) * seconds
        return work

    def speed(self, job: Job, alive: float) -> float:
        """On straight lines between the sizes that it can have."""
        assert job.nodes is not None
        stated, (fewest, most) = job.estimate.stated, job.nodes
        points = [(0, 0.0)]
        points += [
            (gpus, stated[gpus] / stated[1])
            for gpus in range(fewest, min(most, len(self.now.nodes)) + 1)
        ]
        for (low, slow), (high, fast) in itertools.pairwise(points):
            if alive <= high:
                return slow + (fast - slow) * (alive - low) / (high - low)
        return points[-1][1]

    def of_target(self, target: Target) -> float:
        found = [target.grants.get(job.id) for job in self.jobs]
        return sum(
            self.worth(number, frozenset(grant.alloc if grant else ()))
            for number, grant in enumerate(found)
        )

    def best(self) -> float:
        """Every allocation is tried."""
        names = list(self.now.nodes)
        found = {frozenset[str](): 0.0}
        for number, job in enumerate(self.jobs):
            assert job.nodes is not None
            mine = {
                nodes_: self.worth(number, nodes_)
                for nodes_ in subsets(names)
                if not nodes_ or job.nodes[0] <= len(nodes_) <= job.nodes[1]
            }
            after: dict[frozenset[str], float] = {}
            for taken, before in found.items():
                for nodes_, worth in mine.items():
                    if not taken & nodes_:
                        both = taken | nodes_
                        after[both] = max(after.get(both, -math.inf), before + worth)
            found = after
        return max(found.values())


def subsets(names: Sequence[str]) -> Iterator[frozenset[str]]:
    for count in range(len(names) + 1):
        yield from map(frozenset, itertools.combinations(names, count))


def instance(rng: random.Random, *, concave: bool = False) -> Snapshot:
    """A snapshot of up to three jobs on up to five nodes with one GPU each."""
    there, ends_s = {}, [None, None, 4.0, 30.0, 60.0, 130.0, LONG_S]
    for name in "abcde"[: rng.randint(1, 5)]:
        end_s = rng.choice(ends_s)
        since_s = rng.choice([NOW_S, NOW_S - 60.0, NOW_S - 3600.0])
        there.update(nodes(since_s=since_s, **{name: end_s}))
    free = list(there)
    rng.shuffle(free)
    jobs = []
    for order in range(1, rng.randint(1, 3) + 1):
        gains = [rng.randint(0 if concave else -3, 10) / 10 for _ in range(4)]
        gains = sorted(gains, reverse=True) if concave else gains
        speeds = [max(0.1, speed) for speed in itertools.accumulate(gains, initial=1.0)]
        fewest = 1 if concave else rng.choice([1, 1, 2])
        most = rng.randint(fewest, len(speeds))
        has = [free.pop() for _ in range(min(len(free), rng.choice([0, 0, 1, 2, 3])))]
        has = has if fewest <= len(has) <= most else []
        known = costing(curve(*speeds), *rng.choice([(10.0, 10.0), (1.0, 30.0), (30.0, 1.0)]))
        degraded = bool(has) and rng.random() < 0.2
        jobs.append(
            trainer(
                order,
                known,
                *has,
                nodes=(fewest, most),
                run=Run(registered=True, degraded=degraded),
            )
        )
    told = rng.choice([0, 10, 10**9])
    ended = rng.choice([(), (4.0,) * len(EDGES_S)])
    stayed_s = (rng.choice([100.0, 1e4]),) * len(ended)
    seen = Fragments(ended, stayed_s, told, told // rng.choice([1, 5, 100]))
    return at(there, *jobs, seen=seen)
