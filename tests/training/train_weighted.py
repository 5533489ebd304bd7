"""One rank of a training with unequal batches; writes the gradients that it sees to a file."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hpcext.training.batching import ElasticBatches
from hpcext.training.torch.weights import attach, attach_to_output

SAMPLES, EPOCHS = 43, 2


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """The same for all: inputs (43, 6) and targets (43, 3)."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((SAMPLES, 6), (SAMPLES, 3))
    x, y = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return x, y


def fresh() -> torch.nn.Module:
    """The same for all: a small network."""
    torch.manual_seed(3)
    layers = torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    return torch.nn.Sequential(*layers).double()


def gradients(model: torch.nn.Module) -> torch.Tensor:
    found = (p.grad for p in model.parameters() if p.grad is not None)
    return torch.cat([(g.full_tensor() if isinstance(g, DTensor) else g).flatten() for g in found])


def train(model: torch.nn.Module, batches: ElasticBatches, turn: list[int]) -> list[torch.Tensor]:
    """Plain SGD; the gradients of each step."""
    x, y = data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for epoch in range(EPOCHS):
        batches.place(epoch)
        for turn[0], batch in enumerate(batches):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[batch]), y[batch]).backward()
            seen.append(gradients(model))
            optimizer.step()
    return seen


def elastic(group: dist.ProcessGroup, size: int) -> ElasticBatches:
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    return ElasticBatches(SAMPLES, global_batch=size, rank=rank, world_size=world, seed=1)


def weighted(group: dist.ProcessGroup, size: int) -> list[torch.Tensor]:
    model = DistributedDataParallel(fresh(), process_group=group)
    batches, turn = elastic(group, size), [0]
    attach(model, lambda last: batches.weight(turn[0]))
    return train(model, batches, turn)


def sharded(group: dist.ProcessGroup, size: int) -> list[torch.Tensor]:
    """As :func:`weighted`, in two units of FSDP2."""
    model, mesh = fresh(), DeviceMesh.from_group(group, "cpu")
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    batches, turn = elastic(group, size), [0]
    attach_to_output(model, lambda: batches.weight(turn[0]))
    return train(model, batches, turn)


def even(group: dist.ProcessGroup, *, hook: bool) -> torch.Tensor:
    """Three steps of float32, each rank on as many samples as the others."""
    model = DistributedDataParallel(fresh().float(), process_group=group)
    if hook:
        attach(model, lambda last: 1.0)
    x, y = (part.float()[dist.get_rank() * 7 :][:7] for part in data())
    for _ in range(3):
        torch.nn.functional.mse_loss(model(x), y).backward()
    return gradients(model)


def not_counted(group: dist.ProcessGroup) -> torch.Tensor:
    """The last rank has weight 0, and a loss that is not a number."""
    model = DistributedDataParallel(fresh(), process_group=group)
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    attach(model, lambda last: 0.0 if rank == world - 1 else world / (world - 1))
    x, y = (part[rank * 7 :][:7] for part in data())
    loss = torch.nn.functional.mse_loss(model(x), y)
    (loss * (float("nan") if rank == world - 1 else 1.0)).backward()
    return gradients(model)


def main() -> None:
    rank, rendezvous, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=3)
    groups = {3: dist.group.WORLD, 2: dist.new_group([0, 1])}
    seen = {}
    for world, group in groups.items():
        if group is not None and rank < world:
            # Batches of 10: the last one has 3 samples. Of 14: one sample, so ranks with none.
            for size in (10, 14):
                seen[f"{world} {size}"] = torch.stack(weighted(group, size))
                seen[f"{world} {size} sharded"] = torch.stack(sharded(group, size))
            seen[f"{world} plain"] = even(group, hook=False)
            seen[f"{world} hook"] = even(group, hook=True)
            seen[f"{world} nan"] = not_counted(group)
    torch.save(seen, f"{out}.{rank}")
    dist.barrier()
    # No clean-up of the file, which the last one to leave would miss.
    os._exit(0)


if __name__ == "__main__":
    main()
