"""Time to a target accuracy: a batch that adapts against fixed ones, from the same seeds.

    python benchmarks/adaptive.py run FILE [--study digits] [--pace "four GPUs"] [--seeds 20]
    python benchmarks/adaptive.py show FILE

Time is that of a clock that is paced, see ``studies.py``. Fixed batches are the initial one and its
multiples, all under the same rule of learning rates as the one that adapts. The accuracy is looked
at every quarter of a second of that clock, and reached when the mean of three says so. `run`
appends a line to FILE for each training, and leaves out those that are there.

`show` compares the mean times to the target, with an interval from 10,000 draws of the seeds, with
replacement; a training that did not reach it counts with the time it was given. It also says how
far validation losses of one batch are behind those of the initial one, by plain epochs and by
statistical ones (Pollux, Fig. 2, top).
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studies import PACES, STUDIES, Study, Training

LOOK_S = 0.25
MEAN_OF = 3
TIMES = (1, 2, 4, 8)
DRAWS = 10_000
ADAPTS = "adapts"


def trained(study: Study, seed: int, batch: int | None, pace: str) -> dict[str, Any]:
    """Train to the target: how long that took, and the way there."""
    training = Training(study, seed, batch, PACES[pace])
    curve: list[list[float]] = []
    look_s, reached_s = LOOK_S, None
    for _ in training.steps():
        if training.clock.now_s < look_s:
            continue
        look_s = training.clock.now_s + LOOK_S
        accuracy, loss = training.validated()
        session = training.session
        curve.append(
            [
                round(training.clock.now_s, 3),
                training.samples,
                round(session.statistical_epochs * training.length, 1),
                round(accuracy, 4),
                round(loss, 4),
                session.adapted_batch,
                round(session.noise_scale or 0.0, 2),
            ]
        )
        if statistics.fmean(row[3] for row in curve[-MEAN_OF:]) >= study.target:
            reached_s = curve[-1][0]
            break
        if training.samples >= study.most_samples:
            break
    return {"reached_s": reached_s, "length": training.length, "curve": curve}


def run(args: argparse.Namespace) -> None:
    """Train what is not in the file yet, seed by seed."""
    torch.set_num_threads(1)
    lines = args.file.read_text().splitlines() if args.file.exists() else []
    there = {tuple(json.loads(line)["key"]) for line in lines}
    study = STUDIES[args.study]
    base = study.module.BATCH
    ways = [ADAPTS, *(str(times * base) for times in TIMES)]
    for seed in range(1, args.seeds + 1):
        for way in ways:
            key = (args.study, args.pace, way, seed)
            if key in there:
                continue
            found = trained(study, seed, None if way == ADAPTS else int(way), args.pace)
            with args.file.open("a") as file:
                file.write(json.dumps({"key": key, **found}) + "\n")


def interval(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Of the ratio of two means over the same seeds: itself, and where 95 % of the draws lie."""
    draws = np.random.default_rng(1).integers(len(one), size=(DRAWS, len(one)))
    ratios = one[draws].mean(axis=1) / other[draws].mean(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(one.mean() / other.mean()), float(low), float(high)


def behind(rows: list[dict[str, Any]], first: list[dict[str, Any]], column: int) -> float:
    """Times as many samples (1) or statistical ones (2) to the losses of the initial batch."""
    found = []
    for row, other in zip(rows, first, strict=True):
        mine, its = (_falling(each["curve"], column) for each in (row, other))
        low = max(mine[1][-1], its[1][-1])
        high = min(mine[1][0], its[1][0])
        for loss in np.linspace(high, low, 12)[1:-1] if low < high else ():
            at = [float(np.interp(-loss, -losses, spent)) for spent, losses in (mine, its)]
            found.append(np.log(at[0] / at[1]))
    return float(np.exp(np.median(found))) if found else float("nan")


def _falling(curve: list[list[float]], column: int) -> tuple[np.ndarray, np.ndarray]:
    """What was spent, and the least loss (a mean of three) until then."""
    rows = np.array(curve)
    losses = np.convolve(rows[:, 4], np.ones(MEAN_OF) / MEAN_OF, "valid")
    return rows[MEAN_OF - 1 :, column], np.minimum.accumulate(losses)


def show(args: argparse.Namespace) -> None:
    """Compare what is in the file."""
    by_case: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = {}
    for line in args.file.read_text().splitlines():
        found = json.loads(line)
        study, pace, way, seed = found["key"]
        by_case.setdefault((study, pace), {}).setdefault(way, {})[seed] = found
    for (study, pace), ways in by_case.items():
        seeds = sorted(set.intersection(*(set(each) for each in ways.values())))
        print(f"{study}, {pace}: {len(seeds)} seeds, to {STUDIES[study].target:.1%}")
        if not seeds:
            continue
        rows = {way: [each[seed] for seed in seeds] for way, each in ways.items()}
        times = {
            way: np.array([row["reached_s"] or row["curve"][-1][0] for row in each])
            for way, each in rows.items()
        }
        base = str(STUDIES[study].module.BATCH)
        for way in sorted(rows, key=lambda name: (name == ADAPTS, len(name), name)):
            missed = sum(row["reached_s"] is None for row in rows[way])
            samples = statistics.fmean(row["curve"][-1][1] for row in rows[way])
            ratio = "{:.2f} ({:.2f}-{:.2f})".format(*interval(times[ADAPTS], times[way]))
            plain, statistic = (behind(rows[way], rows[base], column) for column in (1, 2))
            last = statistics.fmean(row["curve"][-1][5] for row in rows[way])
            print(
                f"  {way:>6}: {times[way].mean():6.2f} s (sd {times[way].std():.2f}), "
                f"{missed} missed, {samples:6.0f} samples, last batch {last:4.0f}; adapting takes "
                f"{ratio} of it; to the losses of {base}: {plain:.2f} times its epochs, "
                f"{statistic:.2f} its statistical ones"
            )


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--study", choices=tuple(STUDIES), default="digits")
    parser.add_argument("--pace", choices=tuple(PACES), default="four GPUs")
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    (run if args.what == "run" else show)(args)


if __name__ == "__main__":
    main()
