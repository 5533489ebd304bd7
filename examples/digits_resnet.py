"""Train a small residual network on scikit-learn's handwritten digits, until it is accurate enough.

With ``--adapt`` hpcext chooses the batch while it trains, between ``--batch`` and 32 times as many
samples, and the learning rate follows by AdaScale; without, the batch is ``--batch``. Runs alone
(``python digits_resnet.py --adapt``), on several ranks (``hpcext launch --ranks 4 python
digits_resnet.py --adapt``), and as a job of ``adaptive.toml``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session

BATCH, LR, TARGET = 32, 0.02, 0.95
HELD_OUT = 450


def data() -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 digits, 8 x 8 pixels, a quarter of them held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    held, train = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held], labels[held])


class Block(nn.Module):
    """Two convolutions beside a shortcut; halves the image.

    Normalised by groups of channels and not over the batch, so that a network is the same one
    whatever the batch.
    """

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.GroupNorm(4, out),
        )
        self.shortcut = nn.Conv2d(channels, out, 1, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As of He et al. (2016)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def network(width: int = 8) -> nn.Module:
    """A stem, two residual blocks, one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        Block(width, 2 * width),
        Block(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def optimizer_of(model: nn.Module, lr: float = LR) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Each moved by a pixel at most, in either direction."""
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, (1, 1, 1, 1), value=-1.0)
    down, right = (torch.randint(3, (count,)) for _ in range(2))
    rows = (down[:, None] + torch.arange(height))[:, :, None]
    columns = (right[:, None] + torch.arange(width))[:, None, :]
    return padded[torch.arange(count)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)


def loss_of(model: nn.Module, batch: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The mean loss of a batch to train on."""
    images, labels = batch
    scores = model(shifted(images).to(device))
    return nn.functional.cross_entropy(scores, labels.to(device))


@torch.no_grad()
def validate(model: nn.Module, held: TensorDataset, device: torch.device) -> tuple[float, float]:
    """Accuracy and loss on digits that were held out."""
    images, labels = (part.to(device) for part in held.tensors)
    scores = model(images)
    accuracy = (scores.argmax(dim=1) == labels).float().mean()
    return float(accuracy), float(nn.functional.cross_entropy(scores, labels))


def main() -> None:
    """Train to the target, and print how far that was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapt", action="store_true", help="choose the batch while training")
    parser.add_argument("--batch", type=int, default=BATCH, help="the first one, or the only one")
    parser.add_argument("--epochs", type=int, default=40, help="at most")
    parser.add_argument("--lr", type=float, default=LR, help="for the first batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, default=TARGET, help="accuracy")
    parser.add_argument("--pace", type=float, nargs=2, default=(0.0, 0.0), metavar="S",
                        help="seconds to sleep per pass, and more per sample in it")  # fmt: skip
    parser.add_argument("--result", type=Path, help="file to write the accuracy to")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, held = data()
    model = network()
    optimizer = optimizer_of(model, args.lr)

    session = Session(model=model, optimizer=optimizer, seed=args.seed)
    most = None if args.adapt else args.batch
    session.adapt(batch_size=args.batch, max_batch_size=most, lr_rule="adascale")
    net = session.parallel(model)
    loader = DataLoader(train, batch_sampler=session.batch_sampler(train))

    accuracy = 0.0
    for _ in session.epochs(args.epochs):
        for batch in session.batches(loader):
            optimizer.zero_grad()
            for part, share in session.microbatches(batch):
                (loss_of(net, part, session.device) * share).backward()
                time.sleep(args.pace[0] + args.pace[1] * len(part[0]))
            optimizer.step()
        accuracy, loss = validate(model, held, session.device)
        session.report(accuracy=accuracy, loss=loss, batch=session.adapted_batch)
        if accuracy >= args.target:
            session.finish()
            break
    if session.rank == 0:
        print(
            f"accuracy {accuracy:.4f} on {len(held)} held-out digits after {session.step} steps, "
            f"{session.statistical_epochs:.1f} statistical epochs; "
            f"the last batch had {session.adapted_batch} samples"
        )
        if args.result:
            args.result.write_text(f"{accuracy:.4f}\n")


if __name__ == "__main__":
    main()
