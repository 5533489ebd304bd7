"""A comparison of simulated runs: the gain of one policy over another.

Each run is compared with the baseline's run of the same seed, and only then are the results
summarised, so that chance that affects both of a pair does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hpcext.sim.evaluate.measures import MEASURES, Figures
from hpcext.sim.evaluate.metrics import (
    HOUR_S,
    Over,
    by_label,
    figures,
    integral,
    jobwise,
    last_end_s,
    over,
    over_seeds,
)
from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun

LATER_S = 1e-3
"""Seconds by which a job must end later to count as delayed; less is rounding."""

MOST_NAMED = 20
"""Largest number of delayed jobs to name, the longest delays first."""

JOULES_PER_KWH = 3.6e6


class Watts(NamedTuple):
    """The power of one GPU in watts: while a job makes progress on it, and otherwise."""

    busy: float
    idle: float


class Delay(msgspec.Struct, frozen=True):
    """A job that completed later than in the baseline.

    Attributes
    ----------
    job, name : str
    seed : int
    delay_s : float or None
        Delay of its completion; None if it completed only in the baseline.
    """

    job: str
    name: str
    seed: int
    delay_s: float | None


class Versus(msgspec.Struct, frozen=True):
    """A run compared with the run of the baseline with the same seed.

    Attributes
    ----------
    ratios : dict of str to (float or None)
        Measure → this run's figure as a multiple of the baseline's. Figures of jobs
        (:func:`~hpcext.sim.evaluate.metrics.jobwise`) are of the jobs that completed in both.
    both : int
        Number of jobs that completed in both.
    gained_gpu_h : float
        GPU-hours of training in excess of the baseline's.
    freed_gpu_h : float or None
        GPU-hours of the machine saved until the last job ended; None unless all ended in both runs.
    delayed : int
        Jobs that completed in the baseline, and here later or not at all.
    longest : tuple of Delay
        The first :data:`MOST_NAMED` of them.
    """

    ratios: dict[str, float | None]
    both: int
    gained_gpu_h: float
    freed_gpu_h: float | None
    delayed: int
    longest: tuple[Delay, ...]


class Row(msgspec.Struct, frozen=True):
    """The runs of one label, summarised over their seeds.

    Attributes
    ----------
    label, policy, workload, source : str
    seeds : tuple of int
    figures : dict of str to (Over or None)
        Every measure of :data:`~hpcext.sim.evaluate.measures.MEASURES`.
    ratios : dict of str to (Over or None)
        The figures as multiples of the baseline's; empty for the baseline.
    pairs : int
        Number of seeds that the baseline has too; comparisons are over these.
    both : Over or None
        Jobs that completed here and in the baseline.
    gained_gpu_h, freed_gpu_h, delayed : Over or None
        As in :class:`Versus`; None for the baseline.
    longest : tuple of Delay
        Longest delays of all seeds.
    energy_kwh, saved_kwh : Over or None
        Energy of the GPUs, and how much less than in the baseline; None without watts.
    """

    label: str
    policy: str
    workload: str
    source: str
    seeds: tuple[int, ...]
    figures: dict[str, Over | None]
    ratios: dict[str, Over | None]
    pairs: int = 0
    both: Over | None = None
    gained_gpu_h: Over | None = None
    freed_gpu_h: Over | None = None
    delayed: Over | None = None
    longest: tuple[Delay, ...] = ()
    energy_kwh: Over | None = None
    saved_kwh: Over | None = None


def compared(runs: Iterable[SimulatedRun], watts: Watts | None = None) -> tuple[Row, ...]:
    """Summarise runs by label, each compared with the first label, the baseline.

    Parameters
    ----------
    runs : iterable of SimulatedRun
    watts : Watts, optional
        Power of a GPU; if given, the energy is computed.

    Raises
    ------
    InputError
        Two runs have the same label and seed.
    """
    groups = by_label(runs)
    every = {label: [figures(run) for run in group] for label, group in groups.items()}
    rows: list[Row] = []
    baseline: Mapping[int, tuple[SimulatedRun, Figures]] = {}
    for label, group in groups.items():
        numbered = {run.seed: (run, own) for run, own in zip(group, every[label], strict=True)}
        rows.append(_row(group, every[label], numbered, baseline, watts))
        baseline = baseline or numbered
    return tuple(rows)


def versus(run: SimulatedRun, own: Figures, base: SimulatedRun, theirs: Figures) -> Versus:
    """Compare a run with another run of the same jobs.

    Parameters
    ----------
    run : SimulatedRun
    own : Figures
        The figures of `run`.
    base : SimulatedRun
    theirs : Figures
        The figures of `base`.
    """
    pairs = _pairs(run, base)
    completed = [(a, b) for a, b in pairs if a.jct_s is not None and b.jct_s is not None]
    mine, other = msgspec.structs.asdict(own), msgspec.structs.asdict(theirs)
    mine.update(jobwise([a for a, _ in completed]))
    other.update(jobwise([b for _, b in completed]))
    delays = _delays(pairs, run.seed)
    ends = last_end_s(run.jobs), last_end_s(base.jobs)
    freed = None
    if ends[0] is not None and ends[1] is not None:
        freed = integral(base.spans, "offered", ends[1]) - integral(run.spans, "offered", ends[0])
    return Versus(
        ratios={each.key: _ratio(mine[each.key], other[each.key]) for each in MEASURES},
        both=len(completed),
        gained_gpu_h=(own.training_gpu_h or 0.0) - (theirs.training_gpu_h or 0.0),
        freed_gpu_h=None if freed is None else freed / HOUR_S,
        delayed=len(delays),
        longest=tuple(delays[:MOST_NAMED]),
    )


def energy_kwh(run: SimulatedRun, watts: Watts) -> float:
    """Return the energy of the GPUs until the run ends.

    A GPU on which a job makes progress is busy; every other one is idle, also one that is held by a
    job that starts or saves.

    Parameters
    ----------
    run : SimulatedRun
    watts : Watts
        Power of one GPU.
    """
    training, offered = integral(run.spans, "training"), integral(run.spans, "offered")
    return (training * watts.busy + (offered - training) * watts.idle) / JOULES_PER_KWH


def _row(
    group: Sequence[SimulatedRun],
    every: Sequence[Figures],
    numbered: Mapping[int, tuple[SimulatedRun, Figures]],
    baseline: Mapping[int, tuple[SimulatedRun, Figures]],
    watts: Watts | None,
) -> Row:
    first = group[0]
    shared = [seed for seed in numbered if seed in baseline]
    against = [versus(*numbered[seed], *baseline[seed]) for seed in shared]
    return Row(
        label=first.label,
        policy=first.policy,
        workload=first.workload,
        source=first.source,
        seeds=tuple(run.seed for run in group),
        figures=over_seeds(every),
        ratios={m.key: over(each.ratios[m.key] for each in against) for m in MEASURES}
        if against
        else {},
        pairs=len(against),
        both=over(each.both for each in against),
        gained_gpu_h=over(each.gained_gpu_h for each in against),
        freed_gpu_h=over(each.freed_gpu_h for each in against),
        delayed=over(each.delayed for each in against),
        longest=tuple(_longest(delay for each in against for delay in each.longest)),
        energy_kwh=over(energy_kwh(run, watts) for run in group) if watts else None,
        saved_kwh=over(
            energy_kwh(baseline[seed][0], watts) - energy_kwh(numbered[seed][0], watts)
            for seed in shared
        )
        if watts
        else None,
    )


def _pairs(run: SimulatedRun, base: SimulatedRun) -> list[tuple[JobRow, JobRow]]:
    """Return the jobs that both runs have, by their ids."""
    known = {row.job: row for row in base.jobs}
    return [(row, known[row.job]) for row in run.jobs if row.job in known]


def _delays(pairs: Iterable[tuple[JobRow, JobRow]], seed: int) -> list[Delay]:
    late: list[Delay] = []
    for own, other in pairs:
        if other.jct_s is None or other.ended_s is None:
            continue  # it did not complete there either
        if own.jct_s is None or own.ended_s is None:
            late.append(Delay(own.job, own.name, seed, None))
        elif own.ended_s - other.ended_s > LATER_S:
            late.append(Delay(own.job, own.name, seed, own.ended_s - other.ended_s))
    return sorted(late, key=_lateness)


def _longest(delays: Iterable[Delay]) -> list[Delay]:
    return sorted(delays, key=_lateness)[:MOST_NAMED]


def _lateness(delay: Delay) -> float:
    return -math.inf if delay.delay_s is None else -delay.delay_s


def _ratio(own: float | None, other: float | None) -> float | None:
    return None if own is None or not other else own / other
