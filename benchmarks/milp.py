"""How long the paper's integer programme takes (BFTrainer, Eq. 1-16), beside the exact kernel.

``python benchmarks/milp.py [LIMIT_S [JOBSxNODES ...]]``: trainers of the paper's Table 2, a random
current map, and what a plan costs the kernel (the best of five runs), HiGHS and CBC (one run each,
cut off after LIMIT_S seconds, default: 100). What PuLP needs to write the model down is in a column
of its own, and in no ratio. A solver that was cut off has the best value and the bound that it knew
then, as parts of the optimum.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.milp import Trainer, gain_table, solve_map
from hpcext.policies.solve.solvers import Search, SearchLimit, cbc, highs

NODES = (1, 2, 4, 8, 16, 32, 64)
SAMPLES_PER_S = {
    # Liu et al., BFTrainer, Table 2: ImageNet on Summit, 32 per GPU, thousands of samples/s.
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
}
FORWARD_S, GROW_S, SHRINK_S = 120.0, 20.0, 5.0


def trainers(jobs: int) -> list[Trainer]:
    """The seven models in turn."""
    rows = list(SAMPLES_PER_S.values())
    return [
        Trainer(
            1,
            64,
            {0: 0.0, **{n: 1e3 * s for n, s in zip(NODES, rows[j % len(rows)], strict=True)}},
            GROW_S,
            SHRINK_S,
        )
        for j in range(jobs)
    ]


def current(jobs: int, nodes: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A feasible map: three in ten wait, the others have some of what the ones before left."""
    held = np.zeros((jobs, nodes), dtype=bool)
    free = rng.permutation(nodes).tolist()
    for j in range(jobs):
        if rng.random() < 0.7 and free:
            count = int(rng.integers(1, min(64, len(free)) + 1))
            held[j, [free.pop() for _ in range(count)]] = True
    return held


class Timed:
    """A solver that knows what its searches took."""

    def __init__(self, solver: Callable[[Any, SearchLimit], Search]) -> None:
        self.solver = solver
        self.took_s = 0.0

    def __call__(self, problem: Any, limit: SearchLimit) -> Search:
        """Search."""
        begin = time.perf_counter()
        search = self.solver(problem, limit)
        self.took_s = time.perf_counter() - begin
        return search


def main(limit_s: float, sizes: list[tuple[int, int]]) -> None:
    """Print a line for each size and solver."""
    print("jobs x nodes  kernel ms  solver  model s   solver s    ratio  value and bound / optimum")
    for jobs, nodes in sizes:
        some, held = trainers(jobs), current(jobs, nodes, np.random.default_rng(jobs * nodes))
        has = held.sum(axis=1).tolist()
        runs = []
        for _ in range(5):
            begin = time.perf_counter()
            pairs = zip(some, has, strict=True)
            exact = apportion([gain_table(each, n, FORWARD_S) for each, n in pairs], nodes)
            runs.append(time.perf_counter() - begin)
        kernel_s = min(runs)
        for name, solver in (("HiGHS", highs), ("CBC", cbc)):
            timed = Timed(partial(solver, time_s=limit_s))
            begin = time.perf_counter()
            answer = solve_map(some, held, FORWARD_S, solver=timed)
            model_s = time.perf_counter() - begin - timed.took_s
            cut = " " if answer.proven else ">"
            parts = f"{answer.value / exact.value:.7f} {answer.bound / exact.value:.7f}"
            print(
                f"{f'{jobs} x {nodes}':12} {1e3 * kernel_s:10.2f}  {name:6} {model_s:8.2f}"
                f" {cut}{timed.took_s:9.2f} {cut}{timed.took_s / kernel_s:7.0f}  {parts}",
                flush=True,
            )
            if answer.proven and abs(answer.value - exact.value) > 1e-6 * exact.value:
                raise SystemExit(f"{name}: {answer.value} is not {exact.value}")


if __name__ == "__main__":
    given = [tuple(map(int, size.split("x"))) for size in sys.argv[2:]]
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 100.0,
        [(jobs, nodes) for jobs, nodes in given] or [(10, 100), (30, 400), (30, 700)],
    )
