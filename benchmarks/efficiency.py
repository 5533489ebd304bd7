"""Efficiency as the noise scale predicts it, against that of trainings: Pollux, Fig. 2, bottom.

    python benchmarks/efficiency.py run FILE [--study digits] [--seeds 5]
    python benchmarks/efficiency.py show FILE

`run` trains with the initial batch M0 to an eighth and to three quarters of what its target takes.
From each of these moments it goes on with M0 and with multiples M of it, under the study's rule of
learning rates, in other orders of the samples, and measures the noise scale phi anew, in each step.
FILE has a line of all; those that are there are left out.

`show` says, for each M, the mean over seeds and its spread of

- what phi measured with M0 after that moment predicts, (phi + M0) / (phi + M), eq. 6;
- the same by phi measured with M there, the paper's "measured";
- how many times fewer samples M0 takes than M to the same validation losses, those from half of how
  far it came to all of it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studies import STUDIES, Study, Training

from hpcext.training.adapt.noise import NoiseScale

WHOLE = {"digits": 8000, "text": 5600}
"""Samples to the target, with the initial batch, in round numbers."""

MOMENTS = {"early": 1 / 8, "late": 3 / 4}
TIMES = (1, 2, 4, 8)
HORIZON = 1 / 8
"""Of the whole: how far M0 goes on."""
LONGER = 1.6
"""Times what is predicted, that others go on."""
LOOKS = 16
ORDERS = 3
MEAN_OF = 3


def to(training: Training, samples: int, look: int | None = None) -> list[list[float]]:
    """Train until it had so many samples, the noise measured in each step; losses now and then."""
    curve: list[list[float]] = []
    begun, training.session.adapting.always = training.samples, True
    if look is not None:
        curve.append([0, training.validated()[1]])
    steps = training.steps()
    while training.samples < samples:
        next(steps)
        if look is not None and training.samples - begun >= curve[-1][0] + look:
            curve.append([training.samples - begun, training.validated()[1]])
    return curve


def gone_on(study: Study, seed: int, begun: dict[str, Any], whole: int) -> dict[str, Any]:
    """From a moment of a training with each batch."""
    base = study.module.BATCH
    phi = NoiseScale.of(begun["agent"]["noise"]).phi() or 0.0
    found: dict[str, Any] = {"phi": phi, "ways": {}}
    for times in TIMES:
        batch = base * times
        predicted = (phi + base) / (phi + batch)
        samples = int(HORIZON * whole * (1.0 if times == 1 else LONGER) / predicted)
        samples = max(samples, MEAN_OF * 3 * batch)
        curves, phis = [], []
        for order in range(ORDERS):
            training = Training(study, 1000 * seed + order, batch, begun=begun)
            curves.append(to(training, samples, max(batch, int(HORIZON * whole / LOOKS))))
            phis.append(training.session.adapting.measured.phi())
        found["ways"][times] = {"curves": curves, "phis": phis}
    return found


def run(args: argparse.Namespace) -> None:
    """Train what is not in the file yet."""
    torch.set_num_threads(1)
    lines = args.file.read_text().splitlines() if args.file.exists() else []
    there = {tuple(json.loads(line)["key"]) for line in lines}
    study, whole = STUDIES[args.study], WHOLE[args.study]
    for seed in range(1, args.seeds + 1):
        moments = [name for name in MOMENTS if (args.study, name, seed) not in there]
        training = Training(study, seed, study.module.BATCH)
        for moment in moments:
            to(training, int(MOMENTS[moment] * whole))
            found = gone_on(study, seed, training.state(), whole)
            with args.file.open("a") as file:
                file.write(json.dumps({"key": (args.study, moment, seed), **found}) + "\n")


def measured(first: list[Any], other: list[Any]) -> float:
    """Samples of M0 by those of M to the same losses; NaN if there are none."""
    (spent, losses), (more, its) = _falling(first), _falling(other)
    half = (losses[0] + losses[-1]) / 2
    low = max(losses[-1], its[-1])
    if low >= half:
        return math.nan
    levels = np.linspace(half, low, 8)
    ratios = [np.interp(-level, -losses, spent) / np.interp(-level, -its, more) for level in levels]
    return float(np.median(ratios))


def _falling(curves: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Mean of several orders: samples, and the least loss until then (a mean of three)."""
    count = min(len(curve) for curve in curves)
    rows = np.mean([curve[:count] for curve in curves], axis=0)
    inner = np.convolve(rows[:, 1], np.ones(MEAN_OF) / MEAN_OF, "valid")
    losses = np.concatenate([rows[:1, 1], inner, rows[-1:, 1]])
    return rows[:, 0], np.minimum.accumulate(losses)


def show(args: argparse.Namespace) -> None:
    """Compare what is in the file."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in args.file.read_text().splitlines():
        found = json.loads(line)
        rows.setdefault((found["key"][0], found["key"][1]), []).append(found)
    for (study, moment), each in rows.items():
        phis = [statistics.fmean(found["ways"]["1"]["phis"]) for found in each]
        print(
            f"{study}, {moment}, {len(each)} seeds: phi {statistics.median(phis):.1f} "
            f"({min(phis):.1f}-{max(phis):.1f})"
        )
        base = STUDIES[study].module.BATCH
        for times in TIMES[1:]:
            batch = base * times
            predicted, there, taken = [], [], []
            for first, found in zip(phis, each, strict=True):
                way = found["ways"][str(times)]
                predicted.append((first + base) / (first + batch))
                phi = statistics.fmean(way["phis"])
                there.append((phi + base) / (phi + batch))
                taken.append(measured(found["ways"]["1"]["curves"], way["curves"]))
            print(
                f"  {batch:4}: predicted {_spread(predicted)}, by the noise there "
                f"{_spread(there)} ({_off(predicted, there)}), by samples "
                f"{_spread(taken)} ({_off(predicted, taken)})"
            )


def _spread(values: list[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "none"
    return f"{statistics.fmean(known):.3f} sd {np.std(known):.3f}"


def _off(predicted: list[float], found: list[float]) -> str:
    """How far the mean is off, and the mean of how far each is."""
    pairs = [
        (one, other) for one, other in zip(predicted, found, strict=True) if not math.isnan(other)
    ]
    if not pairs:
        return "none"
    one, other = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    each = statistics.fmean(abs(a / b - 1) for a, b in pairs)
    return f"mean off by {one / other - 1:+.0%}, each by {each:.0%}"


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--study", choices=tuple(STUDIES), default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    (run if args.what == "run" else show)(args)


if __name__ == "__main__":
    main()
