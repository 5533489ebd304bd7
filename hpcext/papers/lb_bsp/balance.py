"""Figure 8 of LB-BSP: four unlike GPUs are balanced, and again when one of them gets slower.

The rules for batch sizes are those of a training (:mod:`hpcext.scaling.balance`); the times of
workers are computed.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from hpcext.papers.study import Extent, Row, Table
from hpcext.scaling.balance import FREE, IterationRecord, LeaderStraggler, Line, Rule, Sizes, level
from hpcext.scaling.balance.rules import RULES

EQUILIBRIUM: Sizes = (89, 21, 12, 6)
"""Sizes of V100, M60, K80 and K520 at the equilibrium, section 5.2."""

INITIAL = 32
LEVEL_S = 1.0

GPUS: dict[str, Line] = {
    "V100": Line(LEVEL_S - 0.5 / 57 * 89, 0.5 / 57),
    "M60": Line(LEVEL_S - 0.024 * 21, 0.024),
    "K80": Line(LEVEL_S - 0.034 * 12, 0.034),
    "K520": Line(LEVEL_S - 2.0 / 26 * 6, 2.0 / 26),
}
"""The GPUs as lines. The slopes of V100 and K520 are those of section 5.2: 57 samples more took
half a second, 26 fewer saved nearly two. The others lie between, and all meet at the
equilibrium."""

SLOWER_S = 0.3
"""Seconds by which the communication of the M60 grows at a quarter of its bandwidth."""

DROP, END = 150, 300
NEAR = 1.02
"""Multiple of the best iteration time up to which a division counts as level."""

NOISE = 0.03
"""Relative standard deviation of a worker's noisy times."""

NAMES = {
    "leader": "Algorithm 2",
    "affine": "lines (ours)",
    "best": "the best of late (ours)",
    "speeds": "Algorithm 1, memoryless",
}


class Ran(NamedTuple):
    """The result of a rule on these GPUs.

    Attributes
    ----------
    sizes : sequence
        Sizes in each iteration.
    taken : sequence of float
        Mean time of each iteration, as a multiple of the best division's.
    fine_at : int or None
        Iteration at which Algorithm 2 begins to fine-tune.
    """

    sizes: Sequence[Sizes]
    taken: Sequence[float]
    fine_at: int | None

    def near(self, begin: int, end: int) -> int | None:
        """Return the iterations after `begin` until all further ones are level; None if never.

        Parameters
        ----------
        begin, end : int
            The range of iterations.
        """
        last = max((k for k in range(begin, end) if self.taken[k] > NEAR), default=begin - 1)
        return None if last == end - 1 else last + 1 - begin

    def mean(self, begin: int, end: int) -> float:
        """Return the mean time of a range of iterations, as a multiple of the best."""
        return statistics.fmean(self.taken[begin:end])


def run(name: str, noise: float = 0.0, seed: int = 0) -> Ran:
    """Balance the four GPUs by a rule.

    Parameters
    ----------
    name : str
        A key of :data:`NAMES`.
    noise : float
        Relative standard deviation of times.
    seed : int
    """
    draw = random.Random(seed)
    rule: Rule = RULES[name]((INITIAL,) * len(GPUS), FREE, ())
    sizes_of, taken, fine_at = [], [], None
    for iteration in range(END):
        gpus = list(GPUS.values())
        if iteration >= DROP:
            gpus[1] = gpus[1]._replace(constant_s=gpus[1].constant_s + SLOWER_S)
        sizes = rule.sizes
        expected = [gpu.at(size) for gpu, size in zip(gpus, sizes, strict=True)]
        sizes_of.append(sizes)
        taken.append(max(expected) / best_s(gpus))
        times = tuple(each * max(0.1, draw.gauss(1.0, noise)) for each in expected)
        speeds = tuple(size / time_s for size, time_s in zip(sizes, times, strict=True))
        rule.see(IterationRecord(sizes, times, (0.5,) * len(sizes), speeds))
        if fine_at is None and isinstance(rule, LeaderStraggler) and rule.fine:
            fine_at = iteration + 1
    return Ran(sizes_of, taken, fine_at)


def best_s(gpus: Sequence[Line]) -> float:
    """Return the seconds of an iteration with the best division."""
    total = INITIAL * len(gpus)
    sizes = level(gpus, total, [1] * len(gpus), [total] * len(gpus))
    return max(gpu.at(size) for gpu, size in zip(gpus, sizes, strict=True))


def tables(how: Extent) -> tuple[Table, ...]:
    """Return Figure 8, and the effect of noise."""
    even_s = max(gpu.at(INITIAL) for gpu in GPUS.values())
    return (
        Table(
            "Figure 8: four GPUs from 32 samples each, and less bandwidth at iteration 150",
            tuple(row for name in NAMES for row in _rows(name)),
            f"with equal batches an iteration takes {even_s / LEVEL_S:.1f} times the best time",
        ),
        Table(
            f"Figure 8 with {NOISE:.0%} noise in the times, mean over seeds {list(how.seeds)}",
            tuple(row for name in NAMES for row in _trembling(name, how.seeds)),
        ),
    )


def _rows(name: str) -> list[Row]:
    ran, said = run(name), NAMES[name]
    paper = name == "leader"
    rows = [
        Row(
            f"{said}: samples of {gpu} at iteration {DROP - 1}",
            float(size),
            float(EQUILIBRIUM[at]) if paper else None,
        )
        for at, (gpu, size) in enumerate(zip(GPUS, ran.sizes[DROP - 1], strict=True))
    ]
    if paper:
        why = "the initial differences are not known: the paper shows them in a figure only"
        rows.append(
            Row(f"{said}: first iteration of fine-tuning", _number(ran.fine_at), 30.0, "", why)
        )
    changes = sum(a != b for a, b in zip(ran.sizes, ran.sizes[1:], strict=False))
    return [
        *rows,
        Row(f"{said}: iterations until level", _number(ran.near(0, DROP))),
        Row(f"{said}: iterations until level after the drop", _number(ran.near(DROP, END))),
        Row(f"{said}: changes of sizes", float(changes)),
        Row(f"{said}: time of all iterations over the best", ran.mean(0, END)),
    ]


def _trembling(name: str, seeds: Sequence[int]) -> list[Row]:
    means = [run(name, NOISE, seed).mean(0, END) for seed in seeds]
    return [Row(f"{NAMES[name]}: time of all iterations over the best", statistics.fmean(means))]


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


ASSUMED = (
    "the time of a GPU is linear in its samples: V100 and K520 have the slopes of section 5.2, M60 "
    "and K80 lie between, and all four meet at the equilibrium; Figure 4 gives no numbers",
    f"the bandwidth drop costs the M60 {SLOWER_S} s in an iteration of {LEVEL_S:g} s",
    "rules learn of each iteration at once; in a training on GPUs they learn of it one step later",
)
