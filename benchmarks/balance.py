"""What balanced batches gain on unequal workers, beside plain BSP and the ideal, in one run.

Each rank is a process that computes a little and is paced: a constant per pass and a sleep per
sample, as a GPU or a core of that speed would take it. So the ideal is known: the time of an
iteration whose samples are divided best (:func:`hpcext.scaling.balance.level`) and whose ranks
exchange gradients as fast as those of a step of no samples do, which is measured. With
``--changing N`` another rank is three times as slow for N iterations, in turn; the ideal knows
when.

Run: ``hpcext launch --ranks 4 python benchmarks/balance.py [--changing 60] [--mode gpu]
[--iterations 300]``. Ways take turns in blocks, so that what else the machine does meets all of
them. ``--cost`` prints instead what the exchange and the rule take of a boundary at 4 ranks, and
the rule at 96.

With ``--quotas DIR`` ranks are not paced but really slow: they train a small convolutional network,
each on one thread in a control group below DIR (``/sys/fs/cgroup/cpu``, or of version 2
``/sys/fs/cgroup``; needs root) that gives it a share of a core, see ``benchmarks/quotas.py``;
``--changing N`` makes other quotas come and go every N steps. ``--save FILE`` puts the figures into
a file (``hpcext/papers/lb_bsp/measured.json`` is what ``hpcext reproduce lb-bsp`` prints).
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Iterator

import quotas
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcext.scaling.balance import Line, level
from hpcext.training.balance import Balance, MeasuredBatch
from hpcext.training.torch import Session

BATCH, BLOCK = 128, 50
PACES = (Line(0.02, 0.0006), Line(0.02, 0.0012), Line(0.03, 0.0024), Line(0.03, 0.0048))
"""Constant and seconds per sample of each rank."""

SLOWER = 3.0
"""A sample of a rank, while its speed is another one."""

LIMITED_BATCH, LIMITED_BLOCK = 256, 20
"""With --quotas."""

WAYS = ("plain", "affine", "best", "speeds", "leader")
UNPACED = ("unpaced", "unpaced, balanced")


def pace(rank: int, step: int, *, changing: int | None) -> Line:
    """How fast this rank is in this step."""
    line = PACES[rank % len(PACES)]
    slow = quotas.slowed(rank, step, len(PACES), changing)
    return Line(line.constant_s, line.per_sample_s * (SLOWER if slow else 1.0))


def ideal_s(step: int, ranks: int, *, changing: int | None) -> float:
    """The slowest rank of the best division of a step."""
    lines = [pace(rank, step, changing=changing) for rank in range(ranks)]
    sizes = level(lines, BATCH, [1] * ranks, [BATCH] * ranks)
    return max(line.at(size) for line, size in zip(lines, sizes, strict=True))


class Trained:
    """A training by one way, made so many steps at a time."""

    def __init__(self, way: str, args: argparse.Namespace) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.session = Session(model=model, optimizer=self.optimizer, seed=1)
        if way in WAYS[1:]:
            self.session.balance(args.mode, rule=way)
        elif way == "unpaced, balanced":
            self.session.balance(args.mode)
        self.net = self.session.parallel(model)
        data = TensorDataset(torch.randn(BATCH * 200, 64))
        sampler = self.session.batch_sampler(data, global_batch=BATCH)
        self.loader = DataLoader(data, batch_sampler=sampler)
        self.paced, self.changing = not way.startswith("unpaced"), args.changing
        self.step = 0
        self.own_s: list[float] = []
        self._steps = self._forever()

    def block(self) -> list[float]:
        """Seconds of each of some steps."""
        times = []
        for _ in range(BLOCK):
            began_s = time.perf_counter()
            next(self._steps)
            times.append(time.perf_counter() - began_s)
        return times

    def _forever(self) -> Iterator[None]:
        rank = self.session.rank
        for _ in self.session.epochs(10**9):
            for (x,) in self.session.batches(self.loader):
                began_s = time.perf_counter()
                self.optimizer.zero_grad()
                loss = self.net(x.to(self.session.device)).square().mean()
                if self.paced:
                    time.sleep(pace(rank, self.step, changing=self.changing).at(len(x)))
                self.own_s.append(time.perf_counter() - began_s)
                loss.backward()
                self.optimizer.step()
                self.step += 1
                yield


class Limited:
    """A training under a quota, by one way."""

    def __init__(self, way: str, args: argparse.Namespace, quota: quotas.Quota) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 1, 3)
        )
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.session = Session(model=model, optimizer=self.optimizer, seed=1)
        if way != "plain":
            self.session.balance(args.mode, rule=way)
        self.net = self.session.parallel(model)
        data = TensorDataset(torch.randn(LIMITED_BATCH * 20, 3, 32, 32))
        sampler = self.session.batch_sampler(data, global_batch=LIMITED_BATCH)
        self.loader = DataLoader(data, batch_sampler=sampler)
        self.changing, self.quota = args.changing, quota
        self.steps: list[quotas.Step] = []
        self._turns = self._forever()

    def block(self) -> None:
        """Some steps."""
        for _ in range(LIMITED_BLOCK):
            began_s = time.perf_counter()
            own_s, samples = next(self._turns)
            self.steps.append(quotas.Step(time.perf_counter() - began_s, own_s, samples))

    def _forever(self) -> Iterator[tuple[float, int]]:
        rank, ranks = self.session.rank, self.session.world_size
        there = [0.0]

        def note(_: torch.Tensor) -> None:
            there[0] = time.perf_counter()

        for _ in self.session.epochs(10**9):
            for (x,) in self.session.batches(self.loader):
                self.quota.set(quotas.cores(rank, len(self.steps), ranks, self.changing))
                began_s = time.perf_counter()
                self.optimizer.zero_grad()
                # Its gradient is the last one that a rank computes.
                x.requires_grad_()
                x.register_hook(note)
                self.net(x).square().mean().backward()
                self.optimizer.step()
                yield there[0] - began_s, len(x)


def compare_limited(args: argparse.Namespace) -> None:
    """Train by each way under quotas, print, and save."""
    with quotas.quota(args.quotas) as quota:
        ways = {way: Limited(way, args, quota) for way in WAYS[:3]}
        for _ in range(args.iterations // LIMITED_BLOCK):
            for training in ways.values():
                training.block()
    session = ways["plain"].session
    rows = {way: quotas.gathered(session, training.steps) for way, training in ways.items()}
    if session.rank == 0:
        quotas.report("PyTorch", quotas.compare(rows, args.changing), args)


def gap(trainings: Trained) -> float:
    """How much longer the slowest rank takes than the fastest, as a share of the slowest's time;
    over the second half of the steps."""
    half = trainings.own_s[len(trainings.own_s) // 2 :]
    device = trainings.session.device
    mine = torch.tensor([statistics.fmean(half)], dtype=torch.float64, device=device)
    all_of = [torch.zeros_like(mine) for _ in range(trainings.session.world_size)]
    torch.distributed.all_gather(all_of, mine)
    slowest, fastest = float(max(all_of)), float(min(all_of))
    return 1 - fastest / slowest


def compare(args: argparse.Namespace) -> None:
    """Train by each way, and print."""
    trainings = {way: Trained(way, args) for way in (*WAYS, *UNPACED)}
    ranks = trainings["plain"].session.world_size
    times: dict[str, list[float]] = {way: [] for way in trainings}
    for _ in range(args.iterations // BLOCK):
        for way, training in trainings.items():
            times[way] += training.block()
    exchange_s = statistics.median(times["unpaced"])
    best = [ideal_s(step, ranks, changing=args.changing) for step in range(len(times["plain"]))]
    best_s = statistics.fmean(best) + exchange_s
    gaps = {way: gap(trainings[way]) for way in WAYS}
    if trainings["plain"].session.rank:
        return
    plain_s = statistics.fmean(times["plain"])
    cost_s = statistics.median(times[UNPACED[1]]) - exchange_s
    print(f"{ranks} ranks, {'changing' if args.changing else 'static'} load, mode {args.mode}:")
    print(f"ideal {best_s * 1e3:.1f} ms, of which {exchange_s * 1e3:.1f} are no pace's")
    print(f"to balance takes {cost_s * 1e3:+.2f} ms of a step, {cost_s / best_s:+.1%} of the ideal")
    for way in WAYS:
        mean_s = statistics.fmean(times[way])
        half = len(best) // 2
        late = statistics.fmean(times[way][half:]) / (statistics.fmean(best[half:]) + exchange_s)
        print(
            f"{way:7} {mean_s * 1e3:6.1f} ms, {mean_s / best_s - 1:+6.1%} of the ideal "
            f"(second half {late - 1:+6.1%}), {mean_s / plain_s - 1:+6.1%} of plain; "
            f"gap {gaps[way]:.0%}"
        )


def cost() -> None:
    """Print what a boundary costs."""
    for ranks, times in ((4, 2000), (96, 500)):
        for name in WAYS[1:]:
            balance = Balance(name, (1, None), waits=True)
            balance.meet([f"node{rank} cpu/0" for rank in range(ranks)], 32 * ranks)
            lines = [Line(0.1, 0.001 * (1 + rank % 7)) for rank in range(ranks)]
            took = []
            for turn in range(2 * times):
                if turn == times:
                    tracemalloc.start()
                told = [
                    balance.tell(MeasuredBatch(size, line.at(size), 1.0), 0.1, turn)
                    for line, size in zip(lines, balance.sizes, strict=True)
                ]
                began_s = time.perf_counter()
                balance.hear(told)
                if turn < times:
                    took.append(time.perf_counter() - began_s)
            grown = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            print(
                f"{name:7} at {ranks:2} workers: {statistics.median(took) * 1e6:.0f} us a step, "
                f"{grown / 1024:+.1f} KiB over {times} steps"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    quotas.add_options(parser)
    parser.add_argument("--mode", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--cost", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.cost:
        cost()
    elif args.quotas:
        compare_limited(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
