"""What the agent of Pollux and the clock of balanced batches say and cost on a GPU, as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import adapt

from hpcext.training.balance.clock import Clock
from hpcext.training.torch.clock import CudaClock

CUDA = torch.cuda.is_available()
PRODUCTS, SIDE = 200, 4096


def adapting(width: int, turns: int) -> dict[str, Any]:
    """Return what adapting costs, how often it waits, and the noise scale."""
    (plain_s, adapted_s), both = adapt.both_s(width, turns)
    waits = [_waits(each) for each in both]
    session = both[1].session
    return {
        "device": str(session.device),
        "plain_ms": 1e3 * plain_s,
        "adapted_ms": 1e3 * adapted_s,
        "waits_plain": waits[0],
        "waits_adapted": waits[1],
        "steps": adapt.STEPS,
        "noise_scale": session.noise_scale,
    }


def _waits(training: adapt.Trained) -> int:
    """Count how often a turn waits for the GPU, but for its end."""
    if not CUDA:
        return 0
    called = 0
    wait = torch.cuda.synchronize

    def counted(*args: Any) -> None:
        nonlocal called
        called += 1
        wait(*args)

    torch.cuda.synchronize = counted
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            training.turn_s()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize = wait
    return called - 1 + sum("synchronizing" in str(each.message) for each in told)


def clock() -> dict[str, Any]:
    """Time the same work by the clock and by waiting for it."""
    device = torch.device("cuda" if CUDA else "cpu")
    side, products = (SIDE, PRODUCTS) if CUDA else (256, 20)
    x = torch.randn(side, side, device=device)
    timer: Clock = CudaClock(device) if CUDA else Clock()
    waited, clocked, early = [], [], False

    def work() -> None:
        for _ in range(products):
            torch.mm(x, x)

    for _ in range(5):
        if CUDA:
            torch.cuda.synchronize()
        began_s = time.perf_counter()
        timer.begin()
        work()
        timer.computed(1)
        # Of a GPU that still computes nothing is known yet, and nobody waits for it.
        found = timer.take()
        early = found is not None
        if CUDA:
            torch.cuda.synchronize()
        waited.append(time.perf_counter() - began_s)
        found = found or timer.take()
        clocked.append(found.time_s if found else float("nan"))
    return {
        "clock_s": statistics.median(clocked),
        "waited_s": statistics.median(waited),
        "early": early,
    }


def main() -> None:
    """Read the command line, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("adapt", "clock"))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--turns", type=int, default=20)
    args = parser.parse_args()
    told = adapting(args.width, args.turns) if args.what == "adapt" else clock()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
