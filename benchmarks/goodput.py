"""How long it takes to find the best batch on given GPUs, and how good that is.

``python benchmarks/goodput.py [TIMES]``: for jobs with little and much room in memory, the time for
one number of GPUs and for 64 of them at once, shortest of so many runs (default: 20), beside the
goal and beside a search over all whole numbers; and the most goodput that is lost against that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from hpcext.scaling.goodput import Goodput
from hpcext.scaling.throughput import Throughput

GOAL_S = 0.4e-3
THETA = Throughput(0.0102, 0.000783, 0.0405, 0.00476, 0.131, 0.00236, 2.82)
"""As fitted to the cifar10 measurements of Pollux's artifact."""

JOBS = {
    "room for 32": Goodput(THETA, 1000.0, 128, 4096, most_per_gpu=32),
    "room for 1,024": Goodput(THETA, 1000.0, 128, 4096, most_per_gpu=1024),
    "room for 32,768": Goodput(THETA, 30_000.0, 1024, 32_768, most_per_gpu=32_768),
    "no accumulation": Goodput(THETA, 1000.0, 128, 4096, most_per_gpu=1024, accumulates=False),
    "fixed batch": Goodput(THETA, 1000.0, 1000, 1000, most_per_gpu=300),
}
GPUS = np.arange(1, 65)
NODES = (GPUS + 3) // 4


def shortest(times: int, what: Callable[[], object]) -> float:
    """Seconds."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        what()
        took.append(time.perf_counter() - begin)
    return min(took)


def tried(job: Goodput, gpus: int, nodes: int) -> float:
    """The best goodput over all whole numbers of samples and passes."""
    most, room = job.most_batch, job.most_per_gpu
    if most is None or room is None:
        raise SystemExit("a search over all needs bounds")
    best = 0.0
    for passes in range(1, most // gpus + 1 if job.accumulates else 2):
        # The last total may be cut to the most.
        batch = np.arange(
            -(-job.initial_batch // (gpus * passes)), min(room, -(-most // (gpus * passes))) + 1
        )
        if len(batch):
            total = np.minimum(gpus * batch * passes, most)
            step_s = job.throughput.step_s(gpus, nodes, batch, passes - 1)
            best = max(best, float((total * job.statistical_efficiency(total) / step_s).max()))
    return best


def main(times: int) -> None:
    """Print a line for each job."""
    heads = f"{'one ms':>7} {'of goal':>8} {'64, each':>9} {'of goal':>8} {'all':>7} {'lost':>8}"
    print(f"{'':16} {heads}")
    for name, job in JOBS.items():
        one_s = shortest(times, lambda job=job: job.best(8, 2))
        each_s = shortest(times, lambda job=job: job.best(GPUS, NODES)) / len(GPUS)
        all_s = shortest(1, lambda job=job: tried(job, 8, 2))
        found = job.best(GPUS, NODES).goodput
        pairs = zip(GPUS.tolist(), NODES.tolist(), strict=True)
        best = np.array([tried(job, gpus, nodes) for gpus, nodes in pairs])
        lost = float((1 - found[best > 0] / best[best > 0]).max())
        print(
            f"{name:16} {1e3 * one_s:7.3f} {one_s / GOAL_S:8.2f} {1e3 * each_s:9.3f}"
            f" {each_s / GOAL_S:8.2f} {all_s / one_s:6.1f}x {max(0.0, lost):8.2%}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
