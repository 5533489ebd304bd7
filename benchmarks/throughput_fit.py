"""How long a fit of Pollux's throughput model takes, and how near it comes.

``python benchmarks/throughput_fit.py [--data DIR] [TIMES]``: fits of 12, 24 and 100 distinct
observations with 5 % noise, shortest of so many runs (default: 5), beside the goal; and their mean
error on 20 placements that were not observed, of 30 random jobs. With the data of Pollux's
artifact, DIR/pollux/MODEL/placements.csv, the mean absolute percentage error of a fit to all of a
model's measurements (the paper says at most 10 %, section 3.2), and on the other ones when only
every second pair of GPUs and nodes is fitted.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcext.scaling.throughput import Observations, Throughput, fit

GOAL_S = 0.2
NOISE = 0.05
PLACEMENTS = [(1, 1), (2, 1), (4, 1), (2, 2), (8, 2), (16, 4)]
UNSEEN = [
    *((3, 1), (6, 1), (8, 1), (3, 2), (6, 2), (12, 2), (16, 2), (4, 4), (12, 3), (20, 3)),
    *((8, 4), (24, 4), (32, 4), (6, 6), (12, 6), (24, 6), (32, 6), (8, 8), (16, 8), (32, 8)),
]


def drawn(rng: np.random.Generator) -> Throughput:
    """A job whose step takes about a second with 32 samples."""
    constant, local = rng.uniform(0.05, 0.6), rng.uniform(0.02, 0.6)
    node = local * rng.uniform(1, 6)
    local_more, node_more = local * rng.uniform(0, 0.1), node * rng.uniform(0, 0.05)
    slope = (1 - constant) / 32
    return Throughput(constant, slope, local, local_more, node, node_more, rng.uniform(1, 6))


def observed(theta: Throughput, count: int, rng: np.random.Generator) -> Observations:
    """So many different configurations of the placements."""
    sizes = np.unique(np.rint(np.geomspace(8, 128, -(-count // len(PLACEMENTS)))))
    every = [(*placement, size) for size in sizes.tolist() for placement in PLACEMENTS][:count]
    gpus, nodes, batch = np.array(every).T
    step_s = theta.step_s(gpus, nodes, batch) * np.exp(rng.normal(0, NOISE, len(gpus)))
    return Observations(gpus.astype(int), nodes.astype(int), batch, 0 * gpus.astype(int), step_s)


def shortest(times: int, what: Callable[[], object]) -> float:
    """Seconds."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        what()
        took.append(time.perf_counter() - begin)
    return min(took)


def synthetic(times: int) -> None:
    """Print a line for each number of observations."""
    print(f"{'observations':>12} {'ms':>7} {'of goal':>8} {'slowest':>8} {'error':>7} {'worst':>7}")
    gpus, nodes = np.array(UNSEEN).T
    for count in (12, 24, 100):
        took_s, errors = [], []
        for seed in range(30):
            rng = np.random.default_rng(seed)
            theta = drawn(rng)
            seen = observed(theta, count, rng)
            found = fit(seen)
            took_s.append(shortest(times, lambda seen=seen: fit(seen)))
            off = [
                found.step_s(gpus, nodes, batch) / theta.step_s(gpus, nodes, batch) - 1
                for batch in (8, 24, 48, 128)
            ]
            errors.append(float(np.abs(off).mean()))
        middle_s = float(np.median(took_s))
        print(
            f"{count:12} {1e3 * middle_s:7.1f} {middle_s / GOAL_S:8.3f} {max(took_s) / GOAL_S:8.3f}"
            f" {np.mean(errors):7.1%} {max(errors):7.1%}"
        )


def measured(path: Path) -> Observations:
    """A model's placements.csv: GPUs of each node as digits, and seconds of a step."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    gpus = np.array([sum(int(digit) for digit in row["placement"]) for row in rows])
    return Observations(
        gpus=gpus,
        nodes=np.array([len(row["placement"]) for row in rows]),
        batch=np.array([float(row["local_bsz"]) for row in rows]),
        accumulation=np.zeros_like(gpus),
        step_s=np.array([float(row["step_time"]) for row in rows]),
    )


def error(theta: Throughput, seen: Observations) -> float:
    """Mean absolute relative error of the predicted steps."""
    return float(np.abs(theta.step_s(*seen[:4]) / seen.step_s - 1).mean())


def models(data: Path, times: int) -> None:
    """Print a line for each model."""
    print(f"\n{'model':12} {'steps':>6} {'ms':>7} {'error':>7} {'unseen':>7}")
    for path in sorted(data.glob("pollux/*/placements.csv")):
        seen = measured(path)
        took_s = shortest(times, lambda seen=seen: fit(seen))
        # Every second size: placements of the same GPUs and nodes are alike to the model.
        _, size = np.unique(100 * seen.gpus + seen.nodes, return_inverse=True)
        odd = size % 2 == 1
        half = fit(Observations(*(each[odd] for each in seen)))
        unseen = error(half, Observations(*(each[~odd] for each in seen)))
        print(
            f"{path.parent.name:12} {len(seen.gpus):6} {1e3 * took_s:7.1f}"
            f" {error(fit(seen), seen):7.1%} {unseen:7.1%}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("times", nargs="?", type=int, default=5)
    parser.add_argument("--data", type=Path)
    said = parser.parse_args()
    synthetic(said.times)
    if said.data is not None:
        models(said.data, said.times)
