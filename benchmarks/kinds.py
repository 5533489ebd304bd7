"""How long the division of several kinds of GPUs takes, and how near to its bound it is.

``python benchmarks/kinds.py [TIMES]``: jobs with a power law of their own on each kind, at random
sizes on one of them or waiting (throughput over 120 s, less what a change costs, as in BFTrainer's
Eq. 16); four machines of each size. Shortest of so many runs (default: 3), beside the division of
as many GPUs of one kind.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.kinds import share
from hpcext.policies.solve.tables import ValueTable

CHANGE_S, STOP_S, FORWARD_S = 20.0, 5.0, 120.0
MACHINES = 4


def offer(
    rng: np.random.Generator, kinds: Mapping[str, int], most: int, now: tuple[str, int]
) -> dict[str, ValueTable]:
    """One job that has so many of a kind now."""
    sizes = np.arange(most + 1)
    speed = rng.uniform(50, 500)
    speeds = {kind: speed * rng.uniform(0.5, 2) * sizes ** rng.uniform(0.5, 0.95) for kind in kinds}
    has = float(speeds[now[0]][now[1]])
    found = {}
    for kind in kinds:
        cost_s = np.where((sizes == now[1]) & (kind == now[0] or now[1] == 0), 0.0, CHANGE_S)
        cost_s[0] = STOP_S
        found[kind] = ValueTable(sizes, FORWARD_S * speeds[kind] - has * cost_s)
    return found


def offers(
    rng: np.random.Generator, jobs: int, totals: Mapping[str, int], most: int = 64
) -> list[dict[str, ValueTable]]:
    """Some of them wait, the others share what there is."""
    found, left = [], dict(totals)
    for _ in range(jobs):
        kind = str(rng.choice(list(totals)))
        count = 0 if rng.random() < 0.3 else int(rng.integers(0, min(most, left[kind]) + 1))
        left[kind] -= count
        found.append(offer(rng, totals, most, (kind, count)))
    return found


def shortest(times: int, what: Callable[[], object]) -> float:
    """Milliseconds."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        what()
        took.append(time.perf_counter() - begin)
    return 1e3 * min(took)


def main(times: int) -> None:
    """Print a line for each machine."""
    sizes = {
        "30 x 96": (30, {"a": 64, "b": 32}),
        "100 x 1,000": (100, {"a": 500, "b": 300, "c": 200}),
        "1,000 x 4,096": (1000, {"a": 2048, "b": 1024, "c": 512, "d": 512}),
    }
    print(
        f"{'jobs x GPUs':14} {'kinds':>5} {'ms':>7} {'one kind ms':>11} {'ratio':>6}  gap / bound"
    )
    for name, (jobs, totals) in sizes.items():
        for seed in range(MACHINES):
            tables = offers(np.random.default_rng(seed), jobs, totals)
            first = [next(iter(each.values())) for each in tables]
            total = sum(totals.values())
            found = share(tables, totals)
            ours_ms = shortest(times, lambda tables=tables, totals=totals: share(tables, totals))
            one_ms = shortest(times, lambda first=first, total=total: apportion(first, total))
            print(
                f"{name:14} {len(totals):5} {ours_ms:7.1f} {one_ms:11.2f} {ours_ms / one_ms:6.0f}"
                f"  {found.gap / found.bound:.1e}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
