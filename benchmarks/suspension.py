"""What a suspension costs beyond finishing the step and writing the state, and what a step costs.

Each run trains a perceptron of 2 million parameters with Adam (24 MB of state) on 1, 2 and 4 ranks
and is then suspended. The figures come from outside the session: ranks note the end of each step
in a shared file, rank 0 times a plain ``torch.save`` and fsync of the same state in the same run,
and this process sees ``suspended.json`` appear (inotify). Steps with and without the session
alternate in one run.

*added*: from the end of the last step on the last rank to the record, less the plain write.
*resume*: from starting the command to the end of its first step, of which most is the import of
torch. *between*: from the end of one step to the beginning of the next, spent in the session;
*steps/s*: with the session relative to without, in blocks that alternate (noisy on a busy
machine). MARBLE, section VII-D: suspending and resuming took 13.2 to
26.6 % of the training time of its job sets, which lasted about 500 s.

Run: ``python benchmarks/suspension.py [--ranks 1 2 4] [--times 3]``
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpcext.documents import write_json
from hpcext.protocol import Attempt
from hpcext.training.torch import Session

WIDTH = 1408
BLOCK = 10
BLOCKS = 5
SLOT = struct.Struct("dd")
IN_MOVED_TO = 0x80
PAPER_RUN_S = 500.0
MEASURED = "measured"


class Marks:
    """A shared file in which each rank notes the end of its first and last step."""

    def __init__(self, path: Path, ranks: int) -> None:
        with path.open("a+b") as file:
            file.truncate(ranks * SLOT.size)
            self._memory = mmap.mmap(file.fileno(), ranks * SLOT.size)
        self.ranks = ranks

    def note(self, rank: int) -> None:
        """A step of this rank has ended."""
        first, _ = self.read(rank)
        now = time.time()
        SLOT.pack_into(self._memory, rank * SLOT.size, first or now, now)

    def read(self, rank: int) -> tuple[float, float]:
        """Ends of the first and the last step of a rank, seconds since the epoch; 0: none yet."""
        first, last = SLOT.unpack_from(self._memory, rank * SLOT.size)
        return first, last


def train(directory: Path) -> None:
    """One rank of the training."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH // 2), nn.ReLU(), nn.Linear(WIDTH // 2, WIDTH))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    session = Session(model=model, optimizer=optimizer)
    net = session.parallel(model)
    marks = Marks(directory / f"marks-{os.environ['HPCEXT_ATTEMPT']}", session.world_size)
    x = torch.randn(8, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(net(x), x))
        optimizer.step()

    for _ in session.epochs(1):
        turns = session.batches(range(100_000))
        for number, _ in enumerate(turns):
            step()
            if number == BLOCK:
                figures = compare(turns, step)
                if session.rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    figures["write"] = plain_write(directory, state)
                    write_json(directory / MEASURED, figures)
            marks.note(session.rank)


def compare(turns: Iterator[Any], step: Callable[[], None]) -> dict[str, float]:
    """Steps with and without the session, in blocks that alternate: median seconds of a step
    without, of the time between two steps with, and the ratio of the speeds."""
    ratios, without_s, between_s = [], [], []
    for _ in range(BLOCKS):
        begun = time.perf_counter()
        for _ in range(BLOCK):
            step()
        middle = time.perf_counter()
        for _ in range(BLOCK):
            stepped = time.perf_counter()
            next(turns)
            between_s.append(time.perf_counter() - stepped)
            step()
        without_s.append((middle - begun) / BLOCK)
        ratios.append((middle - begun) / (time.perf_counter() - middle))
    return {
        "step": statistics.median(without_s),
        "between": statistics.median(between_s),
        "ratio": statistics.median(ratios),
    }


def plain_write(directory: Path, state: dict[str, Any]) -> float:
    """Median seconds of writing the state to a new file, as a checkpoint is one."""
    taken = []
    for number in range(5):
        begun = time.perf_counter()
        with (directory / f"plain-{os.getpid()}-{number}").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


