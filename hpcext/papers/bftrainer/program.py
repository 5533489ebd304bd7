"""BFTrainer's program on the recorded week, and hpcext on the same trainers and nodes."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from hpcext.papers.bftrainer.parts import AT_ONCE, HEURISTIC, HOUR_S, Experiment, Found, Setup, milp
from hpcext.papers.bftrainer.replay import Replayed, ReplayRun
from hpcext.papers.bftrainer.setup import WEEK_S, Idle, levels, trainers
from hpcext.papers.study import Row, Table, figure
from hpcext.sim.evaluate.bounds import JobClass, NodeCounts, fluid_end_s
from hpcext.sim.evaluate.clairvoyant import clairvoyant_end_s

SKIP = 1000
"""Number of changes at the beginning that its authors leave out."""

MANY = 35

EQUAL = f"equal_share:parallel={AT_ONCE}"
BOTH = {"BFTrainer": milp(), "the heuristic": HEURISTIC}

HOURS = {"hpo": (65.8, 75.4), "mix": (86.0, 89.1)}
COSTS = {"hpo": (0.99, 13.0), "mix": (1.5, 11.8)}
"""Published figures of that program, for both sets of trainers."""

NAMES = {"hpo": "HPO of ShuffleNet", "mix": "ImageNet mixture"}


def program(setup: Setup) -> Experiment:
    """Replay the week of the program; empty without data."""
    if setup.whole is None:
        return Experiment((), lambda _: (_without(),))
    files = {"hpo": setup.hpo, "mix": setup.mix}
    if setup.quick:
        del files["mix"]
    policies = [milp()] if setup.quick else [*BOTH.values(), EQUAL, milp(parallel=MANY)]
    idle = setup.whole
    cases = {
        (kind, policy): ReplayRun(files[kind], policy, idle)
        for kind in files
        for policy in policies
    }

    def tables(found: Found) -> tuple[Table, ...]:
        ran = {key: found[case] for key, case in cases.items()}
        bounds = {
            (kind, parallel): bound_h(path, idle, parallel)
            for kind, path in files.items()
            for parallel in (AT_ONCE, MANY)
        }
        paying = {kind: paying_h(path, idle) for kind, path in files.items()}
        return (_hours(ran, bounds, paying), _costs(ran))

    return Experiment(tuple(cases.values()), tables)


def _without() -> Table:
    rows = tuple(
        Row(f"{NAMES[kind]}, {name}", None, hours, "h", "needs --data DIR, the recorded week")
        for kind, each in HOURS.items()
        for name, hours in zip(BOTH, each, strict=True)
    )
    return Table("The authors' own program: hours until all trainers are done", rows)


@functools.lru_cache(maxsize=16)
def bound_h(trained: str, idle: Idle, parallel: int) -> float:
    """Return a bound in hours: no costs, divisible nodes, and a known future.

    Parameters
    ----------
    trained : str
        File of the trainers.
    idle : Idle
    parallel : int
        Largest number of trainers at once.
    """
    nodes = NodeCounts(levels(idle.changes()))
    return fluid_end_s(_kinds(trained), nodes, parallel, until_s=WEEK_S) / HOUR_S


@functools.lru_cache(maxsize=4)
def paying_h(trained: str, idle: Idle) -> float:
    """Return a bound in hours if each change costs at least as much as the cheapest one."""
    costs_s = (min(each.rescale_up_s, each.rescale_down_s) for _, each in trainers(trained))
    nodes = NodeCounts(levels(idle.changes()))
    return clairvoyant_end_s(_kinds(trained), nodes, AT_ONCE, min(costs_s), WEEK_S) / HOUR_S


def _kinds(trained: str) -> list[JobClass]:
    """Return the trainers of a file, grouped by equal speed."""
    works: dict[tuple[tuple[int, float], ...], float] = {}
    for job, physics in trainers(trained):
        key = tuple(job.estimate.stated.items())
        works[key] = works.get(key, 0.0) + physics.work
    return [JobClass(dict(key), work) for key, work in works.items()]


def _hours(
    ran: Mapping[tuple[str, str], Replayed],
    bounds: Mapping[tuple[str, int], float],
    paying: Mapping[str, float],
) -> Table:
    rows = []
    for kind, papers in HOURS.items():
        of, bound = NAMES[kind], (kind, AT_ONCE)
        for (name, policy), paper in zip(BOTH.items(), papers, strict=True):
            if (kind, policy) in ran:
                rows.append(until_row(f"{of}, {name}", ran[kind, policy], paper))
        if (kind, EQUAL) in ran:
            rows.append(until_row(f"{of}, equal shares, remainder spread", ran[kind, EQUAL]))
        if bound in bounds:
            paper_h = 62.2 if kind == "hpo" else None
            rows.append(Row(f"{of}, no schedule is faster", bounds[bound], paper_h, "h"))
            what = f"{of}, no schedule that pays for changes is faster"
            rows.append(Row(what, paying[kind], None, "h"))
        if (kind, milp(parallel=MANY)) in ran:
            many = until_row(f"{of}, BFTrainer, {MANY} at once", ran[kind, milp(parallel=MANY)])
            rows.append(many)
        if bound in bounds:
            paper_h = 47.5 if kind == "hpo" else None
            what = f"{of}, no schedule is faster, {MANY} at once"
            rows.append(Row(what, bounds[kind, MANY], paper_h, "h"))
    return Table(
        "The authors' own program: hours until all trainers are done",
        tuple(rows),
        f"all nodes of the recorded week of Summit, from its change {SKIP} on, at most {AT_ONCE} "
        "trainers at once; the paper's column has the figures of its published program, and bounds "
        "that were found by hand. The first bound treats nodes as divisible and changes as free; "
        "the second pays for each change of size, with all nodes alike",
    )


def until_row(what: str, ran: Replayed, paper: float | None = None) -> Row:
    """Return a row with the hours of a replay.

    Parameters
    ----------
    what : str
        The label.
    ran : Replayed
    paper : float, optional
        The paper's hours.
    """
    if not ran.finished:
        return Row(what, None, paper, "h", "not all trainers are done when the trace ends")
    return Row(what, ran.end_s / HOUR_S, paper, "h")


def _costs(ran: Mapping[tuple[str, str], Replayed]) -> Table:
    rows = []
    for kind, papers in COSTS.items():
        for (name, policy), paper in zip(BOTH.items(), papers, strict=True):
            if (kind, policy) not in ran:
                continue
            of, each = f"{NAMES[kind]}, {name}", ran[kind, policy]
            done = each.done.samples
            lost = 100 * each.lost.rescaling / done
            rows.append(figure(f"{of}: rescaling", lost, paper, "%", _WHY_COST))
            rows.append(Row(f"{of}: preemption", 100 * each.lost.preemption / done, None, "%"))
            rows.append(Row(f"{of}: starts", 100 * each.lost.starts / done, None, "%"))
            idle = 100 * (1 - each.trained_node_s / each.held_node_s)
            rows.append(Row(f"{of}: node-time held without progress", idle, None, "%"))
    return Table(
        "The authors' own program: costs as shares of the outcome",
        tuple(rows),
        "samples that were not trained because trainers paused, over all samples trained: for "
        "rescaling and preemption at the speed before the change, for starts at the speed after "
        "it. Rescaling is what the policy chose, preemption what lost nodes forced",
    )


_WHY_COST = (
    "there a trainer that has lost nodes pays R_down once, and all of its growth at that moment is "
    "rescaling; here R_down of that is preemption, a pause that a lost node cuts short costs only "
    "the time it lasted, and losing a node during a start begins the start again"
)
