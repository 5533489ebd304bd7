"""MARBLE (Han et al., CCGRID 2020): its job sets under LSF, MARBLE, Optimus and other policies.

Speeds are those of :mod:`hpcext.sim.workloads.marble`, so that MARBLE's times are predictions.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job, Node
from hpcext.papers.marble.bound import Work, least_s, shortest_unsuspended_s
from hpcext.papers.study import Extent, Row, Study, Table, figure, many
from hpcext.policies import find_policy
from hpcext.sim.replay import run as replay
from hpcext.sim.replay.physics import Physics
from hpcext.sim.workloads import marble as sets

MULTI_NODE, OPTIMUS_SETS = (4, 5, 6), (7, 8, 9)

REDUCTION = {1: 48.3, 2: 35.3, 3: 29.1, 4: 21.1, 5: 30.5, 6: 30.5}
"""Section VII-B: reduction of a set's time by MARBLE against LSF, in percent."""

UTILISATION = {1: 86.0, 2: 51.0, 3: 37.0}
"""Figure 6b: increase of the utilisation of GPUs, in percent."""

SUSPENDED = {1: 13.2, 3: 26.6}
"""Section VII-D1: suspensions and resumptions in percent of a set's time."""

AGAINST_OPTIMUS = 47.0
"""Section VII-C: largest reduction of a set's time by MARBLE against Optimus, in percent."""

LSF, MARBLE, OPTIMUS = "exclusive", "marble", "optimus, whole nodes"

TOLD = ("marble", "fixed", "equal_share", "bftrainer", "optimus", "doubling:strategy=precompute",
        "total_time", "pollux")  # fmt: skip
"""Policies that know the speeds, the work and the cost of a change."""

REPORT_S = 60.0
"""Seconds between reports of jobs, from which Optimus learns their speeds."""

CURVES, QUICK_CURVES = 100, 10
"""Number of random curves for each seed that agree with the text."""


class MarbleRun(NamedTuple):
    """One run.

    Attributes
    ----------
    number : int
        Number of the set.
    policy : str
    curves : (int, int) or None
        Seed and number of the random curves; None for the middle of all ranges.
    told : bool
        Whether the policy knows speeds and the costs of changes. MARBLE knows only the best number
        of GPUs.
    """

    number: int
    policy: str
    curves: tuple[int, int] | None = None
    told: bool = False


class Outcome(NamedTuple):
    """The end of the last job, and the number of suspensions."""

    time_s: float
    suspends: int


def networks_of(case: MarbleRun) -> sets.Networks:
    """Return the curves of a case."""
    return sets.networks() if case.curves is None else sets.at_random(*case.curves)


def run(case: MarbleRun) -> Outcome:
    """Simulate a set under a policy."""
    known = networks_of(case)
    jobs = [
        _job(case, order, network, steps, known)
        for order, (network, steps) in enumerate(sets.SETS[case.number], start=1)
    ]
    count = sets.nodes_of(case.number)
    nodes = tuple(Node(f"node{index}", sets.GPUS) for index in range(1, count + 1))
    learns = case.policy == OPTIMUS
    policy, report_s = ("optimus", REPORT_S) if learns else (case.policy, None)
    scenario, how = replay.Scenario(jobs, nodes), replay.SimulationOptions(report_s=report_s)
    result = replay.run(scenario, find_policy(policy), replay.Named(policy), how)
    if not result.finished:
        raise RuntimeError(f"{case}: some job did not end")
    return Outcome(result.end_s, sum(row.suspends for row in result.jobs))


def _job(
    case: MarbleRun, order: int, network: str, steps: float, known: sets.Networks
) -> tuple[Job, Physics]:
    if case.policy == OPTIMUS:
        # Optimus changes the number of a job's workers, each of which is a node.
        speed = {
            sets.GPUS * workers: known.on_workers(network, workers, sets.GPUS)
            for workers in range(1, sets.WORKERS + 1)
        }
        job = sets.set_job(case.number, order, network, Estimate(work=steps))
        job = replace(job, sizes=(sets.GPUS,), optimal=sets.GPUS, nodes=(1, sets.WORKERS))
    else:
        speed = sets.speed_of(case.number, network, known)
        estimate = sets.stating(speed, steps) if case.told else Estimate(work=steps)
        job = sets.set_job(case.number, order, network, estimate)
    return job, sets.physics_of(speed, steps)


@functools.lru_cache(maxsize=64)
def bound_s(number: int) -> float:
    """Return a lower bound on the time of a set, with curves in the middle of ranges."""
    known = sets.networks()
    jobs = [Work(_any_size(number, network, known), steps) for network, steps in sets.SETS[number]]
    return least_s(jobs, sets.GPUS * sets.nodes_of(number))


