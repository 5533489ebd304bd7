"""The gain by considering how long idle nodes stay, which BFTrainer does not.

Three variants are compared everywhere: BFTrainer, the policy that learns the stay of nodes from
those that have left, and the same policy with knowledge of when each node will leave, which is not
available in practice.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hpcext.papers.bftrainer.hpo import dearer, hpo_use, marked, multiples, window_uses
from hpcext.papers.bftrainer.parallel import OBJECTIVES, PARALLEL, to_the_end
from hpcext.papers.bftrainer.parts import (
    AT_ONCE,
    HOUR_S,
    Experiment,
    Found,
    Setup,
    UtilisationFigures,
    both,
    lifetime,
    lost_rows,
    milp,
    mixed_use,
    staying,
)
from hpcext.papers.bftrainer.program import NAMES, SKIP, bound_h, paying_h, until_row
from hpcext.papers.bftrainer.replay import Replayed, ReplayRun
from hpcext.papers.study import Row, Table

PUBLISHED_H, BY_HAND_H = 65.8, 62.2
"""Hours of HPO with at most ten trainers at once, by BFTrainer's published program, and a bound
without costs; neither is computed by hpcext."""

_KNOWN = "`all ends known` cannot be had in practice: policies are told when each node will leave"


class Variant(NamedTuple):
    """One of the three variants.

    Attributes
    ----------
    learns : bool
        Whether it considers how long nodes stay.
    known : bool
        Whether it knows when each node will leave.
    """

    learns: bool = False
    known: bool = False

    def words(self, objective: str = "throughput", parallel: int = AT_ONCE) -> str:
        """Return the policy, as on a command line."""
        name = lifetime if self.learns else milp
        return name(objective, parallel=parallel)


WAYS = {
    "BFTrainer": Variant(),
    "lifetimes learned": Variant(learns=True),
    "all ends known": Variant(learns=True, known=True),
}


def lifetimes(setup: Setup) -> Experiment:
    """Compare on the whole week and on the paper's nodes: Pjmax, costs, and six-hour windows."""
    parts = (_week(setup), _mixture(setup), _dearer(setup), _windows(setup))
    cases = itertools.chain.from_iterable(part.cases for part in parts)

    def tables(found: Found) -> tuple[Table, ...]:
        return tuple(table for part in parts for table in part.tables(found))

    return Experiment(tuple(dict.fromkeys(cases)), tables)


def _week(setup: Setup) -> Experiment:
    """Replay the week of the authors' program to the end; empty without data."""
    if setup.whole is None:
        return Experiment((), lambda _: ())
    files = {"hpo": setup.hpo, "mix": setup.mix}
    if setup.quick:
        del files["mix"]
    idle = setup.whole
    cases = {
        (kind, name): ReplayRun(path, way.words(), idle, known=way.known)
        for kind, path in files.items()
        for name, way in WAYS.items()
    }

    def tables(found: Found) -> tuple[Table, ...]:
        hours: list[Row] = []
        lost: list[Row] = []
        for kind, path in files.items():
            ran = {name: found[cases[kind, name]] for name in WAYS}
            bounds = LowerBounds(bound_h(path, idle, AT_ONCE), paying_h(path, idle))
            hours += week_rows(kind, ran, bounds)
            for name, one in ran.items():
                lost += lost_rows(f"{NAMES[kind]}, {name}", one)
        note = (
            f"all nodes of the recorded week, from its change {SKIP} on, at most {AT_ONCE} "
            "trainers at once. A gap is the distance of BFTrainer from a bound that no schedule "
            f"beats, even without costs; {_KNOWN}. The paper's column has the figures of its "
            "published program, and a bound that was found by hand"
        )
        return (
            Table("Lifetimes of nodes: hours until all trainers are done", tuple(hours), note),
            Table("Lifetimes of nodes: what pauses cost in them", tuple(lost), _KNOWN),
        )

    return Experiment(tuple(cases.values()), tables)


class LowerBounds(NamedTuple):
    """Hours before which no schedule is done: without costs, and with the least cost of changes."""

    free_h: float
    paying_h: float


def week_rows(kind: str, ran: Mapping[str, Replayed], bounds: LowerBounds) -> list[Row]:
    """Return the hours of the three variants, the bounds, and the part of the gap that is closed.

    Parameters
    ----------
    kind : str
        A key of :data:`~hpcext.papers.bftrainer.program.NAMES`.
    ran : Mapping[str, Replayed]
        The replay of each variant, by its key in :data:`WAYS`.
    bounds : LowerBounds
    """
    of, hpo = NAMES[kind], kind == "hpo"
    published = {"BFTrainer": PUBLISHED_H} if hpo else {}
    rows = [until_row(f"{of}, {name}", one, published.get(name)) for name, one in ran.items()]
    rows.append(Row(f"{of}, no schedule is faster", bounds.free_h, BY_HAND_H if hpo else None, "h"))
    what = f"{of}, no schedule that pays for changes is faster"
    rows.append(Row(what, bounds.paying_h, None, "h"))
    first, *others = ran.items()
    for name, one in others:
        what = f"{of}, {name}: share of the gap closed"
        rows.append(_closed(what, (first[1], one), bounds.free_h))
    for name, one in others if hpo else ():
        what = f"{of}, {name}: the same share, from {PUBLISHED_H} to {BY_HAND_H} h"
        rows.append(_closed(what, (one,), BY_HAND_H, PUBLISHED_H))
    return rows


