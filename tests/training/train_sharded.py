"""A training script whose model is sharded over the ranks (FSDP2)."""

from __future__ import annotations

import argparse
import os

import torch
from script import Traces, digest
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session, shard

SAMPLES, BATCH = 120, 12


def network():
    # Widths that neither two nor three ranks divide evenly.
    return torch.nn.Sequential(
        torch.nn.Linear(12, 25),
        torch.nn.Tanh(),
        torch.nn.Linear(25, 23),
        torch.nn.Tanh(),
        torch.nn.Linear(23, 4),
    )


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", default="right")
    parser.add_argument("--every", type=int)
    args, _ = parser.parse_known_args()
    traces = Traces()
    torch.manual_seed(3)
    model = network()
    if args.order == "optimizer":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if args.order != "session":
        model = shard(model, torch.nn.Linear)
    if args.order != "optimizer":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    session = Session(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        seed=5,
        checkpoint_every_s=None,
        checkpoint_every_steps=args.every,
    )
    if args.order == "session":
        model = shard(model)
    net = session.parallel(model)
    generator = torch.Generator().manual_seed(4)
    data = TensorDataset(
        torch.arange(SAMPLES),
        torch.randn(SAMPLES, 12, generator=generator),
        torch.arange(SAMPLES) % 4,
    )
    loader = DataLoader(data, batch_size=BATCH // session.world_size, sampler=session.sampler(data))
    for epoch in session.epochs(3):
        for index, x, y in session.batches(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            traces.step(session.step)
            optimizer.step()
            traces.note(
                "step", session.step, epoch, ",".join(map(str, index.tolist())), loss.item()
            )
        scheduler.step()
    weights = [whole(value).detach() for value in model.state_dict().values()]
    moments = [whole(value) for state in optimizer.state.values() for value in state.values()]
    if session.rank == 0:
        torch.save([*weights, *moments], f"{os.environ['SCRIPT_LOG']}.final")
    held = sum(p.to_local().numel() for p in model.parameters())
    traces.note("final", digest(*(value.numpy() for value in weights)), held)


if __name__ == "__main__":
    main()
