"""A training script that adapts its batch, and writes down what each rank did in each step."""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
from script import Traces, digest
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session

SAMPLES = 900


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--until", type=int, help="ask for suspension at this batch")
    parser.add_argument("--die", type=int, help="step in which rank 1 dies after it exchanged")
    return parser.parse_known_args()[0]


def main():
    args = arguments()
    traces = Traces()
    torch.manual_seed(3)
    x = torch.randn(SAMPLES, 64)
    # So much noise that a larger batch is worth it.
    y = x @ torch.ones(64, 1) + 16 * torch.randn(SAMPLES, 1)
    data = TensorDataset(torch.arange(SAMPLES), x, y)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    session = Session(
        model=model, optimizer=optimizer, seed=5, checkpoint_every_s=None, checkpoint_every_steps=20
    )
    session.adapt(batch_size=6, max_batch_size=48, lr_rule="adascale", every_s=0.2)
    net = session.parallel(model)
    loader = DataLoader(data, batch_sampler=session.batch_sampler(data))
    traces.note("begins", session.adapted_batch, session.noise_scale, session.progress)
    for epoch in session.epochs(args.epochs):
        for batch in session.batches(loader):
            optimizer.zero_grad()
            seen = []
            for (index, a, b), share in session.microbatches(batch):
                seen += index.tolist()
                # As on a GPU: a pass has a part that does not depend on its samples.
                time.sleep(0.008)
                (torch.nn.functional.mse_loss(net(a), b) * share).backward()
            if args.die == session.step and session.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            while session.adapting.agent._thread.busy():
                # On a busy machine the first fit, which imports SciPy, could outlast the training.
                time.sleep(0.01)
            traces.note("step", session.step, epoch, ",".join(map(str, seen)), digest_of(model))
            if args.until and session.adapted_batch >= args.until and session.rank == 0:
                os.kill(os.getpid(), signal.SIGTSTP)
                args.until = None
    traces.note("ends", session.adapted_batch, session.noise_scale, session.progress)


def digest_of(model):
    return digest(*(p.detach().numpy() for p in model.parameters()))


if __name__ == "__main__":
    main()