def _any_size(number: int, network: str, known: sets.Networks) -> Mapping[int, float]:
    """Return the best speed by number of GPUs on any nodes, without other jobs on the link."""
    if number in sets.ONE_NODE:
        return known.speed[network]
    best: dict[int, float] = {}
    for workers in range(1, sets.WORKERS + 1):
        for gpus in range(1, sets.GPUS + 1):
            speed = known.on_workers(network, workers, gpus)
            best[workers * gpus] = max(speed, best.get(workers * gpus, 0.0))
    return best


def study(how: Extent) -> Study:
    """Reproduce Tables II to IV and Figures 6 to 8; a quick study has fewer random curves."""
    number_of_curves = QUICK_CURVES if how.quick else CURVES
    curves = [(seed, index) for seed in how.seeds for index in range(number_of_curves)]
    cases = [
        *(MarbleRun(number, policy) for number in sets.SETS for policy in (LSF, MARBLE)),
        *(MarbleRun(number, OPTIMUS) for number in OPTIMUS_SETS),
        *(MarbleRun(number, policy, None, True) for number in sets.SETS for policy in TOLD),
        *(
            MarbleRun(number, policy, each)
            for number in (*sets.ONE_NODE, *MULTI_NODE, *OPTIMUS_SETS)
            for policy in ((LSF, MARBLE) if number not in OPTIMUS_SETS else (OPTIMUS, MARBLE))
            for each in curves
        ),
    ]
    found = many(run, cases, how.workers)
    return Study(
        "marble",
        "MARBLE: a multi-GPU aware job scheduler for deep learning on HPC (Han et al.)",
        (
            _times(found),
            _reductions(
                "Section VII-B1, Figure 6a: reduction on one node", sets.ONE_NODE, found, curves
            ),
            _utilisation(found),
            _reductions(
                "Section VII-B2, Figure 7a: reduction on nine nodes", MULTI_NODE, found, curves
            ),
            _against_optimus(found, curves),
            _suspensions(found),
            _possible(found),
            _others(found),
        ),
        _assumed(),
    )


Found = Mapping[MarbleRun, Outcome]


def _shorter(found: Found, better: MarbleRun, than: MarbleRun) -> float:
    """Return the reduction of the time of a run against another, in percent."""
    return 100 * (1 - found[better].time_s / found[than].time_s)


def _over(values: Sequence[float], unit: str) -> str:
    """Return the range of nine in ten of the values, as text."""
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return (
        f"{cuts[0]:.0f} to {cuts[-1]:.0f} {unit} for 90 % of {len(values)} random curves that "
        "agree with the text"
    )


def _times(found: Found) -> Table:
    rows = []
    for number in sets.ONE_NODE:
        lsf, why = found[MarbleRun(number, LSF)].time_s, "the speeds are fitted to this"
        rows.append(Row(f"set {number}, LSF", lsf, sets.LSF_S[number], "s", why))
        ours = found[MarbleRun(number, MARBLE)].time_s
        rows.append(Row(f"set {number}, MARBLE", ours, sets.MARBLE_S[number], "s"))
    return Table("Section VII-B1, Figure 6a: completion times on one node", tuple(rows))


def _reductions(
    title: str, numbers: Sequence[int], found: Found, curves: Sequence[tuple[int, int]]
) -> Table:
    rows = []
    for number in numbers:
        ours = _shorter(found, MarbleRun(number, MARBLE), MarbleRun(number, LSF))
        several = [
            _shorter(found, MarbleRun(number, MARBLE, each), MarbleRun(number, LSF, each))
            for each in curves
        ]
        why, more = _why_reduction(number), _over(several, "%")
        rows.append(figure(f"set {number}", ours, REDUCTION[number], "%", why, more=more))
    return Table(title, tuple(rows), "MARBLE against LSF")


def _why_reduction(number: int) -> str:
    if number in sets.ONE_NODE:
        return "Figure 2 has no numbers in the text"
    return (
        "the paper has no speeds on several nodes; they decide whether a secondary ends just "
        "before or just after GPUs for its promotion become free, and each promotion costs a tenth"
    )


def _utilisation(found: Found) -> Table:
    rows = []
    for number in sets.ONE_NODE:
        ours = 100 * (
            found[MarbleRun(number, LSF)].time_s / found[MarbleRun(number, MARBLE)].time_s - 1
        )
        why = "this follows from the reduction alone"
        rows.append(figure(f"set {number}", ours, UTILISATION[number], "%", why))
    return Table(
        "Figure 6b: increase of GPU utilisation",
        tuple(rows),
        "if a step keeps GPUs busy as long in sum, however many they are",
    )


def _against_optimus(found: Found, curves: Sequence[tuple[int, int]]) -> Table:
    rows, best = [], []
    for number in OPTIMUS_SETS:
        ours = _shorter(found, MarbleRun(number, MARBLE), MarbleRun(number, OPTIMUS))
        best.append(ours)
        several = [
            _shorter(found, MarbleRun(number, MARBLE, each), MarbleRun(number, OPTIMUS, each))
            for each in curves
        ]
        rows.append(Row(f"set {number}", ours, None, "%", _over(several, "%")))
    rows.append(figure("at most", max(best), AGAINST_OPTIMUS, "%", _WHY_OPTIMUS))
    for name, policy, paper in (("Optimus", OPTIMUS, 9.0), ("MARBLE", MARBLE, 2.0)):
        ours = max(found[MarbleRun(number, policy)].suspends for number in OPTIMUS_SETS)
        what, why = f"suspensions at most, {name}", "the paper does not say of which set"
        rows.append(figure(what, ours, paper, "times", why))
    return Table("Section VII-C, Figure 8: reduction against Optimus", tuple(rows))


