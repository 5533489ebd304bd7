"""Whether balanced batches train as good a model, also where each worker holds a part of the data.

A small network on scikit-learn's digits, five workers in one process: the gradient of a step is the
mean over the samples of all, as the hook of a session makes it (tests/training/test_balanced.py).
Each worker holds two of the ten classes, and their batches are 64, 96, 128, 160 and 192, a fifth of
it, as in footnote 5 of LB-BSP; the wrong way weighs workers and not samples (eq. 5).

Run: ``python benchmarks/balance_accuracy.py [--epochs 40] [--seeds 0 1 2]``
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from hpcext.training.batching import ElasticBatches
from hpcext.training.partitions import Partitions

SIZES = (13, 19, 26, 32, 38)
TOTAL = sum(SIZES)
HELD_OUT = 397

Batches = Callable[[int], list[np.ndarray]]


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits in another order."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    x = torch.tensor(digits.data[order] / 16.0, dtype=torch.float32)
    return x, torch.tensor(digits.target[order])


def shuffled(length: int, sizes: Sequence[int], seed: int) -> Batches:
    """Each worker reads all of the data."""
    ranks = [
        ElasticBatches(length, global_batch=TOTAL, rank=rank, world_size=5, seed=seed)
        for rank in range(5)
    ]
    sources: list[list[list[list[int]]]] = []

    def of(step: int) -> list[np.ndarray]:
        steps = -(-length // TOTAL)
        if step % steps == 0:
            for rank in ranks:
                rank.divide(sizes)
                rank.place(step // steps)
            sources[:] = [list(map(list, rank)) for rank in ranks]
        turn = step % steps
        weights = [rank.weight(turn) for rank in ranks]
        return [np.array(s[turn] if w else []) for s, w in zip(sources, weights, strict=True)]

    return of


def parted(y: torch.Tensor, bound: float, seed: int) -> Batches:
    """Each worker holds two classes."""
    held = [np.flatnonzero((y // 2 == rank).numpy()) for rank in range(5)]
    partitions = Partitions(held, bound=bound, seed=seed)
    return lambda _: partitions.take(SIZES)


def accuracy(batches_of: Callable[..., Batches], seed: int, epochs: int, *, naive: bool) -> float:
    """Of what was not trained."""
    x, y = data(seed)
    own = y[:-HELD_OUT]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    batches = batches_of(own, seed)
    for step in range(epochs * -(-len(own) // TOTAL)):
        workers = [torch.as_tensor(each, dtype=torch.long) for each in batches(step) if len(each)]
        optimizer.zero_grad()
        samples = sum(map(len, workers))
        for indices in workers:
            share = 1 / len(workers) if naive else len(indices) / samples
            (nn.functional.cross_entropy(model(x[indices]), y[indices]) * share).backward()
        optimizer.step()
    with torch.no_grad():
        right = model(x[-HELD_OUT:]).argmax(1) == y[-HELD_OUT:]
    return float(right.float().mean())


WAYS: dict[str, tuple[Callable[..., Batches], bool]] = {
    "BSP, even batches": (lambda y, s: shuffled(len(y), [1] * 5, s), False),
    "balanced": (lambda y, s: shuffled(len(y), SIZES, s), False),
    "balanced, workers weighed alike": (lambda y, s: shuffled(len(y), SIZES, s), True),
    "two classes each, bound 2": (lambda y, s: parted(y, 2.0, s), False),
    "two classes each, no bound": (lambda y, s: parted(y, 1e9, s), False),
    "two classes each, no bound, workers alike": (lambda y, s: parted(y, 1e9, s), True),
}


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, (batches_of, naive) in WAYS.items():
        found = [accuracy(batches_of, seed, args.epochs, naive=naive) for seed in args.seeds]
        each = ", ".join(f"{one:.3f}" for one in found)
        print(f"{name:35} {statistics.fmean(found):.3f}  ({each})")


if __name__ == "__main__":
    main()
