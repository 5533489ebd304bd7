"""A training in PyTorch whose checkpoints take some megabytes; it ends when a file is there."""

from __future__ import annotations

import os
import time

import torch

from hpcext.training.torch import Session

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = Session(
    model=model,
    optimizer=optimizer,
    generator=torch.Generator(),
    ballast=torch.nn.Linear(1000, 500),
    seed=1,
    checkpoint_every_s=None,
    checkpoint_every_steps=40,
)
net = session.parallel(model)
log = open(os.environ["SCRIPT_LOG"], "a", buffering=1)  # noqa: SIM115
for _ in session.epochs(1):
    for _ in session.batches(range(1_000_000)):
        time.sleep(0.02)
        optimizer.zero_grad()
        net(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        if session.rank == 0:
            print(os.environ["HPCEXT_ATTEMPT"], session.step + 1, file=log)
        ended = torch.tensor([os.path.exists(os.environ["SCRIPT_END"])], dtype=torch.int)
        if session.world_size > 1:
            torch.distributed.all_reduce(ended)
        if ended:
            break
