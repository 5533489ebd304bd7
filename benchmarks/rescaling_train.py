"""The training of ``rescaling.py``: one model, under a session or under torchrun alone.

Every process writes one line after each optimizer step: step, time, rank, number of ranks, and the
most memory that it has had since the line before, bytes.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hpcext.training.torch import Session, shard

LAYERS = 4
GLOBAL_BATCH = 12
SAMPLES = 1200
EPOCHS = 1_000_000
"""More than there is time for: the benchmark ends the training."""


class Training:
    """The model, its optimizer and its data; alike in every process.

    Parameters
    ----------
    parameters : int
        How many the model should have, about.
    account : file
        Where this process writes its steps.
    sharded : bool
        Whether the ranks hold the model together (FSDP2), each layer as a unit.
    """

    def __init__(self, parameters: int, account: TextIO, *, sharded: bool = False) -> None:
        torch.manual_seed(1)
        width = math.isqrt(parameters // LAYERS)
        layers: list[nn.Module] = [nn.Linear(width, width)]
        for _ in range(LAYERS - 1):
            layers += [nn.ReLU(), nn.Linear(width, width)]
        self.model: nn.Module = nn.Sequential(*layers)
        if sharded:
            shard(self.model, nn.Linear)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.data = TensorDataset(torch.randn(SAMPLES, width))
        self._account = account

    def train(self, net: nn.Module, x: torch.Tensor) -> None:
        """One optimizer step."""
        x = x.to(next(net.parameters()).device)
        self.optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(net(x), x))
        self.optimizer.step()

    def note(self, step: int, rank: int, ranks: int) -> None:
        """That step is done."""
        self._account.write(f"{step} {time.time():.6f} {rank} {ranks} {peak_bytes()}\n")


def peak_bytes() -> int:
    """The most memory that this process has had since the last call; proc(5)."""
    (line,) = re.findall(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    Path("/proc/self/clear_refs").write_text("5")
    return int(line) << 10


def with_session(training: Training) -> None:
    """As a user of hpcext writes it."""
    every = int(os.environ.get("COPY_EVERY", "0")) or None
    session = Session(
        model=training.model, optimizer=training.optimizer, seed=1, copy_every_steps=every
    )
    net = session.parallel(training.model)
    batches = session.batch_sampler(training.data, global_batch=GLOBAL_BATCH)
    loader = DataLoader(training.data, batch_sampler=batches)
    for _ in session.epochs(EPOCHS):
        for (x,) in session.batches(loader):
            training.train(net, x)
            # The session counts the step when the turn is over.
            training.note(session.step + 1, session.rank, session.world_size)


def elastic(training: Training, snapshot: Path, every: int) -> None:
    """As PyTorch's elastic examples have it: a snapshot every few steps, found after a restart."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    step = 0
    if snapshot.exists():
        state = torch.load(snapshot, weights_only=True)
        step = state["step"]
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
    net = nn.parallel.DistributedDataParallel(training.model)
    sampler: DistributedSampler[object] = DistributedSampler(training.data, seed=1)
    loader = DataLoader(training.data, batch_size=GLOBAL_BATCH // ranks, sampler=sampler)
    for x in _endless(loader, sampler):
        training.train(net, x)
        step += 1
        training.note(step, rank, ranks)
        if rank == 0 and step % every == 0:
            state = {
                "step": step,
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
            }
            torch.save(state, snapshot.with_suffix(".new"))
            os.replace(snapshot.with_suffix(".new"), snapshot)


def _endless(
    loader: DataLoader[tuple[torch.Tensor, ...]], sampler: DistributedSampler[object]
) -> Iterator[torch.Tensor]:
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            yield x


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--accounts", type=Path, required=True)
    parser.add_argument("--shard", action="store_true", help="a model of FSDP2")
    parser.add_argument("--snapshot", type=Path, help="without a session, saving here")
    parser.add_argument("--every", type=int, default=10, help="steps between two snapshots")
    args = parser.parse_args()
    with (args.accounts / str(os.getpid())).open("w", buffering=1) as account:
        training = Training(args.parameters, account, sharded=args.shard)
        if args.snapshot:
            elastic(training, args.snapshot, args.every)
        else:
            with_session(training)


if __name__ == "__main__":
    main()
