"""A training whose ranks are paced, and balanced; writes down what each rank did in each step."""

from __future__ import annotations

import argparse
import time

import torch
from script import Traces, digest
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session, microbatches, split

SAMPLES, BATCH = 600, 24
PACE_S = (0.002, 0.008, 0.004)
"""Seconds per sample of each rank."""


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--mode", default="cpu")
    parser.add_argument("--rule", default="affine")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--swap", type=int, help="step from which on the fastest are the slowest")
    parser.add_argument("--adapt", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--passes", type=int, default=0, help="samples of a pass")
    return parser.parse_known_args()[0]


def digest_of(model):
    return digest(*(p.detach().numpy() for p in model.parameters()))


def main():
    args = arguments()
    traces = Traces()
    torch.manual_seed(3)
    x = torch.randn(SAMPLES, 16, dtype=torch.float64)
    y = x @ torch.ones(16, 1, dtype=torch.float64) + 8 * torch.randn(SAMPLES, 1).double()
    data = TensorDataset(torch.arange(SAMPLES), x, y)
    model = torch.nn.Linear(16, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=args.amp)
    session = Session(
        model=model, optimizer=optimizer, scaler=scaler, seed=5, checkpoint_every_s=None
    )
    size = {"global_batch": BATCH}
    if args.adapt:
        session.adapt(batch_size=BATCH, max_batch_size=4 * BATCH, lr_rule="adascale", every_s=0.2)
        size = {}
    if not args.plain:
        session.balance(args.mode, rule=args.rule)
    net = session.parallel(model)
    sampler = session.batch_sampler(data, **size)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=args.workers)
    paces = list(PACE_S)
    for epoch in session.epochs(args.epochs):
        for batch in session.batches(loader):
            optimizer.zero_grad()
            if session.step == args.swap:
                paces.reverse()
            traces.step(session.step)
            seen = batch[0].tolist()
            weight = session.training.loop.weight()
            time.sleep(paces[session.rank] * len(seen))
            if args.passes:
                passes = microbatches(net, split(batch, args.passes))
            else:
                passes = session.microbatches(batch)
            for (_, a, b), share in passes:
                loss = torch.nn.functional.mse_loss(net(a), b) * share
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            # A rank without a sample makes one of the others' that does not count.
            counted = ",".join(map(str, seen)) if weight > 0 else "-"
            traces.note("step", session.step, epoch, counted, digest_of(model))
    traces.note("ends", *weights_of(model))


def weights_of(model):
    return [each for p in model.parameters() for each in p.detach().flatten().tolist()]


if __name__ == "__main__":
    main()
