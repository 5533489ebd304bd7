"""Capes et al., *Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs*, 2019.

Table 3: the average completion time of equal jobs on 64 GPUs, under six strategies and three levels
of contention, by the simulator of section 7. The jobs are those of Table 2: ResNet-110 on CIFAR-10.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.values import Node
from hpcext.papers.study import Extent, Row, Study, Table, figure, many
from hpcext.policies import find_policy
from hpcext.sim.replay import run as replay
from hpcext.sim.workloads.capes import (
    JOBS,
    MINUTES,
    RESTART_S,
    STATED,
    WINDOW_S,
    arrivals_s,
    capes_jobs,
)

NODES, GPUS = 8, 8
"""Number of nodes, and GPUs of each: 64 GPUs (section 7), on nodes like that of section 5."""

TURN_S = 600.0
"""Turn of a job of fixed size while others wait, in seconds: the interval of Optimus, which the
paper extends."""

REPORT_S = 30.0
"""Seconds between reports of a job that is explored; measurements begin with the first one."""


class Strategy(NamedTuple):
    """A row of Table 3.

    Attributes
    ----------
    policy : str
        Name and options, as :func:`~hpcext.policies.find_policy` takes them.
    paper : tuple of float
        Hours in the paper, by contention; empty if it has none.
    stated : bool
        Whether the policy knows the speeds of Table 2, as *precompute* does.
    reports : bool
        Whether it needs reports of jobs while they train.
    """

    policy: str
    paper: tuple[float, ...] = ()
    stated: bool = False
    reports: bool = False


_FIXED = {
    "Eight": (8, (22.76, 6.20, 1.40)),
    "Four": (4, (12.90, 3.50, 2.21)),
    "Two": (2, (11.49, 4.58, 3.78)),
    "One": (1, (10.10, 6.32, 6.37)),
}

PAPERS: Mapping[str, Strategy] = {
    "Precompute": Strategy("doubling:strategy=precompute", (7.63, 2.63, 1.40), stated=True),
    # 150 s on each size, including the first report.
    "Exploratory": Strategy(
        f"doubling:explore_s={150 - REPORT_S:g}", (20.42, 2.92, 1.47), reports=True
    ),
    **{
        name: Strategy(f"fixed:gpus={gpus},turn_s={TURN_S:g}", hours)
        for name, (gpus, hours) in _FIXED.items()
    },
}
"""The strategies of Table 3."""

EXACT = "Exact (total_time)"
OURS: Mapping[str, Strategy] = {
    EXACT: Strategy("total_time", stated=True),
    **{
        f"{name}, without turns": Strategy(f"fixed:gpus={gpus}", hours)
        for name, (gpus, hours) in _FIXED.items()
    },
}
"""Strategies that are not in the paper."""

ALL = {**PAPERS, **OURS}


class CapesRun(NamedTuple):
    """One run: a strategy, a contention, and a seed."""

    strategy: str
    contention: str
    seed: int


class Outcome(NamedTuple):
    """The outcome of a run: mean hours of a job, and the largest number of jobs at once."""

    mean_h: float
    peak: int


def run(case: CapesRun) -> Outcome:
    """Simulate a strategy on the jobs of a seed."""
    strategy = ALL[case.strategy]
    known = STATED if strategy.stated else replace(STATED, stated={})
    given = list(capes_jobs(arrivals_s(case.contention, case.seed), known))
    nodes = tuple(Node(f"node{number}", GPUS) for number in range(1, NODES + 1))
    how = replay.SimulationOptions(case.seed, report_s=REPORT_S if strategy.reports else None)
    policy = find_policy(strategy.policy)
    result = replay.run(replay.Scenario(given, nodes), policy, replay.Named(strategy.policy), how)
    times = [(row.submitted_s, row.ended_s) for row in result.jobs if row.ended_s is not None]
    if len(times) < len(given):
        raise RuntimeError(f"{case}: some job did not end")
    begins_s, ends_s = zip(*times, strict=True)
    took_s = [end_s - begin_s for begin_s, end_s in times]
    return Outcome(statistics.fmean(took_s) / 3600, _peak(begins_s, ends_s))


def _peak(begins: Sequence[float], ends: Sequence[float]) -> int:
    """Return the largest number of jobs at once."""
    events = sorted([(when, -1) for when in ends] + [(when, 1) for when in begins])
    most = here = 0
    for _, change in events:
        here += change
        most = max(most, here)
    return most


def study(how: Extent) -> Study:
    """Reproduce Table 3; a quick study has no extreme contention, and one seed."""
    contentions = [name for name in JOBS if not how.quick or name != "extreme"]
    seeds = how.seeds[:1] if how.quick else how.seeds
    # Extreme contention takes longest, so it comes first.
    cases = [CapesRun(name, level, seed) for level in contentions for name in ALL for seed in seeds]
    outcomes = many(run, cases, how.workers)
    found = {
        (name, level): [outcomes[CapesRun(name, level, seed)] for seed in seeds]
        for level in contentions
        for name in ALL
    }
    tables = [_table(level, found) for level in contentions]
    return Study(
        "capes-doubling",
        "Dynamic scheduling of MPI-based distributed deep learning (Capes et al., 2019)",
        (*tables, _claims(contentions, found), _peaks(contentions, found)),
        _assumed(),
    )


Found = Mapping[tuple[str, str], Sequence[Outcome]]
"""Outcomes by seed, for each strategy and contention."""


def _mean_h(found: Found, name: str, level: str) -> float:
    return statistics.fmean(each.mean_h for each in found[name, level])


def _table(level: str, found: Found) -> Table:
    at = list(JOBS).index(level)
    rows = []
    for name, strategy in ALL.items():
        hours = [each.mean_h for each in found[name, level]]
        spread = f"{min(hours):.2f} to {max(hours):.2f} over {len(hours)} seeds"
        ours, paper = statistics.fmean(hours), strategy.paper[at] if strategy.paper else None
        more = spread if len(hours) > 1 else ""
        rows.append(figure(name, ours, paper, "h", _why(name, level), more=more))
    return Table(
        f"Table 3, {level} contention: average job completion time",
        tuple(rows),
        f"{JOBS[level]} jobs on {NODES * GPUS} GPUs; of policies that do not know the future, "
        f"{EXACT} comes nearest to the best",
    )


def _why(name: str, level: str) -> str:
    """Return the reason why a figure is far from the paper's."""
    if name.endswith("without turns"):
        return _why_turns(name.removesuffix(", without turns"), level)
    if name == "Exploratory" and level == "extreme":
        return (
            "the paper does not explain it; here a new job is measured once all earlier ones have "
            "a GPU, and keeps what it was given: jobs do not take turns"
        )
    if name == "Exploratory":
        kept = 8 * 600 * JOBS[level] / WINDOW_S
        return (
            f"keeping eight GPUs for ten minutes of each job takes {kept:.0f} of 64 while jobs "
            "arrive; the paper does not say whether a job keeps those that it is not measured on, "
            "nor which jobs make room for a new one"
        )
    if name in _FIXED:
        return (
            "the mean depends strongly on the paper's single draw of arrivals, because the load is "
            "near or above the capacity with jobs of this size; the length of turns is assumed"
        )
    return "the paper has one draw of the arrivals, and does not state its scheduling interval"


