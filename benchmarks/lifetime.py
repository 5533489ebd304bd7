"""What a decision of bftrainer-lifetime takes, and how far from its bound it is.

``python benchmarks/lifetime.py [TIMES]``: trainers on 1 to 64 nodes that came and will leave, of
which trainers hold four in five, or none; CPU time of a decision, the median of so many made-up
instances (default: 9), beside that of bftrainer in the same run.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from hpcext.core.estimate import Estimate
from hpcext.core.history.fragments import FragmentCounter
from hpcext.core.values import Cause, Job, Node, Run, Snapshot, State
from hpcext.policies import find_policy

LARGEST = 64
TOGETHER = 12
"""Nodes that became idle at one instant, in the mean."""

SCALE_S = 900.0


def snapshot(jobs: int, nodes: int, held: float, seed: int) -> Snapshot:
    """Some trainers, and nodes of which they hold a part."""
    rng = random.Random(seed)
    since_s = [-rng.expovariate(1 / SCALE_S) for _ in range(max(4, nodes // TOGETHER))]
    machine = {f"n{at}": Node(f"n{at}", 1, "", rng.choice(since_s)) for at in range(nodes)}
    names = rng.sample([*machine], int(held * nodes))
    queue = []
    for number in range(jobs):
        several = min(LARGEST, max(1, round(rng.gauss(held * nodes / jobs, 4))))
        goal, names = dict.fromkeys(names[:several], 1), names[several:]
        bends = rng.uniform(0.6, 0.98)
        stated = {size: size**bends for size in (1, 2, 4, 8, 16, 32, 64)}
        queue.append(
            Job(
                str(number), f"trainer-{number}", number, (1,), 1, nodes=(1, LARGEST),
                state=State.RUNNING if goal else State.PENDING, run=Run(registered=bool(goal)),
                ready=True, goal=goal or None, held=goal,
                estimate=Estimate(stated=stated, up_s=18.0, down_s=12.0),
            )
        )  # fmt: skip
    seen = FragmentCounter()
    for _ in range(3000):
        seen.left(rng.expovariate(1 / SCALE_S))
    busy = tuple(job for job in queue if job.goal)
    return Snapshot(0.0, machine, tuple(queue), Cause.NODES, None, busy, seen.fragments)


def main() -> None:
    """A line for each size."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    ours, plain = find_policy("bftrainer-lifetime"), find_policy("bftrainer")
    print("trainers  nodes  held  lifetime ms  bftrainer ms  below its bound %")
    for jobs, nodes in ((10, 400), (30, 700), (1000, 9408)):
        for held in (0.8, 0.0):
            took: dict[bool, list[float]] = {True: [], False: []}
            below = []
            for seed in range(times):
                now = snapshot(jobs, nodes, held, seed)
                for policy in (plain, ours):
                    policy(now)  # what is kept between decisions is there then
                    begin_s = time.process_time()
                    target = policy(now)
                    took[policy is ours].append(1e3 * (time.process_time() - begin_s))
                assert target.value is not None
                assert target.bound is not None
                below.append(100 * (1 - target.value / target.bound))
            a, b = (statistics.median(took[which]) for which in (True, False))
            part = statistics.median(below)
            print(f"{jobs:8}  {nodes:5}  {held:4.0%}  {a:11.1f}  {b:12.1f}  {part:17.1f}")


if __name__ == "__main__":
    main()
