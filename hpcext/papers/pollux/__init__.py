"""Qiao et al., *Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning*, 2021.

The simulator experiments of section 5.3 on the published measurements and workloads, and Table 2,
which the authors measured on a real cluster.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcext.papers.pollux.autoscale import Bills, bills, figure_9
from hpcext.papers.pollux.runs import NEEDS, PolluxRun, simulated
from hpcext.papers.study import Extent, Row, Study, Table, figure, many
from hpcext.sim.evaluate.metrics import fairness, figures
from hpcext.sim.workloads.generated import FOLDER

EXACT, GENETIC = "pollux", "pollux:search=genetic"
JCT = "pollux:objective=jct"
"""A policy of hpcext that is not in the paper."""

OPTIMUS, TIRESIAS = "optimus:interval_s=60", "tiresias"
"""Policies to compare with. All decide every 60 s, as in the authors' simulator."""

NAMES = {
    GENETIC: "pollux, genetic search",
    OPTIMUS: "optimus with oracle",
    TIRESIAS: "tiresias",
    EXACT: "pollux, exact",
}

WORKLOADS = (1, 2, 3, 4)

PUBLISHED: Mapping[str, Sequence[float]] = {
    GENETIC: (2088.8, 3322.9, 2188.5, 2721.0),
    OPTIMUS: (4087.1, 6913.9, 3944.0, 5967.8),
    TIRESIAS: (2473.6, 5145.0, 3876.3, 3280.3),
    EXACT: (2088.8, 3322.9, 2188.5, 2721.0),
}
"""Average JCT in seconds by workload, as published from the authors' own simulator."""

TABLE_2: Mapping[str, tuple[str, float, float, float]] = {
    EXACT: ("Pollux (p = -1)", 0.76, 11.0, 16.0),
    OPTIMUS: ("Optimus+Oracle+TunedJobs", 1.5, 15.0, 20.0),
    TIRESIAS: ("Tiresias+TunedJobs", 1.2, 15.0, 24.0),
    "pollux:p=1": ("Pollux (p = +1)", 0.83, 10.0, 16.0),
    "pollux:p=-10": ("Pollux (p = -10)", 0.84, 12.0, 18.0),
}
"""Average and 99th percentile of JCT, and makespan, in hours on the testbed."""

MADE_LOADS = (0.5, 1.0, 1.5)
"""Loads for which objective=jct is compared."""

INTERVALS: Mapping[float, float] = {30.0: 2729.1, 120.0: 2805.9, 240.0: 2968.5, 480.0: 3354.2}
BASE_S = 2751.0
"""Figure 8b: average JCT over the authors' eight workloads by scheduling interval; and at 60 s."""

LOADS: Mapping[float, float] = {0.5: 1534.0, 1.5: 3685.4, 2.0: 5289.2}
"""Figure 8a: the same by load, under Pollux."""

SLOWDOWNS: Mapping[float, float] = {0.0: 2757.9, 0.25: 3177.1, 0.5: 3903.1}
"""Figure 8c: the same by interference, if jobs are not kept apart."""


class Found(NamedTuple):
    """The figures of a run."""

    jct_s: float
    p99_s: float
    makespan_s: float
    rho: tuple[float, ...]


def summed(case: PolluxRun) -> Found:
    """Simulate a case and return its figures."""
    run = simulated(case)
    known = figures(run)
    if known.jct_mean_s is None or known.jct_p99_s is None or known.makespan_s is None:
        raise RuntimeError(f"{case}: no job completed")
    rho = tuple(fairness(run.jobs).tolist())
    return Found(known.jct_mean_s, known.jct_p99_s, known.makespan_s, rho)


Runs = Mapping[PolluxRun, Found]