def _why_turns(name: str, level: str) -> str:
    gpus = _FIXED[name][0]
    places, needs_h = NODES * GPUS // gpus, MINUTES[gpus] / 60
    all_at_once_h = statistics.fmean(
        needs_h * math.ceil(number / places) for number in range(1, JOBS[level] + 1)
    )
    why = (
        "first come, first served, as in a batch system; with equal jobs and without preemption "
        "the mean is the same in every order"
    )
    if all_at_once_h < _FIXED[name][1][list(JOBS).index(level)]:
        why += (
            f", and {all_at_once_h:.1f} h even if all jobs came at once: the paper's jobs must "
            "have taken turns"
        )
    return why


def _claims(levels: Sequence[str], found: Found) -> Table:
    """Return a table of the claims of section 7."""
    rows = []
    for level in levels:
        at = list(JOBS).index(level)
        best = _mean_h(found, "Precompute", level)
        others = [name for name in PAPERS if name != "Precompute"]
        ours = min(_mean_h(found, name, level) for name in others) / best
        paper = min(PAPERS[name].paper[at] for name in others) / PAPERS["Precompute"].paper[at]
        rows.append(_ratio(f"the best other strategy / Precompute, {level}", ours, paper))
        if level == "moderate":
            ours = _mean_h(found, "Eight", level) / best
            rows.append(_ratio("Eight / Precompute, moderate", ours, 6.20 / 2.63))
            ours = _mean_h(found, "Eight, without turns", level) / best
            rows.append(_ratio("the same, Eight without turns", ours, 6.20 / 2.63))
        rows.append(_ratio(f"Precompute / exact, {level}", best / _mean_h(found, EXACT, level)))
    return Table("Section 7: what is compared", tuple(rows))


def _ratio(what: str, ours: float, paper: float | None = None) -> Row:
    return figure(what, ours, paper, "times", "see the rows of Table 3 that it is computed from")


def _peaks(levels: Sequence[str], found: Found) -> Table:
    paper = {"extreme": 125.0, "moderate": 59.0, "none": 20.0}
    most_h = 125 * MINUTES[8] / 60 * GPUS / (NODES * GPUS)
    rows = []
    for level in levels:
        peaks = [statistics.fmean(each.peak for each in found[name, level]) for name in PAPERS]
        why = "the paper has one draw of the arrivals"
        if level == "extreme":
            why = (
                f"the strategy with the fewest has {min(peaks):.0f}; if there were at most 125 "
                f"jobs, and eight at a time ran, Eight would take at most {most_h:.1f} h, but the "
                "paper has 22.76 h"
            )
        rows.append(figure(f"{level} contention", max(peaks), paper[level], "jobs", why))
    return Table(
        "Section 7: most jobs at once", tuple(rows), "of all six strategies, mean of the seeds"
    )


def _assumed() -> tuple[str, ...]:
    return (
        "nothing is fitted: speeds are Table 2's times of whole trainings, on 1, 2, 4 and 8 GPUs",
        f"a change of size costs {RESTART_S:g} s (section 6); the first start of a job is free",
        f"jobs arrive as a Poisson process in one window of {WINDOW_S:,.0f} s, in which the three "
        "rates together lead one to expect the paper's numbers of jobs",
        f"64 GPUs are {NODES} nodes with {GPUS}; a job has at most {GPUS}, all on one node",
        f"under the fixed strategies waiting and running jobs take turns of {TURN_S:g} s: the "
        "paper does not say so, but its times cannot be explained otherwise",
        "precompute and exact are told the speeds (labelled, as in the paper); exploratory learns "
        "them from reports; all are told how many epochs are left, which the paper predicts",
        "doubling and exact decide when a job arrives or ends, and every 60 s",
    )
