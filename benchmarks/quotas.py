"""CPU quotas for ranks that are processes of this machine, and what comes out under them.

Each rank puts itself into a control group of its own, with a share of a core that differs from
rank to rank; with a change every so many steps, each rank in turn has half of its share, and
then none has. The ideal is not assumed: a line is fitted to the seconds that each rank took for
its own part of a step, by its samples, separately for its two shares; the ideal step is the best
division of these lines, and what a step takes beyond its slowest rank while the same rank has less.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcext.scaling.balance import Line, level

CORES = (0.6, 0.4, 0.25, 0.15)
"""Of each rank. What a rank computes beside its samples, a few milliseconds of a step, must fit
into the smallest share, or no division of the samples could help."""

FEWER = 2.0
"""By which the share of a rank is divided for a while."""

PERIOD_US = 20_000
"""A quota is of so many microseconds: a step should have several of them."""

WARM_UP = 10
"""Steps of each way that do not count: PyTorch and TensorFlow allocate and trace in them, which no
quota prolongs."""


class Quota:
    """A control group of this process, of either version.

    Parameters
    ----------
    directory : pathlib.Path
        A group in whose place others can be made: ``/sys/fs/cgroup/cpu``, or of version 2
        ``/sys/fs/cgroup``.
    """

    def __init__(self, directory: Path) -> None:
        self._above = directory
        self._path = directory / f"hpcext-benchmark-{os.getpid()}"
        self._path.mkdir()
        self._second = (directory / "cgroup.controllers").exists()
        if self._second:
            (directory / "cgroup.subtree_control").write_text("+cpu")
        self._now = 0.0

    def set(self, cores: float) -> None:
        """Have so much of a core, at most."""
        if cores == self._now:
            return
        quota_us = round(cores * PERIOD_US)
        if self._second:
            (self._path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self._path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._path / "cpu.cfs_quota_us").write_text(str(quota_us))
        self._now = cores

    def enter(self) -> None:
        """Be in it, with all threads."""
        (self._path / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Be where others are."""
        (self._above / "cgroup.procs").write_text(str(os.getpid()))
        self._path.rmdir()


@contextlib.contextmanager
def quota(directory: Path) -> Iterator[Quota]:
    """A control group of this process, as long as it lasts."""
    made = Quota(directory)
    try:
        made.enter()
        yield made
    finally:
        made.leave()


def phase(step: int, ranks: int, changing: int | None) -> int:
    """The rank that has less of its core in a step: each in turn, and then none (`ranks`)."""
    return ranks if changing is None else step // changing % (ranks + 1)


def slowed(rank: int, step: int, ranks: int, changing: int | None) -> bool:
    """Whether a rank has less of its core in a step."""
    return phase(step, ranks, changing) == rank


def cores(rank: int, step: int, ranks: int, changing: int | None) -> float:
    """The share of a core that a rank has in a step."""
    if step < WARM_UP:
        return 1.0
    share = CORES[rank % len(CORES)]
    return share / FEWER if slowed(rank, step, ranks, changing) else share


class Step(NamedTuple):
    """What a rank says of a step: its length, its own part of it, its samples."""

    step_s: float
    own_s: float
    samples: int


Rows = Sequence[Sequence[Step]]
"""Steps of each rank."""


