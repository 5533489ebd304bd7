"""A regression that adapts its batch, as slow as it is told to be: a job of ``pollux_live.py``.

Its gradients are real; ``--noise`` says how much its samples differ, and so how large its batches
may be. A pass sleeps, so that many ranks fit on few cores. It ends when it has learned as much as
``--work`` samples of the first batch teach.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session

WIDTH, SAMPLES, BATCH, LR = 16, 4096, 32, 5e-4


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=float, required=True, help="of the targets")
    parser.add_argument("--work", type=float, required=True, help="samples")
    parser.add_argument("--pace", type=float, nargs=2, required=True, metavar="S",
                        help="seconds of a pass, and more per sample in it")  # fmt: skip
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, WIDTH)
    y = x.sum(dim=1, keepdim=True) + args.noise * torch.randn(SAMPLES, 1)
    data, model = TensorDataset(x, y), torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    session = Session(model=model, optimizer=optimizer, seed=1)
    session.adapt(batch_size=BATCH, lr_rule="adascale")
    net = session.parallel(model)
    loader = DataLoader(data, batch_sampler=session.batch_sampler(data))

    def train() -> None:
        for _ in session.epochs(10**6):
            for batch in session.batches(loader):
                optimizer.zero_grad()
                for (inputs, targets), share in session.microbatches(batch):
                    loss = torch.nn.functional.mse_loss(net(inputs), targets)
                    (loss * share).backward()
                    time.sleep(args.pace[0] + args.pace[1] * len(inputs))
                optimizer.step()
                if session.progress * BATCH >= args.work:
                    session.finish()
                    return

    train()


if __name__ == "__main__":
    main()
