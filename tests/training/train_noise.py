"""One rank of a model whose noise is known: measures it in every way and writes what it found.

The loss of a sample x is w . x, so its gradient is x: |g|^2 is that of the mean of x, and the trace
of the covariance is the sum of the variances.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcext.training.accumulation import microbatches, samples_of, split
from hpcext.training.adapt.noise import Squares
from hpcext.training.batching import ElasticBatches
from hpcext.training.torch.noise import Squared
from hpcext.training.torch.weights import attach

STEPS, BATCH, SIZE = 300, 24, 30
SIGNAL, NOISE = 2.0, 48.0


class Dot(torch.nn.Module):
    """w . x, in two parameters, so that there is something to add up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(SIZE // 2))
        self.second = torch.nn.Parameter(torch.zeros(SIZE - SIZE // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.cat([self.first, self.second])


def data(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    mean = torch.full((SIZE,), (SIGNAL / SIZE) ** 0.5)
    deviation = torch.linspace(0.5, 1.5, SIZE)
    deviation *= (NOISE / deviation.square().sum()) ** 0.5
    return mean + deviation * torch.randn(count, SIZE, generator=generator)


def places(size: int, passes: int) -> torch.Tensor:
    """An order of a step in which its pieces are the same whoever makes them.

    Ranks take every so-manieth sample, and passes one stretch after the other.
    """
    length = BATCH // (size * passes)
    place = torch.arange(BATCH)
    rank, turn = place % size, place // size
    return (rank * passes + turn // length) * length + turn % length


def measure(batch: int, passes: int, *, scale: float = 1.0) -> list[Squares]:
    """What a step of so many samples on all ranks, each in so many passes, gives, step by step."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    x = data(STEPS * batch)
    if batch == BATCH:
        x = x.view(STEPS, batch, SIZE)[:, places(size, passes)].view(-1, SIZE)
    batches = ElasticBatches(len(x), global_batch=batch, rank=rank, world_size=size, shuffle=False)
    model: torch.nn.Module = Dot()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    squared = Squared([optimizer], lambda: scale)
    turn = [0]
    if size > 1:
        model = DistributedDataParallel(model)
        attach(model, lambda last: batches.weight(turn[0]))
    found = []
    for turn[0], indices in enumerate(batches):
        mine = x[indices]
        weight = batches.weight(turn[0]) / size
        optimizer.zero_grad()
        pieces = spread = 0.0
        squared.watch()
        for part, share in microbatches(model, split(mine, -(-samples_of(mine) // passes))):
            (model(part).mean() * share * scale).backward()
            pieces += 1.0
            spread += weight * float(squared.take()) / share
        squared.leave()
        total = torch.tensor([pieces, spread], dtype=torch.float64)
        if size > 1:
            dist.all_reduce(total)
        found.append(Squares(float(total[0]), batch, float(total[1]), float(squared.gradients())))
        optimizer.step()
    return found


def differenced(batch: int) -> list[Squares]:
    """By two steps each."""
    model = Dot()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    squared = Squared([optimizer], lambda: 1.0)
    found = []
    for part in split(data(STEPS * batch), batch):
        optimizer.zero_grad()
        model(part).mean().backward()
        told = squared.difference(batch)
        if told is not None:
            found.append(Squares(2, told[2], float(told[0]), float(told[1])))
    return found


def main() -> None:
    rank, world, rendezvous, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world
        )
    cases = {
        # The same four pieces at every number of ranks.
        "pieces": measure(BATCH, 4 // world),
        # Ranks with unequal parts; at one of them in three passes, the last one smaller.
        "unequal": measure(BATCH - 1, 3 if world == 1 else 1),
        "accumulated": measure(BATCH - 1, 4),
        "scaled": measure(BATCH, 4 // world, scale=1024.0),
    }
    if world == 1:
        cases["halves"] = measure(BATCH, 2)
        cases["differenced"] = differenced(BATCH)
    (Path(out) / f"{world}-{rank}.json").write_text(json.dumps(cases))
    if world > 1:
        dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
