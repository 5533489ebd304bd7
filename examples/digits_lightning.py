"""Train scikit-learn's handwritten digits with Lightning.

Runs alone (``python digits_lightning.py``) or on several ranks (``hpcext launch --ranks 2 -- python
digits_lightning.py``, or by torchrun). The batch is divided among the ranks, so any number of them
trains alike. Lines that end in ``# hpcext`` are what it takes to be suspended and resumed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.lightning import Suspend  # hpcext

BATCH = 60
TEST = 360


def data() -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 digits, 8 x 8 pixels, a fifth of them held out."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    test, train = order[:TEST], order[TEST:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


class Digits(pl.LightningModule):
    """Two layers with dropout."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Which part of a batch is right."""
        images, labels = batch
        right = (self.net(images).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    """Train, and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path, help="file to write the accuracy to")
    args = parser.parse_args()

    pl.seed_everything(args.seed, verbose=False)
    train, test = data()
    model = Digits(args.lr)
    suspend = Suspend()  # hpcext
    loader = suspend.loader(train, global_batch=BATCH, seed=args.seed)  # hpcext
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        devices=suspend.devices,
        accelerator="auto",
        callbacks=[suspend],  # hpcext
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, ckpt_path=suspend.checkpoint)  # hpcext

    (metrics,) = trainer.validate(model, DataLoader(test, batch_size=TEST), verbose=False)
    if trainer.is_global_zero:
        accuracy = metrics["accuracy"]
        print(
            f"accuracy {accuracy:.4f} on {TEST} held-out digits after {trainer.global_step} steps"
        )
        if args.result:
            args.result.write_text(f"{accuracy:.4f}\n")


if __name__ == "__main__":
    main()
