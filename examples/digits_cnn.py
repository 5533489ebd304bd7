"""Train a small convolutional network on scikit-learn's handwritten digits.

Runs alone (``python digits_cnn.py``) or on several ranks (``hpcext launch --ranks 4 python
digits_cnn.py``, or torchrun), with gloo on CPUs and NCCL on GPUs. The batch is divided among the
ranks, so any number of them trains alike, also when it changes in the midst. Lines that end in
``# hpcext`` are what it takes to be suspended and resumed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session  # hpcext

BATCH = 60
TEST = 360


def data() -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 digits, 8 x 8 pixels, a fifth of them held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    test, train = order[:TEST], order[TEST:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network(width: int) -> nn.Module:
    """Two convolutions, dropout, one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 10),
    )


def main() -> None:
    """Train, and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep per sample")
    parser.add_argument("--toll", type=float, default=0.0, help="and per step and further rank")
    parser.add_argument("--result", type=Path, help="file to write the accuracy to")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = data()
    model = network(args.width)
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optim, gamma=0.8)
    loss_of = nn.CrossEntropyLoss()

    session = Session(model=model, optim=optim, schedule=schedule, seed=args.seed)  # hpcext
    model = session.parallel(model)  # hpcext
    batches = session.batch_sampler(train, global_batch=BATCH)
    loader = DataLoader(train, batch_sampler=batches)
    test_loader = DataLoader(test, batch_size=TEST)

    for _ in session.epochs(args.epochs):  # hpcext
        model.train()
        for images, labels in session.batches(loader):  # hpcext
            optim.zero_grad()
            loss = loss_of(model(images.to(session.device)), labels.to(session.device))
            loss.backward()
            optim.step()
            time.sleep(args.pace * len(labels) + args.toll * (session.world_size - 1))
            session.report(loss=loss)
        schedule.step()

    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in session.validation(test_loader):
            guess = model(images.to(session.device)).argmax(dim=1).cpu()
            right += int((guess == labels).sum())
    accuracy = right / TEST
    session.report(accuracy=accuracy)
    if session.rank == 0:
        print(f"accuracy {accuracy:.4f} on {TEST} held-out digits after {session.step} steps")
        if args.result:
            args.result.write_text(f"{accuracy:.4f}\n")


if __name__ == "__main__":
    main()
