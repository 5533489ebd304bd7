"""Part 7: convolutional networks on one GPU, on seats by MPS beside one after the other."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from typing import Any

import machine
from part import NOT_ASKED, Bench, Part, in_words

from hpcext.launch.mps import CONTROL

EXAMPLE = machine.ROOT / "examples" / "digits_cnn.py"
WIDTHS = (16, 24, 32, 48)
EPOCHS, REHEARSED_EPOCHS = 40, 2
ACCURATE = 0.9


def run(bench: Bench) -> None:
    """Find the answers."""
    if importlib.util.find_spec("sklearn") is None:
        for each in bench.part.questions:
            bench.answer(each, NOT_ASKED, "scikit-learn is missing, whose digits are learned")
        return
    bench.ask(lambda: _both(bench), *bench.part.questions)


def _both(bench: Bench) -> None:
    """One after the other, and together."""
    alone = _pilot(bench, "exclusive", [])
    if shutil.which(CONTROL) is None:
        for each in bench.part.questions:
            bench.answer(each, NOT_ASKED, f"there is no {CONTROL} on this machine", **alone)
        return
    seats = _pilot(bench, "seats", ["--mps", str(len(_widths(bench)))])
    times = alone["makespan_s"] / seats["makespan_s"]
    bench.answer("makespan", times > 1, exclusive=alone, seats=seats, times_as_fast=times)
    least = min(alone["accuracies"] + seats["accuracies"])
    reached = bench.rehearse or least > ACCURATE
    bench.answer("learned", reached and not seats["lost_steps"], least_accuracy=least)


def _widths(bench: Bench) -> tuple[int, ...]:
    return WIDTHS[:2] if bench.rehearse else WIDTHS


def _pilot(bench: Bench, name: str, more: list[str]) -> dict[str, Any]:
    """Train them all in a pilot on the GPU."""
    site = machine.site(bench.scratch / name)
    widths = _widths(bench)
    epochs = REHEARSED_EPOCHS if bench.rehearse else EPOCHS
    site.write_jobs(*(
        {
            "name": f"cnn-{width}",
            "command": [
                sys.executable, *machine.client(), str(EXAMPLE), "--epochs", str(epochs),
                "--width", str(width), "--result", str(site.path / f"{width}.result"),
            ],
            "mps": True,
            "retries": 0,
        }
        for width in widths
    ))  # fmt: skip
    words = ["--gpus", "1", *more, "--dir", str(site.pilot)]
    manager = site.start("run", str(site.jobs), *words)
    try:
        out, err = manager.communicate(timeout=max(1.0, bench.left_s - 2))
    except subprocess.TimeoutExpired:
        manager.kill()
        out, err = manager.communicate()
        raise
    finally:
        print(out, err)
    jobs = site.document("status", str(site.pilot))["jobs"]
    failed = [job["name"] for job in jobs if job["state"] != "completed"]
    if failed:
        logs = [site.run("logs", str(site.pilot), each).out[-2000:] for each in failed]
        print(*logs, sep="\n")
        raise RuntimeError(f"{name}: not completed: {in_words(failed)}")
    return {
        "makespan_s": max(part["end_s"] for job in jobs for part in job["segments"]),
        "each_s": [
            sum(part["end_s"] - part["start_s"] for part in job["segments"]) for job in jobs
        ],
        "accuracies": [float((site.path / f"{width}.result").read_text()) for width in widths],
        "lost_steps": sum(job["lost_steps"] for job in jobs),
    }


PART = Part(
    "marble",
    "7. Networks on seats of one GPU, beside one after the other",
    130.0,
    60.0,
    {
        "makespan": "Are four networks on seats of `--mps 4` done sooner than by policy one "
        "after the other?",
        "learned": "Do all of them learn the digits, and lose no step?",
    },
    run,
)