_WHY_OPTIMUS = (
    "the paper does not say how many workers and parameter servers Optimus had; here the servers "
    "take no node away from its workers"
)


def _suspensions(found: Found) -> Table:
    rows = []
    for number in sets.ONE_NODE:
        outcome = found[MarbleRun(number, MARBLE)]
        ours = 100 * outcome.suspends * sets.SUSPEND_S / outcome.time_s
        paper, why = SUSPENDED.get(number), _WHY_SUSPENDED.get(number, "")
        of = f"{outcome.suspends} of {sets.SUSPEND_S:g} s"
        rows.append(figure(f"set {number}", ours, paper, "%", why, more=of))
    return Table("Section VII-D1: share of the time for suspending and resuming", tuple(rows))


# Let x and y be the seconds of a step of the two networks on six GPUs: 4400 x + 1400 y = 958. The
# best sizes save 2.91 % at most, so ResNet-50 ends at t = 3495 x or later. A suspension of 66 s of
# Inception-v3, begun at 777 x, falls into the set only if it has something left at t; the set then
# takes 66 + 777 x + 1359 y or more, and that something is left bounds x. Together: 531 s or more.
_WHY_SUSPENDED = {
    1: "here Inception-v3 ends before GPUs for its promotion become free; with such a suspension, "
    "and a gain of at most 2.91 % from the best size, set 1 cannot be done in 496 s",
    3: "here VGG-16 ends on two GPUs before Inception-v3 does, and need not be promoted",
}


def _possible(found: Found) -> Table:
    """Return a table of the distance of policies from the optimum, as far as it is known."""
    rows = []
    for number in sets.SETS:
        least = bound_s(number)
        lsf, ours = (found[MarbleRun(number, policy)].time_s for policy in (LSF, MARBLE))
        says = "no schedule is shorter (proven)"
        if number in sets.ONE_NODE:
            known = sets.networks()
            jobs = [Work(known.speed[name], steps) for name, steps in sets.SETS[number]]
            reached = shortest_unsuspended_s(jobs, sets.GPUS)
            gap = f"{100 * max(0.0, reached / least - 1):.1f} %"
            says += f"; without any suspension {reached:.0f} s can be reached, a gap of {gap}"
        rows.append(Row(f"set {number}, bound", least, None, "s", says))
        share = 100 * (lsf - ours) / (lsf - least)
        rows.append(Row(f"set {number}, MARBLE's share of the possible saving", share, None, "%"))
    return Table(
        "Clairvoyant bound",
        tuple(rows),
        "the optimum of schedules that may change sizes at any time without any cost",
    )


def _others(found: Found) -> Table:
    rows = []
    for number in sets.SETS:
        lsf, least = found[MarbleRun(number, LSF)].time_s, bound_s(number)
        for policy in TOLD:
            outcome = found[MarbleRun(number, policy, None, True)]
            share = 100 * (lsf - outcome.time_s) / (lsf - least)
            says = f"{share:.0f} % of the possible saving; {outcome.suspends} suspensions"
            rows.append(Row(f"set {number}, {policy}", outcome.time_s, None, "s", says))
    return Table(
        "All policies: completion times",
        tuple(rows),
        "each is told the speeds, the work and the cost of a change; marble then promotes a job "
        "only if it ends sooner for that",
    )


def _assumed() -> tuple[str, ...]:
    return (
        "fitted to LSF's times of sets 1 to 3 (three equations): the speeds of four networks on "
        "six GPUs, with the ratio of two of them from TensorFlow's published benchmark",
        "Figure 2 has no numbers in the text: each point of a curve is the middle of the range "
        "that the text allows; the effect of this is shown with random points",
        f"suspending and resuming takes {sets.SUSPEND_S:g} s, which follows from both shares that "
        "section VII-D1 states; the first start of a job is free, because LSF's times include it",
        "MARBLE is told only the best number of GPUs, and promotes whenever it can",
        "a step is as much work on any number of GPUs",
        "sets 4 to 9: a step of a worker takes as long as on one node, plus the time to fetch and "
        "send the parameters (Table I) over 100 Gb/s; eight asynchronous workers; jobs on one node "
        "do not slow each other (section I: negligible interference); nothing is fitted",
        "Optimus: whole nodes as workers, up to eight in all, a parameter server for each job on "
        f"a node of its own, decisions every 10 minutes; it learns speeds from reports every "
        f"{REPORT_S:g} s",
    )
