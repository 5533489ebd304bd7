"""What it takes to suspend and resume a training on the GPU whose state has a given size.

For each size a fork trains, writes a periodic checkpoint that is staged, and is suspended; another
one resumes. A line in the account for each:

``held_s``
    From the end of a step to the next while the first checkpoint is staged, and memory is pinned
    for that, less the same without a checkpoint. ``held_again_s`` is of the next one, which finds
    that memory. What there is no time or no disk for is null.
``written_s``
    From there to the commit, by a thread; ``beside_ms`` is a step meanwhile.
``suspend_s``
    From the request, at the end of a step, to ``suspended.json``.
``teardown_s``
    From there to the end of the process; ``freed_s`` from there until NVML says no more memory
    used than before.
``resume_s``
    From the start of the process, without the import of PyTorch, to the end of its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import forks
import machine
from suspension import Observer

from hpcext.protocol import EXIT_SUSPENDED, SUSPENDED_FILE, Attempt
from hpcext.training.torch import Session

MOST_BYTES = 256 << 20
"""Of one tensor, as layers have."""

STAGED_AT, BEFORE = 5, 2
STAGED = ("held_s", "held_again_s", "written_s", "beside_ms")
MOST_AGAIN_BYTES = 6_000_000_000
SLACK_BYTES = 64 << 20


class Weights(nn.Module):
    """Weights of so many bytes, which all have a gradient."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__()
        full, rest = divmod(size // 4, MOST_BYTES // 4)
        counts = [MOST_BYTES // 4] * full + ([rest] if rest else [])
        self.parts = nn.ParameterList(torch.randn(count, device=device) for count in counts)

    def forward(self) -> torch.Tensor:
        """A loss."""
        return torch.stack([part.square().mean() for part in self.parts]).sum()


def checkpoints(size: int, place: Path) -> int:
    """Return how many checkpoints there is time and room for before that of the suspension."""
    room = shutil.disk_usage(place).free
    if size <= MOST_AGAIN_BYTES and room > 3.2 * size:
        return 2
    return int(room > 2.2 * size)


def train(size: int, told: Path, times: int) -> None:
    """One attempt of a training, with so many periodic checkpoints."""
    began_s = time.monotonic()
    cuda = torch.cuda.is_available()
    weights = Weights(size // 3, torch.device("cuda" if cuda else "cpu"))
    optimizer = torch.optim.Adam(weights.parameters(), fused=True)
    session = Session(
        weights=weights, optimizer=optimizer, checkpoint_every_s=None,
        checkpoint_every_steps=STAGED_AT if times else None,
    )  # fmt: skip
    net = session.parallel(weights)
    saves, last = [STAGED_AT * n for n in range(1, times + 1)], STAGED_AT * (times + 1) - 2
    ended_s, steps, between = 0.0, [], []
    figures: dict[str, Any] = dict.fromkeys(STAGED)
    for _ in session.epochs(1):
        for number, _ in enumerate(session.batches(range(last * 2))):
            stepped_s = time.monotonic()
            keeper = session.training.keeper
            if number in saves and not session.resumed:
                name = "held_s" if number == STAGED_AT else "held_again_s"
                figures[name] = stepped_s - ended_s - statistics.median(between)
            elif number:
                between.append(stepped_s - ended_s)
            optimizer.zero_grad()
            net().backward()
            optimizer.step()
            if cuda:
                torch.cuda.synchronize()
            ended_s = time.monotonic()
            steps.append(ended_s - stepped_s)
            if session.resumed:
                told.write_text(json.dumps({"resume_s": ended_s - began_s}))
                os._exit(0)
            if number in saves:
                keeper.wait()
                figures["written_s"] = time.monotonic() - stepped_s
                figures["beside_ms"] = 1e3 * steps[-1]
                ended_s = time.monotonic()
            if number == last:
                figures["step_ms"] = 1e3 * statistics.median(steps[BEFORE:STAGED_AT])
                told.write_text(json.dumps({**figures, "asked_at": time.time()}))
                os.kill(os.getpid(), signal.SIGTSTP)


def measure(size: int, place: Path) -> dict[str, Any]:
    """Suspend a training of this size, and resume it."""
    before, times = used_bytes(), checkpoints(size, place)
    told = [place / f"told-{number}" for number in (1, 2)]
    pids = []
    for number in (1, 2):
        report = place / f"attempt-{number}"
        report.mkdir()
        attempt = Attempt("sized", number, number, place / "checkpoint", report, 1)
        path = told[number - 1]
        observer = Observer(report)
        pids.append(
            forks.fork(lambda path=path: train(size, path, times), attempt.environ(), place / "log")
        )
        if number == 1:
            try:
                seen_at = observer.wait(SUSPENDED_FILE, SimpleNamespace(pid=pids[0]))
            finally:
                code = forks.wait(pids[0])
            ended_at = time.time()
            gpu = machine.Gpu()
            freed_s = gpu.freed_s(before + SLACK_BYTES)
            gpu.close()
            if code != EXIT_SUSPENDED:
                raise RuntimeError(f"it ended with {code}")
        elif code := forks.wait(pids[1]):
            raise RuntimeError(f"resumed it ended with {code}")
    first, second = (json.loads(path.read_text()) for path in told)
    suspend_s = seen_at - first.pop("asked_at")
    return {
        "mb": size / 1e6, **first, **second, "suspend_s": suspend_s,
        "write_gb_s": size / 1e9 / suspend_s, "teardown_s": ended_at - seen_at,
        "freed_s": freed_s,
    }  # fmt: skip


def used_bytes() -> int:
    """Return how much of the GPU is used."""
    gpu = machine.Gpu()
    found = gpu.used_bytes
    gpu.close()
    return found


def disk_gb_s(place: Path, size: int) -> float:
    """Return how fast plain bytes are written to the disk."""
    content = os.urandom(size)
    began_s = time.monotonic()
    with (place / "plain").open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return size / 1e9 / (time.monotonic() - began_s)


def expected_s(took_s: Mapping[int, float], size: int) -> float:
    """Return how long a size will take, by those before: beginning, and so much for each byte."""
    sizes = sorted(took_s)
    if len(sizes) < 2:
        return max(took_s.values(), default=0.0)
    least, most = sizes[0], sizes[-1]
    per_byte_s = max(0.0, (took_s[most] - took_s[least]) / (most - least))
    return took_s[most] + per_byte_s * (size - most)


def main() -> None:
    """Measure one size after the other while there is time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--account", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    forks.load()
    end_s = time.monotonic() + args.seconds
    took_s: dict[int, float] = {}
    disk = disk_gb_s(args.place, min(max(args.sizes), MOST_BYTES))
    for size in args.sizes:
        needs_s = expected_s(took_s, size)
        if time.monotonic() + needs_s > end_s:
            print(f"{size} bytes would take {needs_s:.0f} s", file=sys.stderr)
            break
        began_s = time.monotonic()
        place = args.place / str(size)
        place.mkdir()
        try:
            found = measure(size, place)
        finally:
            print((place / "log").read_text()[-4000:], file=sys.stderr)
            shutil.rmtree(place)
        with args.account.open("a") as file:
            file.write(json.dumps({**found, "disk_gb_s": disk}) + "\n")
        took_s[size] = time.monotonic() - began_s


if __name__ == "__main__":
    main()
