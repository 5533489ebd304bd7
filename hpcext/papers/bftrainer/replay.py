"""A replay of trainers on idle nodes, and the cost of their rescaling.

It makes no decision: it observes the engine of the simulator under a policy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hpcext.core.engine import Engine
from hpcext.core.values import Job
from hpcext.papers.bftrainer.setup import WEEK_S, Idle, trainers
from hpcext.papers.bftrainer.watch import Done, EngineWatch, Lost, Ran
from hpcext.policies import find_policy
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.replay.sources import facts
from hpcext.sim.traces.idle import NodeChange

BEYOND_S = WEEK_S
"""Seconds after the end of a replay up to which the ends of nodes are known, if they all are."""


class ReplayRun(NamedTuple):
    """One replay.

    Attributes
    ----------
    trainers : str
        Trainers, as for :func:`~hpcext.papers.bftrainer.setup.trainers`.
    policy : str
    idle : Idle or int
        Nodes that come and go, or a number of nodes that stay.
    until_s : float
        Time at which to end; if infinite, when all trainers are done.
    marks_s : tuple of float
        Instants, ascending, at which the outcome is recorded.
    rescale : float
        Factor on the cost of rescaling.
    known : bool
        Whether policies know when each node will leave, which is really unknown. With nodes that
        come and go without end, this needs `until_s`.
    """

    trainers: str
    policy: str
    idle: Idle | int
    until_s: float = math.inf
    marks_s: tuple[float, ...] = ()
    rescale: float = 1.0
    known: bool = False


class Replayed(NamedTuple):
    """The outcome of a replay.

    Attributes
    ----------
    end_s : float
        Time at which the last trainer was done, or `until_s`.
    done : Done
    outcomes : tuple of Done
        Work done by each mark.
    lost : Lost
    ran : tuple of Ran
    held_node_s, trained_node_s : float
        Node-seconds that trainers held, and those in which they made progress.
    """

    end_s: float
    done: Done
    outcomes: tuple[Done, ...]
    lost: Lost
    ran: tuple[Ran, ...]
    held_node_s: float
    trained_node_s: float

    @property
    def finished(self) -> bool:
        """Whether all trainers are done."""
        return all(each.ended_s is not None for each in self.ran)


def replay(case: ReplayRun) -> Replayed:
    """Simulate a run.

    Raises
    ------
    RuntimeError
        The policy failed, or its target was refused.
    ValueError
        All ends of nodes are to be known, and they come and go without end.
    """
    changes: Iterable[NodeChange]
    if isinstance(case.idle, Idle):
        changes = case.idle.changes()
        if case.known and case.idle.again:
            changes = _before(changes, case.until_s + BEYOND_S)
    else:
        changes = [NodeChange(0.0, tuple(range(case.idle)), ())]
    jobs = trainers(case.trainers, case.rescale)
    return watched(jobs, changes, case.policy, case.until_s, case.marks_s, known=case.known)


def _before(changes: Iterable[NodeChange], end_s: float) -> Iterator[NodeChange]:
    """Yield the changes up to an instant."""
    if math.isinf(end_s):
        raise ValueError("the ends of nodes that come and go for ever cannot all be known")
    return itertools.takewhile(lambda change: change.time_s <= end_s, changes)


def watched(
    jobs: Iterable[tuple[Job, Physics]],
    changes: Iterable[NodeChange],
    policy: str,
    until_s: float = math.inf,
    marks_s: Sequence[float] = (),
    *,
    known: bool = False,
) -> Replayed:
    """Simulate trainers on the idle nodes of a trace; parameters as in :class:`ReplayRun`.

    Parameters
    ----------
    jobs : iterable of (Job, Physics)
        The trainers.
    changes : iterable of NodeChange
    policy : str
    until_s : float
    marks_s : sequence of float
    known : bool
    """
    watches: list[EngineWatch] = []

    def watcher(engine: Engine) -> EngineWatch:
        watches.append(EngineWatch(engine, marks_s))
        return watches[0]

    how = SimulationOptions(until_s=until_s, looks_s=marks_s)
    if math.isfinite(until_s):
        # Events at the very end do not count, because trainers have reported their work by then.
        how = SimulationOptions(
            until_s=math.nextafter(until_s, -math.inf), looks_s=[*marks_s, until_s]
        )
    scenario = Scenario(jobs, changes=facts(changes, 1, known=known))
    found = run(scenario, find_policy(policy), Named(policy), how, watcher)
    (watch,) = watches
    watch.mark(math.inf)
    over = found.end_s < how.until_s and all(row.ended_s is not None for row in found.jobs)
    held_s = math.fsum(row.gpu_s for row in found.jobs)
    return Replayed(
        found.end_s if over else until_s,
        watch.done,
        tuple(watch.outcomes),
        watch.lost,
        watch.ran,
        held_s,
        held_s - math.fsum(row.idle_gpu_s for row in found.jobs),
    )
