"""Record how fast workers train beside load that comes and goes, for ``hpcext reproduce lb-bsp``.

``python benchmarks/record_speeds.py OUT.csv.gz [--workers 4] [--iterations 1500] [--seed 1]``: each
worker trains a small network in PyTorch on a core of its own, one thread, always the same batch,
and writes a line for each iteration. As many at once as there are cores; the others afterwards.

Beside each worker, on its core, two processes replay the tasks of a shared machine, as in section
5.3 of LB-BSP (Chen et al., SoCC 2020), whose tasks are those of Google's trace. Such a process
waits and works in turn, for times that are drawn from exponential distributions; each task has a
share of a core that it asks for, memory that it holds, and computes in it or streams through it.
Which ones, the seed and the number of the worker say alone. (The stragglers of Alibaba, which other
data for replay have, do not suit: a line in ten seconds, and of neither CPU nor memory.)

The clock is the CPU time that a worker and its load have had together: it stands still while
something else has their core. So they have a core of their own, whatever else the machine does, and
only caches and memory are shared with that.

Columns: worker; speed, samples a second; cpu, the CPU time that the worker had in the iteration as
a share of its length; running, how many processes of its load want the core at the end of it;
memory, GiB that worker and load hold then.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BATCH = 256
"""An iteration is longer than a turn on the core, as one of several seconds in the paper is: else
it is chance who had the turns."""

WIDTH = 768

BESIDE = 2
"""Processes of load on a worker's core."""

WAITS_S, WORKS_S = 3.6, 3.0
"""Means; nearly a hundred iterations, for the load of a shared machine changes less often than a
training steps."""

UNEQUAL = (0.6, 1.0, 1.6, 2.5)
"""How much longer the load of each worker waits: workers are unequal in the mean as well."""

SHARES = (0.2, 0.5, 1.0)
MEGABYTES = (16, 128, 384)
PERIOD_S = 0.02
"""In which a task has its share once."""

NAP_S = 0.0005
PAGE = os.sysconf("SC_PAGE_SIZE")

WARM_UP = 10
"""Iterations that are not recorded."""

Row = tuple[float, float, int, float]


class Task(NamedTuple):
    """What a process of load does for a while."""

    begin_s: float
    end_s: float
    share: float
    megabytes: int
    streams: bool


def tasks(worker: int, process: int, seed: int) -> Iterator[Task]:
    """The tasks of a process of load."""
    source = random.Random(f"speeds/{seed}/{worker}/{process}")
    waits_s = WAITS_S * UNEQUAL[worker % len(UNEQUAL)]
    now_s = source.expovariate(1 / waits_s)
    while True:
        end_s = now_s + source.expovariate(1 / WORKS_S)
        drawn = source.choice(SHARES), source.choice(MEGABYTES), source.random() < 0.5
        yield Task(now_s, end_s, *drawn)
        now_s = end_s + source.expovariate(1 / waits_s)


