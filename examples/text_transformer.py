"""Train a small transformer on Python's own help texts, until it guesses characters well enough.

With ``--adapt`` hpcext chooses the batch while it trains, between ``--batch`` and 32 times as many
pieces of text, and the learning rate of Adam follows by the square root; without, the batch is
``--batch``. Runs alone (``python text_transformer.py --adapt``), on several ranks (``hpcext launch
--ranks 4 python text_transformer.py --adapt``), and as a job of ``adaptive.toml``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session

BATCH, LR, TARGET = 16, 1e-2, 0.4
LENGTH = 32
CHARACTERS = 128
HELD_OUT = 400


def data() -> tuple[TensorDataset, TensorDataset]:
    """What ``help()`` says, in pieces of 32 characters and the one to come; some held out."""
    text = "\n".join(topics[name] for name in sorted(topics))
    codes = torch.tensor([min(ord(character), CHARACTERS - 1) for character in text])
    pieces = codes.unfold(0, LENGTH + 1, LENGTH)
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(7))
    held, train = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(pieces[train]), TensorDataset(pieces[held])


class Layer(nn.Module):
    """Attention to what came before, and a perceptron, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised first, as of GPT-2."""
        parts = self.attention(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class Transformer(nn.Module):
    """Characters in, scores of the next character out."""

    def __init__(self, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, CHARACTERS)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """At each place, of the character after it."""
        x = self.characters(codes) + self.places[: codes.shape[1]]
        return self.scores(self.norm(self.layers(x)))


def network() -> nn.Module:
    """Two layers."""
    return Transformer()


def optimizer_of(model: nn.Module, lr: float = LR) -> torch.optim.Optimizer:
    """Adam."""
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)


def loss_of(model: nn.Module, batch: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The mean loss of a batch to train on."""
    (pieces,) = batch
    pieces = pieces.to(device)
    return nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


@torch.no_grad()
def validate(model: nn.Module, held: TensorDataset, device: torch.device) -> tuple[float, float]:
    """How many next characters are guessed, and the loss, on text that was held out."""
    pieces = held.tensors[0].to(device)
    scores, wanted = model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten()
    accuracy = (scores.argmax(dim=1) == wanted).float().mean()
    return float(accuracy), float(nn.functional.cross_entropy(scores, wanted))


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
                        help="seconds to sleep per pass, and more per piece in it")  # fmt: skip
    parser.add_argument("--result", type=Path, help="file to write the accuracy to")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, held = data()
    model = network()
    optimizer = optimizer_of(model, args.lr)

    session = Session(model=model, optimizer=optimizer, seed=args.seed)
    most = None if args.adapt else args.batch
    session.adapt(batch_size=args.batch, max_batch_size=most)
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
            f"accuracy {accuracy:.4f} on {len(held)} held-out pieces after {session.step} steps, "
            f"{session.statistical_epochs:.1f} statistical epochs; "
            f"the last batch had {session.adapted_batch} pieces"
        )
        if args.result:
            args.result.write_text(f"{accuracy:.4f}\n")


if __name__ == "__main__":
    main()