def _closed(what: str, ran: Sequence[Replayed], bound: float, before_h: float | None = None) -> Row:
    """Return the part of a gap in hours that the last run closes.

    The gap is that from `before_h`, or the first run, to the bound.
    """
    if not all(one.finished for one in ran):
        return Row(what, None, None, "%", "not all trainers are done when the trace ends")
    if before_h is None:
        before_h = ran[0].end_s / HOUR_S
    gap_h = before_h - bound
    if gap_h <= 0:
        return Row(what, None, None, "%", "there is no gap")
    return Row(what, 100 * (before_h - ran[-1].end_s / HOUR_S) / gap_h, None, "%")


def _mixture(setup: Setup) -> Experiment:
    """Compare on the mixture of networks by Pjmax, for both objectives."""
    most = (AT_ONCE,) if setup.quick else PARALLEL
    keys = [(objective, each, name) for objective in OBJECTIVES for each in most for name in WAYS]
    cases = {key: _mixed(setup, WAYS[key[2]], *key[:2]) for key in keys}
    # All three are relative to the same A_s.
    ideals = [
        staying(setup, milp(objective, parallel=each), setup.until_s)
        for objective in OBJECTIVES
        for each in most
    ]

    def tables(found: Found) -> tuple[Table, ...]:
        rows: dict[str, list[Row]] = {objective: [] for objective in OBJECTIVES}
        for (objective, each, name), case in cases.items():
            ran, policy = found[case], milp(objective, parallel=each)
            done = ran.outcomes[0] if case.marks_s else ran.done
            use = mixed_use(setup, policy, done, setup.until_s, found)
            rows[objective] += both(f"Pjmax {each}, {name}", use)
        return tuple(
            Table(f"Lifetimes of nodes: U by Pjmax, mixture, {OBJECTIVES[name]}", tuple(of), _KNOWN)
            for name, of in rows.items()
        )

    return Experiment((*cases.values(), *ideals), tables)


def _mixed(setup: Setup, way: Variant, objective: str, parallel: int) -> ReplayRun:
    policy = way.words(objective, parallel)
    if not way.learns and not setup.quick:
        # Tables 3 and 4 need the same run until its end.
        return to_the_end(setup, policy)
    return ReplayRun(setup.mix, policy, setup.idle, setup.until_s, known=way.known)


def _dearer(setup: Setup) -> Experiment:
    """Compare on HPO by the cost of rescaling, as in Figure 16."""
    cases = {
        (each, name): dearer(setup, way.words(), each, known=way.known)
        for each in multiples(setup)
        for name, way in WAYS.items()
    }

    def tables(found: Found) -> tuple[Table, ...]:
        used, lost = list[Row](), list[Row]()
        for (each, name), case in cases.items():
            ran, what = found[case], f"{each:g} times, {name}"
            used += both(what, hpo_use(setup, ran.done))
            lost += lost_rows(what, ran)
        return (
            Table("Lifetimes of nodes: U by rescaling cost, HPO", tuple(used), _KNOWN),
            Table("Lifetimes of nodes: lost by rescaling cost, HPO", tuple(lost), _KNOWN),
        )

    return Experiment(tuple(cases.values()), tables)


def _windows(setup: Setup) -> Experiment:
    """Compare U in windows of six hours, as in Figure 10."""
    cases = {name: marked(setup, way.words(), known=way.known) for name, way in WAYS.items()}

    def tables(found: Found) -> tuple[Table, ...]:
        rows: list[Row] = []
        for name, case in cases.items():
            used = window_uses(setup, case, found[case])
            for what, each in _said_of(used):
                rows += both(f"{what}, {name}", each)
        note = f"windows without any idle node are left out; {_KNOWN}"
        return (Table("Lifetimes of nodes: U in windows of six hours, HPO", tuple(rows), note),)

    return Experiment(tuple(cases.values()), tables)


def _said_of(used: Sequence[UtilisationFigures]) -> Iterable[tuple[str, UtilisationFigures]]:
    """Yield summaries over several windows."""
    ascending = [sorted(values) for values in zip(*used, strict=True)]
    yield "mean", UtilisationFigures(*(statistics.fmean(each) for each in ascending))
    yield "worst", UtilisationFigures(*(each[0] for each in ascending))
    yield (
        "mean of the best three",
        UtilisationFigures(*(statistics.fmean(each[-3:]) for each in ascending)),
    )
