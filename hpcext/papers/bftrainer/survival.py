"""The stay of idle nodes: predictions of the survival model, outcomes, and other predictors.

This is not in the paper, which plans with one time for all nodes (T_fwd, §3.3). The information in
a node's age is compared with that in the time of day and in the number of idle nodes. Each model is
learned from one half of the trace and predicts the other half.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcext.core.apply import apply
from hpcext.core.history.fragments import EDGES_S, Fragments
from hpcext.core.world import World
from hpcext.papers.bftrainer.parts import HOUR_S, Experiment, Found, Setup
from hpcext.papers.bftrainer.setup import levels
from hpcext.papers.study import Row, Table
from hpcext.scaling.survival import Floats, Survival
from hpcext.sim.evaluate.calibration import EVERY_S, Calibration
from hpcext.sim.evaluate.outcome import Reliability
from hpcext.sim.replay.sources import facts
from hpcext.sim.traces.idle import NodeChange

LATER_S = (120.0, 600.0, 1800.0)
"""Horizons at which the models are compared, in seconds."""

DAY_S = 24 * HOUR_S
PARTS_OF_DAY = 4
MOST_IDLE = (40, 160, 640)
"""Upper limits of the strata by number of idle nodes; one more stratum is above the last."""

POOLED = 20.0
"""Number of nodes of each age that a stratum borrows from all strata, since few say little."""

PREDICTED = "How long nodes stay: predicted and observed"
COMPARED = "What predicts how long nodes stay: log loss of three models"

_NONE = np.zeros(0)
_EDGES = np.array(EDGES_S)
_WIDTHS = np.diff(_EDGES, append=np.inf)

Ints = npt.NDArray[np.int64]


def calibrated(setup: Setup) -> Experiment:
    """Calibrate on all idle nodes of the recorded week, or else of a generated one."""

    def tables(_: Found) -> tuple[Table, ...]:
        changes = (setup.whole or setup.idle).changes()
        seen = list(itertools.takewhile(lambda each: each.time_s <= setup.until_s, changes))
        return predicted(seen), compared(seen)

    return Experiment((), tables)


# The model as a policy has it at each instant.


def predicted(changes: Sequence[NodeChange]) -> Table:
    """Return a table of the model's predictions during the trace, and the outcomes."""
    return Table(
        PREDICTED,
        tuple(row for each in calibration(changes) for row in _reliability(each)),
        f"predicted every {EVERY_S / 60:g} minutes for each node that is there, from those that "
        "had left by then. The base rate predicts for every node the share that stayed, which is "
        "known only afterwards. hpcext simulate --report has the plot",
    )


def calibration(changes: Iterable[NodeChange]) -> tuple[Reliability, ...]:
    """Return the outcome of the predictions during a trace, for each horizon."""
    world = World()
    watch = Calibration(world)
    for when_s, told in facts(changes, 1):
        for fact in told:
            apply(world, when_s, fact)
        watch(when_s, told)
    return watch.found()


def _reliability(each: Reliability) -> Iterator[Row]:
    after = f"{each.horizon_s:g} s"
    said = sum(part.expected for part in each.bins) / each.nodes
    yield Row(f"{after}: predicted to stay", 100 * said, unit="%")
    yield Row(f"{after}: stayed", 100 * each.stayed, unit="%")
    yield Row(f"{after}: Brier score", each.brier)
    yield Row(f"{after}: Brier score of the base rate", each.base_brier)
    yield Row(f"{after}: calibration error", 100 * each.error, unit="%")


# Other predictors.


class Stays(NamedTuple):
    """The stays of nodes: beginnings and ends; an end is infinite if the stay did not end."""

    start_s: Floats
    end_s: Floats


class Strata(NamedTuple):
    """Stretches of time in order, and the stratum of each.

    Attributes
    ----------
    edges_s : array of float, shape (n + 1,)
    stratum : array of int, shape (n,)
        Index of the stratum of each stretch, from 0.
    """

    edges_s: Floats
    stratum: Ints

    def at(self, when_s: Floats) -> Ints:
        """Return the stratum at each instant.

        An edge belongs to the stretch that ends there, like a node that leaves there.
        """
        found = np.searchsorted(self.edges_s, when_s, side="left") - 1
        return np.asarray(self.stratum[np.clip(found, 0, len(self.stratum) - 1)])


class ObservedNodes(NamedTuple):
    """Observed nodes: the instant, their age, and the seconds that they still stay."""

    when_s: Floats
    ages_s: Floats
    left_s: Floats


def compared(changes: Sequence[NodeChange]) -> Table:
    """Return a table of the log loss of predictions by age alone, and with other information."""
    end_s = changes[-1].time_s
    halves = ((0.0, end_s / 2), (end_s / 2, end_s))
    stays = stays_of(changes)
    models: dict[str, Callable[[Sequence[NodeChange]], Strata]] = {
        "age": _alone,
        "age and time of day": _day,
        "age and number of idle nodes": _idle,
    }
    losses = {
        name: [_loss(stays, strata(changes), halves, later_s) for later_s in LATER_S]
        for name, strata in models.items()
    }
    rows = []
    for (at, later_s), (name, of) in itertools.product(enumerate(LATER_S), losses.items()):
        why = "" if of[at] is not None else "the trace is too short"
        rows.append(Row(f"{later_s:g} s: {name}", of[at], why=why))
    return Table(
        COMPARED,
        tuple(rows),
        "lower is better. Each half of the trace is predicted from the other half. The day has "
        f"{PARTS_OF_DAY} parts, counted from the beginning of the trace; classes of idle nodes are "
        f"up to {', '.join(map(str, MOST_IDLE))}, and more. hpcext's own model uses age alone",
    )


