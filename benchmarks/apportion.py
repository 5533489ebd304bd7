"""How long the exact division takes, beside the dynamic programme over everything.

``python benchmarks/apportion.py [TIMES]``: trainers as in BFTrainer's Eq. 16 (throughput of a
power law over 120 s, less what a change of size costs), random current sizes that fit; then
instances without a best price. Shortest of so many runs (default: 5), and the largest that was held
in memory.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np

from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.tables import ValueTable

RNG = np.random.default_rng(11)
GROW_S, SHRINK_S, FORWARD_S = 20.0, 5.0, 120.0
DENSE_MOST = 1e8
"""Operations of the dense programme that are waited for."""


def trainer(most: int, now: int) -> ValueTable:
    """Eq. 16 for one trainer that has so many nodes now."""
    sizes = np.arange(most + 1)
    speeds = np.where(
        sizes > 0, RNG.uniform(50, 500) * np.maximum(sizes, 1) ** RNG.uniform(0.5, 0.95), 0
    )
    cost_s = np.where(sizes > now, GROW_S, np.where(sizes < now, SHRINK_S, 0.0))
    return ValueTable(sizes, FORWARD_S * speeds - speeds[now] * cost_s)


def trainers(jobs: int, nodes: int, most: int = 64) -> list[ValueTable]:
    """Some of them wait, the others share what there is."""
    tables, left = [], nodes
    for _ in range(jobs):
        now = 0 if RNG.random() < 0.3 else int(RNG.integers(0, min(most, left) + 1))
        left -= now
        tables.append(trainer(most, now))
    return tables


def rigid(sizes: Sequence[int], values: Sequence[float]) -> list[ValueTable]:
    """Jobs of one size each."""
    return [
        ValueTable(np.array([0, s]), np.array([0.0, v])) for s, v in zip(sizes, values, strict=True)
    ]


def dense(tables: Sequence[ValueTable], total: int) -> float:
    """The value alone, by the programme over all options and all totals."""
    best = np.zeros(total + 1)
    for table in tables:
        row = np.full(total + 1, -np.inf)
        for size, value in zip(table.sizes.tolist(), table.values.tolist(), strict=True):
            np.maximum(row[size:], best[: total + 1 - size] + value, out=row[size:])
        best = row
    return float(best.max())


def shortest(times: int, what: Callable[[], object]) -> float:
    """Milliseconds."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        what()
        took.append(time.perf_counter() - begin)
    return 1e3 * min(took)


def main(times: int) -> None:
    """Print a line for each instance."""
    sizes = RNG.integers(20, 64, 1000).tolist()
    alike = trainer(64, 0)
    power = ValueTable(np.r_[0, 2 ** np.arange(7)], np.r_[0, (2.0 ** np.arange(7)) ** 0.8])
    instances = {
        "10 x 100": (trainers(10, 100), 100),
        "30 x 400": (trainers(30, 400), 400),
        "30 x 700": (trainers(30, 700), 700),
        "30 x 700, up to 700 each": (trainers(30, 700, 700), 700),
        "1,000 x 9,408": (trainers(1000, 9408), 9408),
        "1,000 x 50,000": (trainers(1000, 50_000), 50_000),
        "rigid": (rigid(sizes, RNG.uniform(1, 99, 1000).tolist()), 9408),
        "rigid, value = size": (rigid(sizes, [float(size) for size in sizes]), 9408),
        "rigid, value = size + 10": (rigid(sizes, [size + 10.0 for size in sizes]), 9408),
        "rigid, even, odd total": (rigid([2 * s for s in sizes], [2.0 * s for s in sizes]), 9407),
        "alike": ([alike] * 1000, 9407),
        "alike, one size": (rigid([64] * 1000, [1.0] * 1000), 9407),
        "alike, powers of two": ([power] * 1000, 9407),
    }
    print(
        f"{'jobs x units':26} {'exact ms':>9} {'dense ms':>9} {'times':>6} {'MB':>6}  bound - value"
    )
    for name, (tables, total) in instances.items():
        division = apportion(tables, total)
        ours_ms = shortest(times, lambda tables=tables, total=total: apportion(tables, total))
        tracemalloc.start()
        apportion(tables, total)
        memory = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        full = f"{'':9} {'':6}"
        if sum(len(table.sizes) for table in tables) * total < DENSE_MOST:
            begin = time.perf_counter()
            value = dense(tables, total)
            dense_ms = 1e3 * (time.perf_counter() - begin)
            full = f"{dense_ms:9.1f} {dense_ms / ours_ms:6.0f}"
            if abs(value - division.value) > 1e-9 * max(1.0, abs(value)):
                raise SystemExit(f"{name}: {division.value} is not {value}")
        print(
            f"{name:26} {ours_ms:9.2f} {full} {memory:6.1f}  {division.bound - division.value:.1g}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