def compare(ways: dict[str, Rows], changing: int | None) -> dict[str, Any]:
    """The figures of trainings by several ways; the first one is plain, the second is balanced."""
    ranks = len(next(iter(ways.values())))
    lines = {
        (rank, slow): _line(
            [
                step
                for rows in ways.values()
                for number, step in enumerate(rows[rank])
                if number >= WARM_UP and slowed(rank, number, ranks, changing) == slow
            ]
        )
        for rank in range(ranks)
        for slow in ((False, True) if changing else (False,))
    }
    plain = next(iter(ways.values()))
    numbers = range(WARM_UP, len(plain[0]))
    phases = [phase(number, ranks, changing) for number in numbers]
    beyond: dict[int, list[float]] = {}
    for rows in ways.values():
        for number, now in zip(numbers, phases, strict=True):
            slowest_s = max(row[number].own_s for row in rows)
            beyond.setdefault(now, []).append(rows[0][number].step_s - slowest_s)
    beyond_s = {now: statistics.median(times) for now, times in beyond.items()}
    total = sum(row[0].samples for row in plain)
    best_s = {
        now: _ideal_s([lines[rank, rank == now] for rank in range(ranks)], total)
        for now in beyond_s
    }
    ideals = [best_s[now] + beyond_s[now] for now in phases]
    ideal_s = statistics.fmean(ideals)
    half = len(ideals) // 2
    late_s = statistics.fmean(ideals[half:])
    exchange_s = statistics.fmean(beyond_s[now] for now in phases)
    found: dict[str, Any] = {"ideal_ms": ideal_s * 1e3, "exchange_ms": exchange_s * 1e3, "ways": {}}
    for name, rows in ways.items():
        times = [step.step_s for step in rows[0]][WARM_UP:]
        found["ways"][name] = {
            "ms": statistics.fmean(times) * 1e3,
            "of_ideal": statistics.fmean(times) / ideal_s,
            "of_ideal_second_half": statistics.fmean(times[half:]) / late_s,
            "straggler_gap": _gap(rows),
        }
    plain_ms = next(iter(found["ways"].values()))["ms"]
    for way in found["ways"].values():
        way["of_plain"] = way["ms"] / plain_ms
    return found


def _line(steps: Sequence[Step]) -> Line:
    """Through what a rank took, by its samples: least squares, and never downhill."""
    samples = np.array([step.samples for step in steps], dtype=float)
    own = np.array([step.own_s for step in steps])
    spread = float(((samples - samples.mean()) ** 2).sum())
    both = float(((samples - samples.mean()) * (own - own.mean())).sum())
    steepest = float(own.mean() / samples.mean())
    slope = min(max(both / spread if spread else steepest, 1e-3 * steepest), steepest)
    return Line(float(own.mean()) - slope * float(samples.mean()), slope)


def _ideal_s(lines: Sequence[Line], total: int) -> float:
    sizes = level(lines, total, [1] * len(lines), [total] * len(lines))
    return max(line.at(size) for line, size in zip(lines, sizes, strict=True))


def _gap(rows: Rows) -> float:
    """How much sooner the fastest rank is done than the slowest, as a share of the latter's time;
    over the second half of the steps."""
    means = [statistics.fmean(step.own_s for step in row[len(row) // 2 :]) for row in rows]
    return 1 - min(means) / max(means)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is asked of a run."""
    parser.add_argument("--quotas", type=Path, metavar="DIR", help="where to make control groups")
    parser.add_argument("--changing", type=int, metavar="N", help="other speeds every N steps")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--save", type=Path, metavar="FILE", help="put the figures there")


def report(framework: str, figures: dict[str, Any], args: argparse.Namespace) -> None:
    """Print a run with what must be known of it: when, on what, beside what; save it if asked."""
    kind = f"changing every {args.changing} steps" if args.changing else "static"
    run = {
        "name": f"{framework}, quotas {kind}",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "hardware": f"{os.cpu_count()} cores, {_processor()}",
        "load_average": round(os.getloadavg()[0], 1),
        "iterations": args.iterations,
        **figures,
    }
    show(run)
    if args.save:
        save(args.save, run)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "unknown kind"


def show(run: dict[str, Any]) -> None:
    """Print a run."""
    print(
        f"{run['name']}, {run['date']}, {run['hardware']}, load {run['load_average']:.1f}: ideal "
        f"{run['ideal_ms']:.1f} ms, of which {run['exchange_ms']:.1f} beyond the slowest rank"
    )
    for name, way in run["ways"].items():
        print(
            f"{name:7} {way['ms']:6.1f} ms, {way['of_ideal'] - 1:+6.1%} of the ideal (second half "
            f"{way['of_ideal_second_half'] - 1:+6.1%}), {way['of_plain'] - 1:+6.1%} of plain; "
            f"gap {way['straggler_gap']:.0%}"
        )


def save(path: Path, run: dict[str, Any]) -> None:
    """Put a run into a file, in the place of the one of its name."""
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    runs = [each for each in runs if each["name"] != run["name"]] + [run]
    runs.sort(key=lambda each: each["name"])
    text = json.dumps(_rounded(runs), indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value


def gathered(session: Any, steps: Sequence[Step]) -> Rows:
    """On rank 0, the steps of all ranks."""
    parts = session.training.coordinator.ranks.gather(json.dumps(steps).encode())
    return [[Step(*step) for step in json.loads(part)] for part in parts]