class _Plan:
    """The runs that tables need: they are first collected, and later looked up."""

    def __init__(self, data: Path | None, how: Extent) -> None:
        self.data, self.how = data, how
        self.cases: dict[PolluxRun, None] = {}
        self.found: Runs = {}
        self.bills: Bills = {}

    @property
    def workloads(self) -> Sequence[int]:
        """The numbers of the workloads to run."""
        return WORKLOADS[:1] if self.how.quick else WORKLOADS

    def mean(self, policy: str, field: str = "jct_s", **more: float) -> float | None:
        """Return the mean of a figure over the workloads; None while it is unknown."""
        return _mean(self.one(policy, field, workload=each, **more) for each in self.workloads)

    def made(self, policy: str, load: float) -> float | None:
        """Return the average JCT over generated workloads."""
        seeds = self.how.seeds[:1] if self.how.quick else self.how.seeds
        return _mean(self.one(policy, "jct_s", seed=seed, load=load) for seed in seeds)

    def one(self, policy: str, field: str, **more: float) -> float | None:
        """Return a figure of one run."""
        found = self.run(policy, **more)
        return None if found is None else float(getattr(found, field))

    def run(self, policy: str, **more: float) -> Found | None:
        """Return the figures of one run; None while they are unknown."""
        if self.data is None:
            return None
        case = PolluxRun(self.data, policy, **more)  # type: ignore[arg-type]
        self.cases[case] = None
        return self.found.get(case)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _ratio(ours: float | None, base: float | None) -> float | None:
    return None if ours is None or not base else ours / base


def _less(ours: float | None, theirs: float | None) -> float | None:
    """Return the reduction of `theirs` to `ours`, in percent."""
    return None if ours is None or not theirs else 100 * (1 - ours / theirs)


def _hours(seconds: float | None) -> float | None:
    return _ratio(seconds, 3600)


def study(how: Extent) -> Study:
    """Reproduce average JCT by workload, Table 2, and Figures 7 to 9.

    A quick study has one workload, one seed and one load, and no genetic search.
    """
    data = how.data / FOLDER if how.data is not None else None
    plan = _Plan(data, how)
    tables = _tables(plan)
    if plan.cases:
        # The genetic search takes longest.
        cases = sorted(plan.cases, key=lambda case: (not case.searches, case.name != "pollux"))
        plan.found = many(summed, cases, how.workers)
        plan.bills = bills(plan.data, how) if plan.data is not None else {}
        tables = _tables(plan)
    return Study(
        "pollux",
        "Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning (Qiao et al., "
        "2021)",
        tables,
        ASSUMED,
    )


def _tables(plan: _Plan) -> tuple[Table, ...]:
    return (
        _by_workload(plan),
        _lower(plan),
        _shorter(plan),
        _table_2(plan),
        _reductions(plan),
        _figure_7(plan),
        _figure_8a(plan),
        _figure_8b(plan),
        _figure_8c(plan),
        figure_9(plan.bills, NEEDS if plan.data is None else "not in the quick study"),
    )


def _row(
    plan: _Plan,
    what: str,
    ours: float | None,
    paper: float | None,
    *,
    unit: str = "",
    why: str = "",
) -> Row:
    if ours is None:
        why = NEEDS if plan.data is None else "not in the quick study"
    return figure(what, ours, paper, unit, why)


class _Fairness(NamedTuple):
    """The finish-time fairness rho of jobs: the share below 2 in percent, the mean, and the worst.

    All are None while they are unknown.
    """

    below: float | None = None
    mean: float | None = None
    largest: float | None = None

    @classmethod
    def of(cls, plan: _Plan, policy: str) -> _Fairness:
        """Return the fairness over all workloads together."""
        found = [plan.run(policy, workload=number) for number in plan.workloads]
        rho = np.array([each for one in found if one is not None for each in one.rho])
        if not len(rho):
            return cls()
        return cls(100 * float(np.mean(rho < 2)), float(np.mean(rho)), float(np.max(rho)))

    def rows(self, plan: _Plan, name: str) -> list[Row]:
        """Return the rows of the mean and of the worst."""
        return [
            _row(plan, f"{name}: mean rho", self.mean, None),
            _row(plan, f"{name}: largest rho", self.largest, None),
        ]


def _each_workload(
    plan: _Plan, policy: str, what: str, papers: Sequence[float], why: str = ""
) -> Iterator[Row]:
    """Yield the average JCT under a policy of each published workload."""
    for number, paper in zip(WORKLOADS, papers, strict=True):
        known = number in plan.workloads and not (plan.how.quick and policy == GENETIC)
        ours = plan.one(policy, "jct_s", workload=number) if known else None
        yield _row(plan, f"{what}, workload {number}", ours, paper, unit="s", why=why)


