"""How the cost of decisions grows with jobs and with resources.

``python benchmarks/growth.py [TIMES] [--plot FILE]``: the exact division of `apportion` alone, then
the moves of shards when a training gets one rank more, then whole decisions of policies with
their placement on nodes of 8 GPUs; the shortest of so many runs
(default: 3). The exponent says how the time grew from the line before: 1 is in proportion.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from hpcext.core.estimate import Estimate
from hpcext.core.values import Cause, Job, Node, Snapshot
from hpcext.policies import find_policy
from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.tables import ValueTable
from hpcext.training.redistribution import Change, Division

WIDE = 8


def tables(jobs: int) -> list[ValueTable]:
    """Trainers on up to 64 nodes, of a power law, some of which run now (Eq. 16)."""
    rng = np.random.default_rng(jobs)
    sizes = np.arange(65)
    found = []
    for _ in range(jobs):
        speed = rng.uniform(50, 500) * sizes ** rng.uniform(0.5, 0.95)
        now = int(rng.integers(0, 20))
        cost_s = np.select([sizes > now, sizes < now], [20.0, 5.0])
        found.append(ValueTable(sizes, 120.0 * speed - speed[now] * cost_s))
    return found


def snapshot(jobs: int, nodes: int) -> Snapshot:
    """Jobs of up to 8 GPUs that state their speeds; a few are on several nodes."""
    rng = random.Random(jobs)
    queue = []
    for number in range(jobs):
        curve = {1: 1.0, 2: rng.uniform(1.2, 2), 4: rng.uniform(2, 3.5), 8: rng.uniform(2.5, 6)}
        known = Estimate(stated=curve, work=rng.uniform(1e3, 1e5))
        queue.append(
            Job(
                str(number), f"job-{number}", number, tuple(range(1, WIDE + 1)), WIDE,
                nodes=(1, rng.choice([1, 1, 1, 4])), estimate=known,
            )
        )  # fmt: skip
    machine = {f"n{number}": Node(f"n{number}", WIDE) for number in range(nodes)}
    return Snapshot(0.0, machine, tuple(queue), Cause.TIME)


def shortest_ms(times: int, what: Callable[[], object]) -> float:
    """Of so many runs."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        what()
        took.append(time.perf_counter() - begin)
    return 1e3 * min(took)


def one_rank_more(ranks: int, tensors: int) -> None:
    """Find which rows of sharded tensors go where, as each rank does."""
    before, after = Division(ranks, ranks), Division(ranks + 1, ranks + 1)
    change = Change(before, after, tuple(range(ranks)))
    for tensor in range(tensors):
        change.moves(tensor, 1_000_000)


def series(times: int) -> dict[str, list[tuple[int, float]]]:
    """What grew → (how large, ms)."""
    found: dict[str, list[tuple[int, float]]] = {}
    sizes: Sequence[int] = (10, 100, 1000, 10_000)
    found["apportion, jobs (10 units each)"] = [
        (len(each), shortest_ms(times, lambda each=each: apportion(each, 10 * len(each))))
        for each in map(tables, sizes)
    ]
    thousand = tables(1000)
    found["apportion, units (1,000 jobs)"] = [
        (units, shortest_ms(times, lambda n=units: apportion(thousand, n)))
        for units in (100, 1000, 10_000, 100_000)
    ]
    found["shards, ranks (1,000 tensors)"] = [
        (ranks, shortest_ms(times, lambda n=ranks: one_rank_more(n, 1000)))
        for ranks in (8, 32, 128, 512)
    ]
    for name in ("bftrainer", "equal_share", "optimus", "doubling", "total_time", "pollux"):
        for what, places in (
            ("jobs (64 nodes)", [(jobs, jobs, 64) for jobs in (30, 100, 300, 1000)]),
            ("nodes (300 jobs)", [(nodes, 300, nodes) for nodes in (8, 32, 128, 512)]),
        ):
            rows = []
            for size, jobs, nodes in places:
                policy, now = find_policy(name), snapshot(jobs, nodes)
                rows.append((size, shortest_ms(times, lambda p=policy, now=now: p(now))))
            found[f"{name}, {what}"] = rows
    return found


def draw(path: str, found: dict[str, list[tuple[int, float]]]) -> None:
    """One line for each series, both axes logarithmic."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(9, 6))
    axes = figure.subplots()
    for name, rows in found.items():
        axes.loglog(*zip(*rows, strict=True), marker="o", label=name)
    axes.set_xlabel("jobs, units or nodes")
    axes.set_ylabel("ms")
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path)


def main() -> None:
    """Print a table of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("times", type=int, nargs="?", default=3)
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    found = series(args.times)
    for name, rows in found.items():
        cells = [f"{size}: {ms:.1f}" for size, ms in rows]
        grew = [
            math.log(after[1] / before[1]) / math.log(after[0] / before[0])
            for before, after in itertools.pairwise(rows)
        ]
        exponents = " ".join(f"{each:.1f}" for each in grew)
        print(f"{name:34} ms {'  '.join(cells):52} exponents {exponents}")
    if args.plot:
        draw(args.plot, found)


if __name__ == "__main__":
    main()
