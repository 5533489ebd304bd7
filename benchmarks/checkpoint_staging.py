"""How long a periodic checkpoint holds the step, written beside the training and between steps.

A perceptron of 25 million parameters with Adam (300 MB of state) saves at every tenth step. Both
ways take turns in one run, on the same model and the same disk: a save in which a thread writes a
copy, then one that is written before the step goes on. *held* is from the end of a step to the
beginning of the next, less the same without a save. *step beside* is a step while the thread
writes. *written* is from the save to the commit.

Run: ``python benchmarks/checkpoint_staging.py [--parameters 25e6] [--times 7]``
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from hpcext.training.torch import Session

EVERY = 10
BATCH = 16


def width(parameters: float) -> int:
    """Of two square layers with so many parameters."""
    return round((parameters / 2) ** 0.5)


def committed(directory: Path) -> int:
    """The step of the newest checkpoint."""
    return max((int(path.name[5:14]) for path in directory.glob("step-*")), default=0)


class Figures:
    """Seconds, by what they are of."""

    def __init__(self) -> None:
        self.held: dict[bool, list[float]] = {True: [], False: []}
        self.written: dict[bool, list[float]] = {True: [], False: []}
        self.plain: list[float] = []
        self.step: list[float] = []
        self.beside: list[float] = []


def measure(directory: Path, parameters: float, times: int) -> Figures:
    """Train, and save in both ways by turns."""
    torch.manual_seed(1)
    side = width(parameters)
    model = nn.Sequential(nn.Linear(side, side), nn.ReLU(), nn.Linear(side, side))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    session = Session(
        model=model,
        optimizer=optimizer,
        checkpoint_dir=directory,
        checkpoint_every_s=None,
        checkpoint_every_steps=EVERY,
    )
    net, x = session.parallel(model), torch.randn(BATCH, side)
    figures, ended, saving = Figures(), 0.0, 0
    for _ in session.epochs(1):
        # The first save of each kind warms up.
        for number, _ in enumerate(session.batches(range(2 * EVERY * (times + 1) + EVERY))):
            begun = time.perf_counter()
            if number and number % EVERY == 0:
                staged = number // EVERY % 2 == 1
                saving = number
                figures.held[staged].append(begun - ended)
                if not staged:
                    figures.written[False].append(begun - ended)
            elif number > 1:
                figures.plain.append(begun - ended)
            running = committed(directory) < saving
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(net(x), x))
            optimizer.step()
            ended = time.perf_counter()
            (figures.beside if running else figures.step).append(ended - begun)
            if number % EVERY == EVERY - 1:
                # The writing ends before the next save, which would else wait for it.
                session.training.keeper.wait()
                session.training.staging = (number + 1) // EVERY % 2 == 1
                ended = time.perf_counter()
    return figures


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=float, default=25e6)
    parser.add_argument("--times", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="staging-", dir=Path.cwd()) as directory:
        figures = measure(Path(directory), args.parameters, args.times)
    nothing = statistics.median(figures.plain)
    held = {
        staged: statistics.median(values[1:]) - nothing for staged, values in figures.held.items()
    }
    for staged, name in ((True, "beside the training"), (False, "between the steps")):
        worst = max(figures.held[staged][1:]) - nothing
        print(f"{name:20} held {1e3 * held[staged]:8.1f} ms  worst {1e3 * worst:8.1f} ms")
    print(f"ratio {held[False] / held[True]:.1f}")
    step, beside = statistics.median(figures.step), statistics.mean(figures.beside or [0])
    print(f"step {1e3 * step:.1f} ms, while the thread writes {1e3 * beside:.1f} ms (mean)")
    print(f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