class Core:
    """A worker and its load, as one of them sees them.

    Parameters
    ----------
    core : int
        Where all of them run.
    pids, over, ready
        Shared: who they are, whether the worker is done, and a barrier.
    place : int
        Which one this is; the worker is the first.
    """

    def __init__(self, core: int, pids: Any, over: Any, ready: Any, place: int) -> None:
        self._shared = core, pids, over, ready, place

    def enter(self) -> None:
        """Come to the core, and go on when all are there, from time zero."""
        core, pids, self.over, ready, place = self._shared
        os.sched_setaffinity(0, {core})
        pids[place] = os.getpid()
        ready.wait()
        self.pids = list(pids)
        # As pthread_getcpuclockid makes them of processes.
        self._clocks = [(~pid << 3) | 2 for pid in self.pids]
        self._zero = 0.0
        self._zero = self.now()

    def now(self) -> float:
        """Seconds of CPU time that all of them have had."""
        return sum(map(time.clock_gettime, self._clocks)) - self._zero

    def until(self, when_s: float) -> None:
        """Sleep."""
        while self.now() < when_s and not self.over.value:
            time.sleep(NAP_S)

    def running(self) -> int:
        """How many of the load want to run."""
        states = [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in self.pids[1:]]
        return states.count("R")

    def memory(self) -> float:
        """GiB that they hold."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids]
        return sum(pages) * PAGE / 2**30


def load(core: Core, worker: int, process: int, seed: int) -> None:
    """Replay the tasks of a process of load until the worker is done."""
    core.enter()
    # The worker may be gone between a look whether it is and one at the clock.
    with contextlib.suppress(OSError):
        for task in tasks(worker, process, seed):
            core.until(task.begin_s)
            if core.over.value:
                return
            _work(core, task)


def _work(core: Core, task: Task) -> None:
    held = np.ones(task.megabytes << 17)
    small, at = held[: 1 << 10], 0
    while (now := core.now()) < task.end_s and not core.over.value:
        had = time.process_time()
        while time.process_time() - had < task.share * PERIOD_S:
            part = held[at : at + (1 << 15)] if task.streams else small
            np.multiply(part, 1.0000001, out=part)
            at = (at + (1 << 15)) % len(held)
        core.until(now + PERIOD_S)


def train(core: Core, worker: int, iterations: int, done: Any) -> None:
    """Train beside the load, and say what is recorded of each iteration."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(worker)
    inputs, targets = torch.randn(16 * BATCH, 64), torch.randint(10, (16 * BATCH,))
    model = torch.nn.Sequential(
        torch.nn.Linear(64, WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rows: list[Row] = []
    core.enter()
    for step in range(WARM_UP + iterations):
        now, had = core.now(), time.process_time()
        first = step * BATCH % len(inputs)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(inputs[first : first + BATCH]), targets[first : first + BATCH]
        )
        loss.backward()
        optimizer.step()
        loss.item()
        took, had = core.now() - now, time.process_time() - had
        if step >= WARM_UP:
            rows.append((BATCH / took, had / took, core.running(), core.memory()))
    core.over.value = 1
    done.put((worker, rows))


def record(workers: list[int], iterations: int, seed: int) -> list[list[Row]]:
    """Some workers at once, each on its core with its load."""
    cores = sorted(os.sched_getaffinity(0))[: len(workers)]
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    # A semaphore that nobody here refers to is gone before a process that starts has found it.
    kept, processes = [], []
    for core, worker in zip(cores, workers, strict=True):
        pids, over = context.Array("i", BESIDE + 1), context.Value("b", 0, lock=False)
        # An import may take as long as the recording on a machine that has other work.
        shared = core, pids, over, context.Barrier(BESIDE + 1)
        kept.append(shared)
        trainer = Core(*shared, 0), worker, iterations, done
        processes.append(context.Process(target=train, args=trainer))
        for number in range(BESIDE):
            beside = Core(*shared, 1 + number), worker, number, seed
            processes.append(context.Process(target=load, args=beside))
    for process in processes:
        process.start()
    found = dict(done.get() for _ in workers)
    for process in processes:
        process.join()
    return [found[worker] for worker in workers]


def write(path: Path, traces: list[list[Row]]) -> None:
    """Gzipped, and the same bytes for the same rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["worker", "speed", "cpu", "running", "memory"])
    for worker, rows in enumerate(traces):
        for speed, cpu, running, memory in rows:
            writer.writerow([worker, f"{speed:.1f}", f"{cpu:.3f}", running, f"{memory:.3f}"])
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=1500, help="of each worker")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    at_once = len(os.sched_getaffinity(0))
    traces: list[list[Row]] = []
    for first in range(0, args.workers, at_once):
        some = list(range(first, min(first + at_once, args.workers)))
        traces += record(some, args.iterations, args.seed)
        # What there is, so that an interrupted recording is not for nothing.
        write(args.out, traces)
    for worker, rows in enumerate(traces):
        speeds = np.array([row[0] for row in rows])
        print(f"worker {worker}: {len(rows)} iterations, {speeds.mean():.0f} samples/s,"
              f" {speeds.min():.0f} to {speeds.max():.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