def stays_of(changes: Iterable[NodeChange]) -> Stays:
    """Return the stays of all nodes."""
    since: dict[int, float] = {}
    found: list[tuple[float, float]] = []
    for change in changes:
        found.extend((since.pop(node), change.time_s) for node in change.left)
        since.update(dict.fromkeys(change.joined, change.time_s))
    found.extend((start_s, np.inf) for start_s in since.values())
    start_s, end_s = np.array(found).reshape(-1, 2).T
    return Stays(start_s, end_s)


def _alone(changes: Sequence[NodeChange]) -> Strata:
    return Strata(np.array([0.0, changes[-1].time_s]), np.zeros(1, np.int64))


def _day(changes: Sequence[NodeChange]) -> Strata:
    part_s = DAY_S / PARTS_OF_DAY
    count = max(1, math.ceil(changes[-1].time_s / part_s))
    edges_s = np.arange(count + 1, dtype=np.float64) * part_s
    return Strata(edges_s, np.arange(count) % PARTS_OF_DAY)


def _idle(changes: Sequence[NodeChange]) -> Strata:
    times_s, nodes = np.array(list(levels(changes))).T
    stratum = np.searchsorted(MOST_IDLE, nodes, side="left")
    # Most changes do not change the stratum.
    new = np.flatnonzero(np.diff(stratum, prepend=-1))
    return Strata(np.append(times_s[new], times_s[-1]), stratum[new].astype(np.int64))


def _loss(
    stays: Stays, strata: Strata, halves: Sequence[tuple[float, float]], later_s: float
) -> float | None:
    """Return the log loss over the nodes of both halves, or None if there are none.

    The model of each half predicts the other one.
    """
    total, nodes = 0.0, 0
    for learned, asked in (halves, halves[::-1]):
        models = [Survival(each, _NONE, _NONE) for each in learn(stays, strata, learned)]
        looked = look(stays, asked, later_s)
        stratum = strata.at(looked.when_s)
        stayed = looked.left_s > later_s
        for number in np.unique(stratum).tolist():
            of_it = stratum == number
            (said,) = models[number].stays(looked.ages_s[of_it], np.array([later_s])).T
            total -= float(np.log(np.where(stayed[of_it], said, 1 - said)).sum())
        nodes += len(stratum)
    return total / nodes if nodes else None


def look(stays: Stays, part: tuple[float, float], later_s: float) -> ObservedNodes:
    """Return the nodes at regular instants in a part, until `later_s` before its end.

    Parameters
    ----------
    stays : Stays
    part : (float, float)
        Beginning and end of the part, in seconds.
    later_s : float
    """
    from_s, until_s = part
    instants = np.arange(from_s, until_s - later_s, EVERY_S)
    there = [np.flatnonzero((stays.start_s <= t) & (t < stays.end_s)) for t in instants]
    which = np.concatenate([np.zeros(0, np.int64), *there])
    when_s = np.repeat(instants, [len(each) for each in there])
    return ObservedNodes(when_s, when_s - stays.start_s[which], stays.end_s[which] - when_s)


def learn(stays: Stays, strata: Strata, part: tuple[float, float]) -> list[Fragments]:
    """Learn from a part of the trace for each stratum, including nodes that did not leave.

    Parameters
    ----------
    stays : Stays
    strata : Strata
    part : (float, float)
        Beginning and end of the part, in seconds.
    """
    count = int(strata.stratum.max()) + 1
    ended, stayed_s = np.zeros((count, len(_EDGES))), np.zeros((count, len(_EDGES)))
    for (from_s, until_s), number in _stretches(strata, part):
        met = (stays.start_s < until_s) & (stays.end_s > from_s)
        start_s, end_s = stays.start_s[met], stays.end_s[met]
        first_s = np.maximum(from_s - start_s, 0.0)
        last_s = np.minimum(end_s, until_s) - start_s
        stayed_s[number] += (_spent_s(last_s) - _spent_s(first_s)).sum(0)
        gone_s = (end_s - start_s)[end_s <= until_s]
        at = np.searchsorted(_EDGES, gone_s, side="right") - 1
        ended[number] += np.bincount(at, minlength=len(_EDGES))
    if count > 1:
        # At an age at which fewer have left in all, pool all strata.
        weight = POOLED / np.maximum(ended.sum(0), POOLED)
        ended, stayed_s = ended + weight * ended.sum(0), stayed_s + weight * stayed_s.sum(0)
    return [
        Fragments(tuple(a), tuple(b))
        for a, b in zip(ended.tolist(), stayed_s.tolist(), strict=True)
    ]


def _stretches(
    strata: Strata, part: tuple[float, float]
) -> Iterator[tuple[tuple[float, float], int]]:
    """Yield the stretches within a part of the trace."""
    edges_s = np.clip(strata.edges_s, *part).tolist()
    for (from_s, until_s), number in zip(
        itertools.pairwise(edges_s), strata.stratum.tolist(), strict=True
    ):
        if until_s > from_s:
            yield (from_s, until_s), number


def _spent_s(ages_s: Floats) -> Floats:
    """Return the seconds that nodes have spent in each age interval."""
    return np.asarray(np.clip(ages_s[:, None] - _EDGES, 0.0, _WIDTHS))