def _by_workload(plan: _Plan) -> Table:
    rows: list[Row] = []
    for policy in (TIRESIAS, OPTIMUS, GENETIC):
        rows += _each_workload(plan, policy, NAMES[policy], PUBLISHED[policy])
    return Table(
        "Average JCT of each published workload, beside the authors' simulator",
        tuple(rows),
        "160 jobs in 8 hours on 16 nodes of 4 GPUs; theirs varies by about 1 % between runs",
    )


def _lower(plan: _Plan) -> Table:
    rows = _each_workload(plan, EXACT, NAMES[EXACT], PUBLISHED[EXACT])
    return Table(
        "The same objective solved exactly, beside the authors' genetic search: average JCT",
        tuple(rows),
    )


def _shorter(plan: _Plan) -> Table:
    why = "short completion times are what it is for"
    rows = list(_each_workload(plan, JCT, "average JCT", PUBLISHED[EXACT], why))
    for load in MADE_LOADS[:1] if plan.how.quick else MADE_LOADS:
        share = _less(plan.made(JCT, load), plan.made(EXACT, load))
        what = f"less than {NAMES[EXACT]}, on generated workloads at {load:g} times the load"
        rows.append(_row(plan, what, share, None, unit="%"))
    for policy, name in ((EXACT, NAMES[EXACT]), (JCT, "objective=jct")):
        p99_h = _hours(plan.mean(policy, "p99_s"))
        rows.append(_row(plan, f"{name}: 99th percentile of JCT", p99_h, None, unit="h"))
        rows += _Fairness.of(plan, policy).rows(plan, name)
    return Table(
        "Rules of hpcext for short completion times (objective=jct), beside the authors' simulator",
        tuple(rows),
    )


def _table_2(plan: _Plan) -> Table:
    rows = []
    why = "the testbed ran another workload (6), which is not among the data"
    for policy, (name, *paper) in TABLE_2.items():
        if plan.how.quick and policy.startswith("pollux:"):
            continue
        for field, what, hours in zip(
            ("jct_s", "p99_s", "makespan_s"),
            ("average JCT", "99th percentile of JCT", "makespan"),
            paper,
            strict=True,
        ):
            ours = _hours(plan.mean(policy, field))
            rows.append(_row(plan, f"{name}: {what}", ours, hours, unit="h", why=why))
    untuned = "needs the workload with the GPUs of the original trace, which is not among the data"
    for name, hours in (("Optimus+Oracle", 2.7), ("Tiresias", 2.8)):
        rows.append(Row(f"{name}: average JCT", None, hours, "h", untuned))
    return Table("Table 2: on the testbed; ours: simulated, mean of the workloads", tuple(rows))


def _reductions(plan: _Plan) -> Table:
    rows = []
    exact = plan.mean(EXACT)
    for policy, paper in ((OPTIMUS, 48.0), (TIRESIAS, 32.0)):
        ours = _less(exact, plan.mean(policy))
        why = "theirs is for eight workloads and the genetic search"
        rows.append(_row(plan, f"less than {NAMES[policy]}", ours, paper, unit="%", why=why))
    return Table("Section 5.3: by how much Pollux reduces the average JCT", tuple(rows))


def _figure_7(plan: _Plan) -> Table:
    rows = []
    fewer = (EXACT, OPTIMUS, TIRESIAS)
    for policy in fewer if plan.how.quick else TABLE_2:
        name, fairness_ = TABLE_2[policy][0], _Fairness.of(plan, policy)
        paper = 99.0 if policy == EXACT else None
        rows.append(_row(plan, f"{name}: jobs with rho < 2", fairness_.below, paper, unit="%"))
        rows += fairness_.rows(plan, name)
    return Table(
        "Figure 7: finish-time fairness rho",
        tuple(rows),
        "JCT over the time that the job takes alone on an equal share of the machine, without any "
        "restart, and with the best batch known in advance (Pollux) or the workload's (the others)",
    )


