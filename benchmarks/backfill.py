"""What a decision about rigid jobs costs as the queue grows: milliseconds of processor time.

``python benchmarks/backfill.py [TIMES] [--policy NAME] [QUEUE ...]``: a machine of 4,608 nodes on
which a job has just ended, so that a few nodes are free, and so many jobs wait (default 1000 2000
4000 8000); the shortest of so many decisions (default 5). The exponent says how the time grew with
the queue from the column before: 1 is in proportion. All in one run, and by processor time, so that
what else the machine does matters little.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time

from hpcext.core.values import Cause, Job, Node, Role, Run, Snapshot, State
from hpcext.policies import find_policy

NODES, GPUS, IDLE = 4608, 4, 40
POLICIES = ("exclusive", "marble", "fixed", "easy", "conservative")


def snapshot(waiting: int) -> Snapshot:
    """Jobs of 1 to 2,000 nodes, most of them small, each with a limit of minutes to a day."""
    rng = random.Random(waiting)
    names = [f"node{number}" for number in range(NODES)]
    jobs: list[Job] = []

    def job(nodes: int, goal: dict[str, int] | None) -> Job:
        order, walltime_s = len(jobs), rng.uniform(600.0, 86_400.0)
        one = Job(
            str(order), f"job{order}", order, (GPUS,), GPUS, nodes=(nodes, nodes),
            walltime_s=walltime_s, suspendable=False,
        )  # fmt: skip
        if goal is None:
            return one
        began_s = -rng.uniform(0.0, walltime_s)
        return Job(
            one.id, one.name, order, one.sizes, GPUS, nodes=one.nodes, walltime_s=walltime_s,
            suspendable=False, goal=goal, held=goal, role=Role.PRIMARY, state=State.RUNNING,
            run=Run(registered=True), since_s=began_s, why="runs",
        )  # fmt: skip

    rest = names[IDLE:]
    while rest:
        size = _size(rng)
        mine, rest = rest[:size], rest[size:]
        jobs.append(job(len(mine), dict.fromkeys(mine, GPUS)))
    busy = tuple(jobs)
    # The first one needs more than what is idle, as when a queue is long.
    jobs.append(job(10 * IDLE, None))
    while len(jobs) < len(busy) + waiting:
        jobs.append(job(_size(rng), None))
    nodes = {name: Node(name, GPUS) for name in names}
    return Snapshot(0.0, nodes, tuple(jobs), Cause.ENDED, busy=busy)


def _size(rng: random.Random) -> int:
    return int(2 ** rng.uniform(0.0, 11.0))


def shortest_ms(policy: str, now: Snapshot, times: int) -> tuple[float, int]:
    """Of so many decisions; and the jobs that one starts."""
    allocate, took = find_policy(policy), []
    started = len(allocate(now).grants) - len(now.busy or ())
    for _ in range(times):
        began_s = time.process_time()
        allocate(now)
        took.append(time.process_time() - began_s)
    return 1e3 * min(took), started


def main() -> None:
    """Print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("times", type=int, nargs="?", default=5)
    parser.add_argument("queues", type=int, nargs="*", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--policy", action="append")
    args = parser.parse_args()
    made = [snapshot(waiting) for waiting in args.queues]
    for policy in args.policy or POLICIES:
        rows = [
            (n, *shortest_ms(policy, now, args.times))
            for n, now in zip(args.queues, made, strict=True)
        ]
        cells = " ".join(f"{waiting}: {ms:.1f} ({started} start)" for waiting, ms, started in rows)
        grew = [
            math.log(after[1] / before[1]) / math.log(after[0] / before[0])
            for before, after in itertools.pairwise(rows)
        ]
        print(
            f"{policy:13} {cells}; exponents {' '.join(f'{each:.2f}' for each in grew)}", flush=True
        )


if __name__ == "__main__":
    main()
