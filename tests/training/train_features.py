"""A training script with what larger ones have: mixed precision, accumulation, torch.compile."""

from __future__ import annotations

import argparse
import os

import torch
from script import Traces, digest
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session, accumulated, microbatches, split

BATCH = 12


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--compile", choices=["outside", "inside"])
    # Not a multiple of the batch: the last step of an epoch is a smaller one.
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    return parser.parse_known_args()[0]


def count_exchanges(net):
    """How often the ranks exchange gradients, counted by the training itself."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    counted = [0]

    def hook(group, bucket):
        counted[0] += bucket.is_last()
        return allreduce_hook(group, bucket)

    net.register_comm_hook(None, hook)
    return counted


def compiled_now():
    """Graphs that were compiled in this process, and those found in the cache."""
    from torch._dynamo.utils import counters

    autograd, inductor = counters["aot_autograd"], counters["inductor"]
    misses = autograd["autograd_cache_miss"] + inductor["fxgraph_cache_miss"]
    return misses, autograd["autograd_cache_hit"] + inductor["fxgraph_cache_hit"]


def main():
    args = arguments()
    traces = Traces()
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 32), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # It grows every few steps, so a scale that did not come back would show.
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3, enabled=args.amp)
    session = Session(
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        deterministic=True,
        seed=5,
        checkpoint_every_s=None,
        checkpoint_every_steps=4,
    )
    if args.compile == "inside":
        net = session.parallel(torch.compile(model))
    else:
        net = session.parallel(model)
    exchanges = count_exchanges(net) if session.world_size > 1 else [0]
    if args.compile == "outside":
        net = torch.compile(net)
    if args.accumulate > 1 or args.split:
        model[2].p = 0.0
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(args.samples, 12, generator=generator)
    data = TensorDataset(torch.arange(args.samples), x, torch.arange(args.samples) % 4)
    size = BATCH // session.world_size // args.accumulate
    loader = DataLoader(data, batch_size=size, sampler=session.sampler(data))
    turns = accumulated(loader, args.accumulate) if args.accumulate > 1 else loader
    for epoch in session.epochs(args.epochs):
        for turn in session.batches(turns):
            parts = turn if args.accumulate > 1 else split(turn, args.split or BATCH)
            optimizer.zero_grad()
            seen = []
            for (index, features, label), share in microbatches(net, parts):
                seen += index.tolist()
                with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                    loss = torch.nn.functional.cross_entropy(net(features), label)
                scaler.scale(loss * share).backward()
            traces.step(session.step)
            scaler.step(optimizer)
            scaler.update()
            traces.note("step", session.step, epoch, ",".join(map(str, seen)), len(parts))
    weights = [value.detach().clone() for value in model.state_dict().values()]
    if session.rank == 0:
        torch.save(weights, f"{os.environ['SCRIPT_LOG']}.final")
    moments = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
    traces.note("final", digest(*(t.numpy() for t in [*weights, *moments])), scaler.get_scale())
    traces.note("exchanges", exchanges[0])
    traces.note("run", session.run_id)
    if args.compile:
        traces.note("compiled", *compiled_now())


if __name__ == "__main__":
    main()
