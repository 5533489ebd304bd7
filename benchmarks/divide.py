"""How long a decision of ``--policy bftrainer`` takes, with its placement, beside MARBLE's.

``python benchmarks/divide.py [TIMES]``: jobs of one node and of several, none of them running, on
nodes that are too few for all; the shortest of so many runs (default: 5).
"""

from __future__ import annotations

import random
import sys
import time

from hpcext.core.estimate import Estimate
from hpcext.core.values import Cause, Job, Node, Snapshot, total
from hpcext.policies import find_policy

RNG = random.Random(3)


def job(number: int, gpus: int) -> Job:
    """One that scales somehow."""
    curve = {1: 1.0, 2: RNG.uniform(1.2, 2), 4: RNG.uniform(2, 3.5), 8: RNG.uniform(2.5, 6)}
    return Job(
        str(number), f"job-{number}", number, tuple(range(1, gpus + 1)), gpus,
        nodes=(1, RNG.choice([1, 1, 2, 4])), estimate=Estimate(stated=curve),
    )  # fmt: skip


def main(times: int) -> None:
    """Print a line for each size of a machine."""
    print("jobs x nodes x GPUs  bftrainer ms  marble ms  ratio  GPUs in use")
    for jobs, nodes, gpus in ((160, 8, 8), (1000, 64, 8), (1000, 512, 8), (1000, 64, 64)):
        queue = tuple(job(number, gpus) for number in range(jobs))
        machine = {f"n{number}": Node(f"n{number}", gpus) for number in range(nodes)}
        now = Snapshot(0.0, machine, queue, Cause.TIME)
        took = {}
        for name in ("bftrainer", "marble"):
            runs = []
            for _ in range(times):
                begin = time.perf_counter()
                target = find_policy(name)(now)
                runs.append(time.perf_counter() - begin)
            used = sum(total(grant.alloc) for grant in target.grants.values())
            took[name] = (1e3 * min(runs), used)
        ours_ms, used = took["bftrainer"]
        theirs_ms, _ = took["marble"]
        size = f"{jobs} x {nodes} x {gpus}"
        print(f"{size:19} {ours_ms:13.1f} {theirs_ms:10.1f} {ours_ms / theirs_ms:6.1f}  {used}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
