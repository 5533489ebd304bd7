"""Pollux's decision, exact against the paper's genetic search: how long, and how good.

``python benchmarks/pollux.py [INSTANCES]``: machines of 16 nodes with 4 GPUs; jobs whose speeds are
learned from six placements each, of random parameters; allocated now is what equal shares give.
Both are judged by the same function, the paper's fitness (eq. 14) of what was placed. The search
has the paper's settings (100 matrices, 100 generations) and may deal GPUs out in any way; the exact
one gives a job as many GPUs on each of its nodes. Its time is that of the whole decision, models
fitted before; the search's that of the search alone.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from msgspec.structs import replace

from hpcext.core.estimate import Estimate, Observed
from hpcext.core.values import Cause, Job, Node, Snapshot, State
from hpcext.policies import find_policy
from hpcext.policies.placement.candidates import asks_of
from hpcext.policies.pollux import Options, genetic
from hpcext.policies.pollux.search import matrices
from hpcext.scaling.throughput import Throughput

NODES, GPUS = 16, 4
SEEN = ((1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (16, 4))


def job(number: int, rng: np.random.Generator) -> Job:
    """Its batch is fixed; what synchronising costs is drawn over two orders of magnitude."""
    grad_s = 10 ** rng.uniform(-1.5, 0)
    sync_s = grad_s * 10 ** rng.uniform(-2, 0)
    truth = Throughput(
        0.1 * grad_s, 0.9 * grad_s, sync_s, sync_s * rng.uniform(0, 0.1),
        sync_s * rng.uniform(1, 4), sync_s * rng.uniform(0, 0.2), rng.uniform(1, 5),
    )  # fmt: skip
    seen = tuple(
        Observed(gpus, nodes, float(truth.samples_per_s(gpus, nodes, 1 / gpus)), 1.0, 100.0)
        for gpus, nodes in SEEN
    )
    return Job(
        str(number), f"job-{number}", number, tuple(range(1, GPUS + 1)), GPUS, nodes=(1, NODES),
        estimate=Estimate(observed=seen), most_gpus=NODES * GPUS,
        submitted_s=float(rng.uniform(-20_000, -100)), moves=int(rng.integers(0, 4)),
    )  # fmt: skip


def machine(jobs: int, seed: int) -> Snapshot:
    """Jobs that have their equal shares now."""
    rng = np.random.default_rng(seed)
    nodes = {f"n{number}": Node(f"n{number}", GPUS) for number in range(NODES)}
    now = Snapshot(0.0, nodes, tuple(job(n, rng) for n in range(jobs)), Cause.TIME)
    grants = find_policy("equal_share")(now).grants
    running = {"state": State.RUNNING, "registered": True}
    return replace(
        now,
        jobs=tuple(
            replace(each, goal=dict(grants[each.id].alloc), **running)
            if each.id in grants
            else each
            for each in now.jobs
        ),
    )


def compare(jobs: int, seed: int) -> tuple[float, float, float, float, float]:
    """Seconds and fitness of both, and how much of its bound the exact one reaches."""
    now, options = machine(jobs, seed), Options()
    market = matrices(now, asks_of(now), options.p, options.delay_s)
    policy = find_policy("pollux")
    policy(now)  # Fits the models.
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        target = policy(now)
        took.append(time.perf_counter() - begin)
    placed = np.zeros_like(market.current)
    for row, each in enumerate(now.jobs):
        for column, node in enumerate(now.nodes):
            if each.id in target.grants:
                placed[row, column] = target.grants[each.id].alloc.get(node, 0)
    begin = time.perf_counter()
    searched = genetic.search(
        **market._asdict(), capacity=np.full(NODES, GPUS), p=options.p,
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    search_s = time.perf_counter() - begin
    both = np.stack([placed, searched])
    if not genetic.fits(both, np.full(NODES, GPUS), market.most).all():
        raise SystemExit("an allocation does not fit")
    exact, found = genetic.evaluate(
        both, market.speedups, market.current, market.factors, options.p
    )
    of_bound = (target.value or 0.0) / (target.bound or 1.0)
    return min(took), search_s, float(exact), float(found), of_bound


def main(instances: int) -> None:
    """Print a line for each number of jobs."""
    print("jobs x GPUs  exact ms  search s  times  search / exact fitness  never lower  of bound")
    for jobs in (10, 20, 40, 64, 100, 160):
        rows = np.array([compare(jobs, seed) for seed in range(instances)])
        exact_s, search_s, exact, found, of_bound = rows.T
        share = found / exact
        spread = f"{share.mean():.3f} ({share.min():.3f} to {share.max():.3f})"
        print(
            f"{jobs:4} x {NODES * GPUS}  {1e3 * np.median(exact_s):10.1f}"
            f" {np.median(search_s):9.2f} {np.median(search_s / exact_s):6.0f}  {spread}"
            f" {'yes' if (share <= 1 + 1e-9).all() else 'no':>7} {of_bound.min():10.3f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
