"""What adapting costs a training, by the time of its steps with and without.

Two sessions take turns in one process (on each rank), on models of one shape, 50 steps each: one
adapts, bound to the batch that it begins with, so that both make the same steps; the other one
does not. Steps in which the noise is measured, the sums over ranks, fits and reports all count. A
turn that begins with the other session makes each come first as often.

Run: ``python benchmarks/adapt.py`` and ``hpcext launch --ranks 4 python benchmarks/adapt.py``, on a
machine with a core for each rank and nothing else to do; ``[--width 512] [--turns 40]``
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session

STEPS = 50
BATCH = 64


class Trained:
    """A training that is made so many steps at a time."""

    def __init__(self, width: int, *, adapts: bool) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.session = Session(model=model, optimizer=self.optimizer, seed=1)
        if adapts:
            self.session.adapt(BATCH, max_batch_size=BATCH)
        self.net = self.session.parallel(model)
        x = torch.randn(BATCH * STEPS, width)
        data = TensorDataset(x, x.roll(1, dims=1))
        size = {} if adapts else {"global_batch": BATCH}
        batches = self.session.batch_sampler(data, **size)
        pinned = self.session.device.type == "cuda"
        self.loader = DataLoader(data, batch_sampler=batches, pin_memory=pinned)
        self._steps = self._forever()

    def turn_s(self) -> float:
        """Seconds of so many steps."""
        began_s = time.perf_counter()
        for _ in range(STEPS):
            next(self._steps)
        if self.session.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began_s

    def _forever(self) -> Iterator[None]:
        device = self.session.device
        for _ in self.session.epochs(10**9):
            for batch in self.session.batches(self.loader):
                self.optimizer.zero_grad()
                there = [part.to(device, non_blocking=True) for part in batch]
                for (x, y), share in self.session.microbatches(there):
                    (nn.functional.mse_loss(self.net(x), y) * share).backward()
                self.optimizer.step()
                yield


def both_s(width: int, turns: int, warm_up: int = 5) -> tuple[list[float], list[Trained]]:
    """Return seconds of a step without and with adapting, medians, and the trainings."""
    both = [Trained(width, adapts=adapts) for adapts in (False, True)]
    # The first ones import, allocate, and measure the noise more often.
    for each in both * warm_up:
        each.turn_s()
    times: list[list[float]] = [[], []]
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(both[which].turn_s())
    return [statistics.median(each) / STEPS for each in times], both


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--turns", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    (plain_s, adapted_s), both = both_s(args.width, args.turns)
    session = both[1].session
    if session.rank == 0:
        print(
            f"{session.world_size} ranks, {plain_s * 1e3:.2f} ms a step: "
            f"adapting takes {adapted_s / plain_s - 1:+.1%}"
        )


if __name__ == "__main__":
    main()
