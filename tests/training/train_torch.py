"""A training script with everything that must come back: dropout, batch norm, augmentation from
three sources of random numbers, a schedule, validation, data-loader workers."""

from __future__ import annotations

import argparse
import random
import sys

import numpy as np
from script import Traces, digest

traces = Traces()
traces.point("import")

import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler  # noqa: E402

from hpcext.training.torch import Session  # noqa: E402

SAMPLES, BATCH = 120, 12


class Points(Dataset):
    """Numbered samples, with noise drawn where they are read."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(12, generator=generator) + 0.01 * torch.randn(12)
        return index, x, index % 4


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", default="sampler", choices=["sampler", "plain"])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--spawn", action="store_true")
    return parser.parse_known_args()[0]


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(12, 24),
        torch.nn.BatchNorm1d(24),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(24, 24),
        torch.nn.Tanh(),
        torch.nn.Linear(24, 4),
    )


def main():
    args = arguments()
    torch.manual_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    session = Session(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        deterministic=True,
        seed=5,
        checkpoint_every_s=None,
        on_suspend=[lambda: traces.note("callback")],
    )
    net = session.parallel(model)
    data = Points()
    options = {"batch_size": BATCH // session.world_size, "num_workers": args.workers}
    if args.spawn:
        options["multiprocessing_context"] = "spawn"
    if args.loader == "sampler":
        loader = DataLoader(data, sampler=session.sampler(data), **options)
    elif session.world_size > 1:
        loader = DataLoader(data, sampler=DistributedSampler(data), **options)
    else:
        loader = DataLoader(data, shuffle=True, **options)
    # Ranks may have different numbers of batches to validate on.
    held_out = DataLoader(data, batch_size=30 + 10 * session.rank)

    for epoch in session.epochs(args.epochs):
        net.train()
        for index, x, y in session.batches(loader):
            noise = 0.01 * random.random() + 0.01 * np.random.random()
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x + noise), y)
            loss.backward()
            traces.step(session.step)
            optimizer.step()
            traces.note("step", session.step, epoch, ",".join(map(str, index.tolist())))
            session.report(loss=loss)
        scheduler.step()
        net.eval()
        with torch.no_grad():
            for turn, (_, x, _) in enumerate(session.validation(held_out)):
                random.random()
                net(x)
                traces.point(f"validation:{epoch}:{turn}")
                traces.note("validation", epoch, turn)
    torch.rand(1)
    for turn, _ in enumerate(session.validation(held_out)):
        traces.point(f"test:{turn}")
    session.report(accuracy=0.5)
    final = [*model.state_dict().values()]
    moments = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
    rates = torch.tensor(scheduler.get_last_lr())
    drawn = torch.tensor([random.random(), np.random.random(), float(torch.rand(1))])
    traces.note("final", digest(*(t.numpy() for t in [*final, *moments, rates, drawn])))
    print("finished", session.step, file=sys.stderr)


if __name__ == "__main__":
    main()
