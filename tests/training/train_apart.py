"""A training on several ranks that may divide its data, and average its gradients, or not."""

from __future__ import annotations

import sys

import torch
from script import Traces
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from hpcext.training.torch import Session, shard

LOADER, WRAP = sys.argv[1:3]
traces = Traces()
torch.manual_seed(0 if LOADER == "same" else traces.rank)
order = torch.arange(24.0).reshape(-1, 1)
data = TensorDataset(order, order)
initial = torch.full((1, 1), 0.01)
model = torch.nn.Linear(1, 1, bias=False)
with torch.no_grad():
    model.weight.copy_(initial)
if WRAP == "sharded":
    model = shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
session = Session(model=model, optimizer=optimizer)
if WRAP == "parallel":
    net = session.parallel(model)
elif WRAP == "ddp":
    net = torch.nn.parallel.DistributedDataParallel(model)
else:
    net = model


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((row, row) for row in order[session.rank :: 2])


loaders = {
    "same": lambda: DataLoader(data, batch_size=4, shuffle=True),
    "whole": lambda: DataLoader(data, batch_size=4, shuffle=True),
    "distributed": lambda: DataLoader(data, batch_size=4, sampler=DistributedSampler(data)),
    "sampler": lambda: DataLoader(data, batch_size=4, sampler=session.sampler(data)),
    "ours": lambda: DataLoader(data, batch_sampler=session.batch_sampler(data, global_batch=8)),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
}
loader = loaders[LOADER]()
for _ in session.epochs(2):
    for x, y in session.batches(loader):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), 2 * y + 1).backward()
        if WRAP == "by hand":
            torch.distributed.all_reduce(model.weight.grad)
        optimizer.step()
        traces.note("batch", session.step, sorted(x.flatten().int().tolist()))