def _figure_8a(plan: _Plan) -> Table:
    rows = []
    base = plan.made(EXACT, 1.0)
    for load, paper in LOADS.items():
        if plan.how.quick and load > 0.5:
            continue
        here = plan.made(EXACT, load)
        ours = _ratio(here, base)
        why = "workloads of other loads are drawn anew, in the paper and here"
        rows.append(_row(plan, f"Pollux at {load:g} times the load", ours, paper / BASE_S, why=why))
        for policy in (OPTIMUS, TIRESIAS):
            share = _less(here, plan.made(policy, load))
            rows.append(_row(plan, f"less than {NAMES[policy]} at {load:g}", share, None, unit="%"))
    return Table(
        "Figure 8a: average JCT by load, as a multiple of that at the paper's load", tuple(rows)
    )


def _figure_8b(plan: _Plan) -> Table:
    rows = []
    base = plan.mean(EXACT)
    for interval_s, paper in INTERVALS.items():
        if plan.how.quick and interval_s != 240.0:
            continue
        ours = _ratio(plan.mean(f"pollux:interval_s={interval_s:g}"), base)
        why = "hpcext decides as soon as a job arrives or ends, whatever the interval; theirs waits"
        rows.append(_row(plan, f"every {interval_s:g} s", ours, paper / BASE_S, why=why))
    return Table(
        "Figure 8b: average JCT by scheduling interval, as a multiple of that at 60 s", tuple(rows)
    )


def _figure_8c(plan: _Plan) -> Table:
    rows = []
    base = plan.mean(EXACT)
    for slowdown, paper in SLOWDOWNS.items():
        if plan.how.quick and slowdown != 0.5:
            continue
        for policy, name in ((EXACT, "apart"), ("pollux:apart=false", "sharing nodes")):
            ours = _ratio(plan.mean(policy, interference=slowdown), base)
            theirs = 1.0 if policy == EXACT else paper / BASE_S
            why = "with equal numbers of GPUs on each node, fewer jobs share a node"
            what = f"{name}, {100 * slowdown:g} % slower"
            rows.append(_row(plan, what, ours, theirs, why=why))
    return Table(
        "Figure 8c: average JCT by interference, as a multiple of that without", tuple(rows)
    )


ASSUMED = (
    "A job does the work of all epochs of its measured training; it counts in steps of the "
    "smallest batch, as the least progress of any batch by the end of each epoch.",
    "Batches lie between the smallest and largest with which whole trainings were measured, and on "
    "a GPU in the range of placements.csv; YOLOv3 has at most 8, as in the authors' code.",
    "A placement that was not measured has the step time of an evenly spread one with the same "
    "mean number of GPUs per node, interpolated linearly between measured numbers of nodes.",
    "NeuMF (ncf) runs on one GPU with a total batch of 32,768 under all policies, as in the "
    "authors' simulator.",
    "Each start and each re-allocation costs 30 s without progress; agents report every 30 s.",
    "An agent keeps one measurement of per-GPU batches within 10 % of each other, and knows how "
    "long a pass takes without its synchronisation; as long as it has seen only one batch, half of "
    "a pass is assumed not to depend on the batch.",
    "Under exact pollux and optimus a job has the same number of GPUs on each of its nodes; under "
    "the genetic search and tiresias they are spread in any way, as in the authors' simulator.",
    "Optimus knows the true step time on the fewest possible nodes, and the remaining steps; "
    "Tiresias has two queues, divided at 16 GPU-hours.",
    "Policies decide every 60 s, and as soon as a job arrives or ends; the authors' simulator "
    "decides only at whole minutes, which adds half a minute to each JCT.",
    "Figure 9: at most 16 nodes of 4 GPUs, whose number is decided every minute; scaling by "
    "throughput uses the same rule, but values all samples equally. Both get at most twice the "
    "GPUs that they had, as in section 4.1.",
    "Generated workloads (Figure 8a) have the mixture of Table 1, the hourly arrivals of the "
    "published workloads 1 to 4, and configurations that occur in them.",
)