class Observer:
    """Waits for files that are renamed into a directory."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_CLOEXEC)
        if (
            self._fd < 0
            or libc.inotify_add_watch(self._fd, os.fsencode(directory), IN_MOVED_TO) < 0
        ):
            raise OSError(ctypes.get_errno(), "inotify")

    def wait(self, name: str, process: subprocess.Popen[bytes]) -> float:
        """The instant at which a file of this name was seen."""
        gone = os.pidfd_open(process.pid)
        try:
            while True:
                ready, _, _ = select.select([self._fd, gone], [], [], 120)
                seen_at = time.time()
                if self._fd not in ready:
                    raise RuntimeError(f"{name} did not appear")
                if f"{name}\0".encode() in os.read(self._fd, 65536):
                    return seen_at
        finally:
            os.close(gone)


def supervised() -> None:
    """What a supervisor does before it starts the command."""
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))


def start(directory: Path, ranks: int, number: int) -> subprocess.Popen[bytes]:
    """Start an attempt."""
    report_dir = directory / f"attempt-{number}"
    report_dir.mkdir()
    told = Attempt("bench", number, number, directory / "checkpoint", report_dir, ranks)
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [*command, __file__, "--train", str(directory)],
        env={**os.environ, **told.environ(), "OMP_NUM_THREADS": "1"},
        preexec_fn=supervised,  # noqa: PLW1509
    )


def suspend(process: subprocess.Popen[bytes]) -> float:
    """Ask the whole tree; the instant at which it was asked."""
    asked_at = time.time()
    for pid in [process.pid, *children(process.pid)]:
        try:
            os.kill(pid, signal.SIGTSTP)
        except ProcessLookupError:
            continue
    return asked_at


def children(pid: int) -> list[int]:
    """Processes below this one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        mine = [int(word) for word in path.read_text().split()]
    except FileNotFoundError:
        return []
    return mine + [each for child in mine for each in children(child)]


def attempt(directory: Path, ranks: int, number: int) -> dict[str, float]:
    """Train, suspend; what was seen."""
    begun = time.time()
    process = start(directory, ranks, number)
    try:
        Observer(directory).wait(MEASURED, process)
        observer = Observer(directory / f"attempt-{number}")
        asked_at = suspend(process)
        seen_at = observer.wait("suspended.json", process)
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    marks = Marks(directory / f"marks-{number}", ranks)
    spans = [marks.read(rank) for rank in range(ranks)]
    figures: dict[str, float] = json.loads((directory / MEASURED).read_text())
    return {
        **figures,
        "resume": max(first for first, _ in spans) - begun,
        "added": seen_at - max(last for _, last in spans) - figures["write"],
        "teardown": time.time() - seen_at,
        "suspend": time.time() - asked_at,
    }


def measure(ranks: int, times: int) -> dict[str, float]:
    """The figures of one number of ranks."""
    directory = Path(tempfile.mkdtemp(prefix="suspension-", dir=Path.cwd()))
    try:
        seen = [attempt(directory, ranks, number) for number in range(1, times + 1)]
    finally:
        shutil.rmtree(directory)
    middle = {key: statistics.median(one[key] for one in seen) for key in seen[0]}
    return {**middle, "ranks": ranks, "worst": max(one["added"] for one in seen)}


def line(row: dict[str, float]) -> str:
    """The figures of one number of ranks as a line of the table."""
    share = 100 * (row["suspend"] + row["resume"]) / PAPER_RUN_S
    return (
        f"{row['ranks']:5.0f} {1e3 * row['write']:6.1f} ms {1e3 * row['added']:6.1f} ms "
        f"{1e3 * row['worst']:6.1f} ms {1e3 * row['teardown']:6.0f} ms {row['resume']:6.2f} s "
        f"{share:7.2f} % {1e3 * row['step']:6.2f} ms {1e6 * row['between']:6.0f} us "
        f"{row['ratio']:8.3f}"
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train)
        return
    columns = "ranks  plain write     added     worst  teardown   resume  of 500 s"
    print(columns + "      step   between  steps/s")
    for ranks in args.ranks:
        print(line(measure(ranks, args.times)), flush=True)
    print("added: goal under 50 ms. of 500 s: one suspension and resumption; the paper 13.2-26.6 %")


if __name__ == "__main__":
    main()
