"""Part 6: the agent of Pollux and the clock of balanced batches on CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from machine import Gpu
from part import HERE, MEASURED, NOT_ASKED, Bench, Part

WIDTHS = (512, 16384)
GOAL = 0.05
"""What adapting may take of a step."""

NEAR = 0.05
"""How far a clock may be from what it times."""

TIMES = 3.0
"""How far the noise scale may be from that of the same training on the CPU."""


def run(bench: Bench) -> None:
    """Find the answers."""
    bench.ask(lambda: _adapting(bench), "overhead", "waits", "noise")
    bench.ask(lambda: _clock(bench), "clock")
    bench.ask(lambda: _balanced(bench), "balanced")


def _clock(bench: Bench) -> None:
    told = json.loads(bench.run_script("clocked", "clock").stdout)
    off = abs(told["clock_s"] / told["waited_s"] - 1)
    bench.answer("clock", off < NEAR and told["early"] is bench.rehearse, off=off, **told)


def _balanced(bench: Bench) -> None:
    """By the benchmark of balanced batches, whose ranks are paced."""
    if bench.rehearse or Gpu().count < 2:
        bench.answer("balanced", NOT_ASKED, "it takes two GPUs")
        return
    command = [sys.executable, "-m", "hpcext", "launch", "--ranks", "2", sys.executable]
    command += [str(HERE.parent / "balance.py"), "--mode", "gpu", "--iterations", "150"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=max(1.0, bench.left_s)
    )
    bench.answer("balanced", MEASURED, "; ".join(done.stdout.splitlines()))


def _adapting(bench: Bench) -> None:
    rows: dict[str, Any] = {}
    widths = (64,) if bench.rehearse else WIDTHS
    for width in widths:
        words = ["adapt", "--width", width, "--turns", 2 if bench.rehearse else 20]
        told = json.loads(bench.run_script("clocked", *words, limit_s=bench.left_s * 0.5).stdout)
        rows[f"width_{width}"] = told
    largest = rows[f"width_{widths[-1]}"]
    small = rows[f"width_{widths[0]}"]
    bench.answer(
        "overhead",
        largest["adapted_ms"] / largest["plain_ms"] - 1 < GOAL,
        f"on {largest['device']}",
        **{
            name: {
                "step_ms": told["plain_ms"],
                "adapting_takes": f"{told['adapted_ms'] / told['plain_ms'] - 1:+.1%}",
            }
            for name, told in rows.items()
        },
    )
    waits = {key: small[key] for key in ("waits_plain", "waits_adapted", "steps")}
    if bench.rehearse:
        bench.answer("waits", NOT_ASKED, "there is no GPU to wait for", **waits)
    else:
        # The windows of timed steps end with one, some times a minute.
        bench.answer("waits", waits["waits_adapted"] <= 0.1 * waits["steps"], **waits)
    if bench.rehearse:
        says = "all of this was on the CPU"
        bench.answer("noise", NOT_ASKED, says, noise_scale=small["noise_scale"])
        return
    words = ["adapt", "--width", widths[0], "--turns", 1]
    plain = {"CUDA_VISIBLE_DEVICES": ""}
    on_cpu = json.loads(bench.run_script("clocked", *words, environ=plain).stdout)["noise_scale"]
    near = on_cpu is not None and small["noise_scale"] is not None
    near = near and 1 / TIMES < small["noise_scale"] / on_cpu < TIMES
    bench.answer("noise", bool(near), noise_scale=small["noise_scale"], on_the_cpu=on_cpu)


PART = Part(
    "agent",
    "6. The agent of Pollux and the clock of balanced batches",
    100.0,
    20.0,
    {
        "overhead": "Does adapting take less than 5 % of a step of a large model?",
        "waits": "Does it wait for the GPU in no more than one step of ten?",
        "noise": "Is the noise scale that of the same training on the CPU, within three times?",
        "clock": "Does the clock of steps say what the GPU took, within 5 %, and without waiting?",
        "balanced": "How near are balanced batches to the ideal division of two unequal ranks?",
    },
    run,
)
