"""Part 3: groups of NCCL, with one rank, and with two where there are two GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import machine
import rescaling
import training
from part import MEASURED, NOT_ASKED, Bench, Part, read_lines, wait_for

SLACK_BYTES = 64 << 20
PARAMETERS, SMALL = 25_000_000, 20_000
ABORT_S, TERM_S = 5.0, 15.0
TWO = ("grow", "shrink", "grow_sharded", "shrink_sharded", "lost")
"""Questions that take two GPUs."""


def run(bench: Bench) -> None:
    """Find the answers."""
    bench.ask(lambda: training.bit_equal(bench, ["nccl"]), "nccl")
    bench.ask(lambda: _again(bench), "again")
    bench.ask(lambda: _blocked(bench), "blocked")
    bench.ask(lambda: _two(bench), *TWO)


def _again(bench: Bench) -> None:
    found = json.loads(bench.run_script("grouped", "again", limit_s=0.6 * bench.left_s).stdout)
    bench.answer("again", found["sum"] == 1.0, **found)


def _two(bench: Bench) -> None:
    if bench.rehearse:
        os.environ["FAKE_GPUS"] = "2"
    if machine.Gpu().count < 2:
        for each in TWO:
            bench.answer(each, NOT_ASKED, "there is one GPU, and NCCL refuses two ranks on it")
    else:
        _resized(bench, sharded=False)
        _resized(bench, sharded=True)
        _lost(bench)


def _blocked(bench: Bench) -> None:
    """Have a rank wait for another that does not come, and find what ends it."""
    gpu = machine.Gpu()
    before = gpu.used_bytes
    told = bench.scratch / "blocked.account"
    store = bench.scratch / "store"
    ranks = [
        subprocess.Popen(
            bench.script("grouped", "blocked", "--rank", rank, "--store", store, "--told", told),
            stdin=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]

    def freed_by() -> str | None:
        """What said that the collective has ended."""
        return next((line["freed"] for line in read_lines(told) if "freed" in line), None)

    figures: dict[str, Any] = {}
    try:
        wait_for(
            lambda: any("blocked" in line for line in read_lines(told)),
            "a rank",
            bench.patience_s(30),
        )
        began_s = time.monotonic()
        # It aborts its own group, from another thread.
        limit_s = 1.0 if bench.rehearse else ABORT_S
        while time.monotonic() - began_s < limit_s and freed_by() is None:
            time.sleep(0.02)
        figures["abort"] = freed_by() or f"nothing within {limit_s:g} s"
        figures["abort_s"] = time.monotonic() - began_s
        began_s = time.monotonic()
        # As the launcher ends ranks whose neighbour is lost.
        ranks[0].send_signal(signal.SIGTERM)
        try:
            ranks[0].wait(TERM_S)
            figures["ended_by"] = "SIGTERM"
        except subprocess.TimeoutExpired:
            ranks[0].kill()
            ranks[0].wait()
            figures["ended_by"] = "SIGKILL"
        figures["ended_s"] = time.monotonic() - began_s
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    figures["freed_s"] = gpu.freed_s(before + SLACK_BYTES)
    bench.answer("blocked", MEASURED, **figures)


def _resized(bench: Bench, *, sharded: bool) -> None:
    """Grow and shrink in place; ``rescaling.py`` says what the figures mean."""
    # One rank may become two; that benchmark has two become three.
    rescaling.FEW, rescaling.MORE = 1, 2
    kind = "_sharded" if sharded else ""
    place = bench.scratch / f"resized{kind}"
    place.mkdir()
    size = SMALL if bench.rehearse else PARAMETERS
    found, job = rescaling.in_place(rescaling.Bench(place, size, 1, sharded))
    stalls = {f"{each.before} to {each.after}": each.stall_s for each in found}
    for name, change in (("grow", "1 to 2"), ("shrink", "2 to 1")):
        bench.answer(
            name + kind,
            change in stalls and job["suspends"] == 0,
            stall_s=stalls.get(change),
            parameters=size,
        )


def _lost(bench: Bench) -> None:
    """Kill one of two ranks; the job must go on from its last checkpoint."""
    place = machine.site(bench.scratch / "lost")
    accounts = place.path / "accounts"
    accounts.mkdir()
    train = [str(rescaling.TRAIN), "--parameters", str(SMALL), "--accounts", str(accounts)]
    place.write_jobs({
        "name": "train",
        "command": [sys.executable, "-m", "hpcext", "launch", sys.executable, *train],
        "gpus": 2,
    })  # fmt: skip
    manager = place.start("run", str(place.jobs), "--gpus", "2", "--dir", str(place.pilot))

    def pids() -> set[int]:
        return {int(path.name) for path in accounts.iterdir() if path.stat().st_size}

    try:
        first = wait_for(lambda: len(pids()) == 2 and pids(), "two ranks", bench.left_s - 5)
        killed_s = time.monotonic()
        os.kill(max(first), signal.SIGKILL)
        wait_for(lambda: len(pids() - first) == 2, "two ranks again", bench.left_s - 5)
        took_s = time.monotonic() - killed_s
        left = [pid for pid in first if os.path.exists(f"/proc/{pid}")]
        bench.answer("lost", not left, seconds_to_the_first_step_again=took_s)
    finally:
        manager.terminate()
        out, err = manager.communicate()
        print(out, err)


PART = Part(
    "nccl",
    "3. Groups of NCCL",
    75.0,
    30.0,
    {
        "nccl": "Does a training in a group of NCCL that its script has formed end with the same "
        "bits if it is suspended and resumed?",
        "again": "Can a process leave its group and form another one, time after time?",
        "blocked": "What ends a rank that waits in a collective for one that does not come?",
        "grow": "Do the ranks grow from one to two in place?",
        "shrink": "Do they shrink from two to one?",
        "grow_sharded": "Do they grow from one to two if they hold a model in shards (FSDP2)?",
        "shrink_sharded": "Do they shrink from two to one then?",
        "lost": "If a rank is killed, is the other one ended, and does the job go on?",
    },
    run,
)
