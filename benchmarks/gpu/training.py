"""Part 2: trainings in PyTorch on CUDA: bit-equal resumption, and the cost by size of state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
from machine import Gpu
from part import FORKS, MEASURED, NOT_ASKED, Bench, Part, in_words, read_lines

from hpcext.protocol import Attempt

STEPS, SUSPENDED_AT = 24, 11
KINDS = ("plain", "amp", "graphs", "graphs-dropout", "compiled", "compiled-graphs")
SIZES = (10e6, 100e6, 1e9, 5e9, 20e9)
"""Bytes of state: weights and two averages of Adam."""

REHEARSED = ("amp", "graphs")
SMALL = ["--width", "4", "--batch", "16"]
"""What a training is without a GPU."""


def run(bench: Bench) -> None:
    """Find the answers."""
    bench.ask(lambda: _kinds(bench), *KINDS)
    bench.ask(lambda: _sizes(bench), "cost", "staged", "freed")


def _kinds(bench: Bench) -> None:
    kinds = REHEARSED if bench.rehearse else KINDS
    for kind in set(KINDS) - set(kinds):
        bench.answer(kind, NOT_ASKED, "the rehearsal has enough of the others")
    # Together, as it is not about time; compiling has many processes of its own.
    bit_equal(bench, kinds)


def bit_equal(bench: Bench, kinds: Iterable[str]) -> None:
    """Answer whether trainings end with the same bits if they are suspended and resumed.

    Parameters
    ----------
    bench : Bench
    kinds : iterable of str
        Kinds of ``trained.py``, each the name of a question.
    """
    first, second = [], []
    for kind in kinds:
        place = bench.scratch / kind
        place.mkdir()
        small = SMALL if bench.rehearse else []
        first += [_run(place, kind, name, 1, small) for name in ("straight", "suspended")]
        second.append(_run(place, kind, "suspended", 2, small))
    path = bench.scratch / "runs.json"
    path.write_text(json.dumps([first, second]))
    limit_s = bench.left_s * 0.6
    bench.ask(lambda: bench.run_script("trained", "--runs", path, environ=FORKS, limit_s=limit_s))
    for kind in kinds:
        _judge(bench, kind)


def _run(place: Path, kind: str, name: str, attempt: int, more: list[str]) -> dict[str, Any]:
    """One attempt of a training, as a manager would begin it."""
    here = place / f"{name}-{attempt}"
    here.mkdir()
    told = Attempt(kind, attempt, attempt, place / f"{name}-checkpoint", here, 1)
    words = ["--kind", kind, "--steps", str(STEPS), "--account", str(here / "account")]
    words += ["--result", str(place / f"{name}.result"), *more]
    if name == "suspended":
        words += ["--suspend-at", str(SUSPENDED_AT)]
    # Each compiles for itself, as on another machine.
    environ = {
        **told.environ(),
        "TORCHINDUCTOR_CACHE_DIR": str(place / f"{name}-compiled"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
    }
    return {"words": words, "environ": environ, "log": str(here / "log")}


def _judge(bench: Bench, kind: str) -> None:
    place = bench.scratch / kind
    results = [place / f"{name}.result" for name in ("straight", "suspended")]
    if not all(each.exists() for each in results):
        logs = [path.read_text() for path in sorted(place.glob("*/log"))]
        print(*(text[-3000:] for text in logs), sep="\n")
        last = next((text.strip().splitlines()[-1] for text in logs if text.strip()), "no words")
        bench.answer(kind, False, f"it failed: {last}"[:300])
        return
    straight, suspended = (json.loads(each.read_text()) for each in results)
    account = read_lines(place / "suspended-1" / "account")
    lines = account + read_lines(place / "suspended-2" / "account")
    stopped = max(line.get("step", 0) for line in account)
    resumed = any(line.get("resumed") for line in lines)
    device = next(line["device"] for line in lines if "device" in line)
    bench.answer(
        kind,
        straight == suspended and resumed and stopped == SUSPENDED_AT,
        f"on {device}, suspended after step {stopped} of {suspended['step']}",
        digests=[each["digest"][:12] for each in (straight, suspended)],
    )


def _sizes(bench: Bench) -> None:
    """Have states of growing size saved and restored, until time, memory or disk runs out."""
    sizes = (1e5, 1e6) if bench.rehearse else SIZES
    place, told = bench.scratch / "sizes", bench.scratch / "sizes.account"
    place.mkdir()
    words = ["--place", place, "--account", told, "--seconds", bench.left_s - 5]
    fitting = [
        size
        for size in sizes
        # Twice, as staged memory is kept; gradients on the GPU.
        if 2.2 * size < psutil.virtual_memory().available
        and 1.1 * size < shutil.disk_usage(place).free
        and 1.5 * size < Gpu().total_bytes
    ]
    words += ["--sizes", *map(int, fitting)]
    bench.ask(lambda: bench.run_script("sized", *words, environ=FORKS))
    lines = read_lines(told)
    if not lines:
        raise RuntimeError("no size was measured; see gpu.log")
    left = [f"{size / 1e6:g} MB" for size in sizes[len(lines) :]]
    says = f"no room or time for {in_words(left)}" if left else ""
    ask = ("mb", "step_ms", "suspend_s", "write_gb_s", "teardown_s", "resume_s")
    disk = lines[0]["disk_gb_s"]
    bench.answer("cost", MEASURED, says, **_columns(lines, ask), disk_gb_s=disk)
    ask = ("mb", "held_s", "held_again_s", "written_s", "beside_ms")
    bench.answer("staged", MEASURED, says, **_columns(lines, ask))
    times = [line["freed_s"] for line in lines]
    bench.answer("freed", None not in times, **_columns(lines, ("mb", "freed_s")))


def _columns(lines: list[dict[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    return {name: [line[name] for line in lines] for name in names}


_ASKS = "Does a training {} end with the same bits if it is suspended and resumed?"

PART = Part(
    "training",
    "2. Trainings in PyTorch: suspended and resumed",
    150.0,
    40.0,
    {
        "plain": _ASKS.format("on CUDA with dropout"),
        "amp": _ASKS.format("in half precision with a scaler"),
        "graphs": _ASKS.format("with CUDA graphs (make_graphed_callables)"),
        "graphs-dropout": _ASKS.format("with CUDA graphs that draw random numbers"),
        "compiled": _ASKS.format("with torch.compile"),
        "compiled-graphs": _ASKS.format("with torch.compile, reduce-overhead"),
        "cost": "What does a suspension cost, by size of state?",
        "staged": "How long does a checkpoint hold a step if it is staged in pinned memory?",
        "freed": "Is the GPU's memory free, by NVML, when the process of a suspension has ended?",
    },
    run,
)
