"""Figure 9 of Pollux (section 5.4.1): ImageNet on nodes rented while they are worthwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcext.core.band import Band
from hpcext.core.values import Job, Node
from hpcext.papers.pollux.runs import GPUS, NODES
from hpcext.papers.study import Extent, Row, Table, figure, many
from hpcext.policies import find_policy
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.profiled import Adaptive
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.workloads.applications import DELAY_S, REPORT_S, application

MODEL = "imagenet"

PAPER = Band(1 / 3, 2 / 3)
"""The paper's band: its U is the upper end, its L the middle."""

LATER = Band(0.25, 0.55)
"""The band, of five tried, that prolongs training by about as much as in the paper."""

HOUR_S = 3600.0


class Rented(NamedTuple):
    """A training.

    Attributes
    ----------
    data : Path
        The folder of the measurements.
    blind : bool
        Whether it scales by its throughput (Or et al.) instead of its goodput.
    nodes : int
        Number of nodes that stay; 0: as many as are worthwhile.
    band : Band
        Band of auto-scaling.
    """

    data: Path
    blind: bool = False
    nodes: int = 0
    band: Band = PAPER


class Bill(NamedTuple):
    """The outcome of a training.

    Attributes
    ----------
    hours : float
    node_h : float
        Node-hours that it had, which must be paid for.
    first, last : float
        Mean nodes over the first and the last quarter of its time.
    """

    hours: float
    node_h: float
    first: float
    last: float


def rented(case: Rented) -> Bill:
    """Simulate a training and return its figures.

    Raises
    ------
    InputError
        The measurements are missing, or not valid.
    """
    found = simulated(case)
    if any(row.state != "completed" for row in found.jobs):
        raise RuntimeError(f"{case}: it did not complete")
    end_s = found.end_s
    paid = _node_s(found, 0.0, end_s)
    first, last = _node_s(found, 0.0, end_s / 4), _node_s(found, end_s * 3 / 4, end_s)
    return Bill(end_s / HOUR_S, paid / HOUR_S, 4 * first / end_s, 4 * last / end_s)


def simulated(case: Rented) -> SimulatedRun:
    """Simulate a training."""
    speed = Adaptive(application(case.data, MODEL), blind=case.blind)
    most = min(case.nodes or NODES, max(1, speed.most // GPUS))
    job = Job(MODEL, MODEL, 0, tuple(range(1, GPUS + 1)), GPUS, nodes=(1, most))
    physics = Physics(speed, speed.work, resume_s=DELAY_S, checkpoint_s=None)
    nodes = tuple(Node(f"node{number:02}", GPUS) for number in range(1, most + 1))
    return run(
        Scenario([(job, physics)], nodes),
        find_policy("pollux"),
        Named("pollux", MODEL, f"{most}x{GPUS}"),
        SimulationOptions(report_s=REPORT_S, autoscale=None if case.nodes else case.band),
    )


Bills = Mapping[str, Bill]
"""Outcomes by the names of :data:`WAYS`."""

BLIND, GOODPUT = "throughput", "goodput"

NAMES = {
    BLIND: "by throughput (Or et al.), 1/3 to 2/3",
    GOODPUT: "by goodput, 1/3 to 2/3",
    "more": "by goodput, 0.25 to 0.55",
    "all": f"{NODES} nodes throughout",
}

WAYS = tuple(NAMES)

FIELDS = (
    ("node_h", "cost", "node-hours"),
    ("hours", "time", "h"),
    ("first", "nodes in the first quarter", ""),
    ("last", "nodes in the last quarter", ""),
)

MORE = (
    "by throughput it runs on all nodes from the beginning here, and with the measured noise six "
    "of them give half of the perfect goodput for almost half of the time. The paper does not say "
    "how many nodes there were"
)


def bills(data: Path, how: Extent) -> Bills:
    """Simulate the trainings of Figure 9; a quick study has the two that the paper compares."""
    cases = (
        Rented(data, blind=True),
        Rented(data),
        Rented(data, band=LATER),
        Rented(data, nodes=NODES),
    )
    found = many(rented, cases[:2] if how.quick else cases, how.workers)
    return dict(zip(WAYS, found.values(), strict=False))


def figure_9(found: Bills, why: str) -> Table:
    """Return a table of the cost and time of trainings, beside the paper's.

    Parameters
    ----------
    found : Mapping[str, Bill]
    why : str
        The reason if some are missing.
    """
    rows = []
    for way, name in NAMES.items():
        bill, blind = found.get(way), found.get(BLIND)
        for field, what, unit in FIELDS:
            ours = None if bill is None else float(getattr(bill, field))
            rows.append(Row(f"{name}: {what}", ours, None, unit, "" if bill else why))
        if way == BLIND:
            continue
        less = longer = None
        if bill is not None and blind is not None:
            less = 100 * (1 - bill.node_h / blind.node_h)
            longer = 100 * (bill.hours / blind.hours - 1)
        cheaper, later = (25.0, 6.0) if way == GOODPUT else (None, None)
        for what, ours, paper in (("cheaper", less, cheaper), ("longer", longer, later)):
            reason = MORE if bill else why
            rows.append(figure(f"{name}: {what} than by throughput", ours, paper, "%", reason))
    return Table(
        "Figure 9: one ImageNet training on nodes that are rented while they are worth it",
        tuple(rows),
    )


def _node_s(found: SimulatedRun, start_s: float, end_s: float) -> float:
    """Return the node-seconds in a part of a run; a node counts until its job has left it."""
    return sum(
        max(span.offered, span.held)
        * max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s))
        / GPUS
        for span in found.spans
    )
