"""A replay of trainers on idle nodes, and what it cost them to change their size.

It decides nothing: the engine of the simulator, under a policy, is watched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hpcext.core.engine import Engine
from hpcext.core.facts import Fact, Submitted
from hpcext.core.values import Job
from hpcext.policies import find_policy
from hpcext.sim.executor import Simulated
from hpcext.sim.heap import Heap, Produce, drive
from hpcext.sim.papers.bftrainer_setup import Idle, trainers
from hpcext.sim.papers.bftrainer_watch import Done, Lost, Ran, Watch
from hpcext.sim.physics import Physics
from hpcext.sim.sources import facts
from hpcext.sim.traces.idle import Change


class Case(NamedTuple):
    """One replay.

    Attributes
    ----------
    trainers : str
        As :func:`~hpcext.sim.papers.bftrainer_setup.trainers` takes them.
    policy : str
    idle : Idle or int
        Nodes that come and go, or so many that stay.
    until_s : float
        When to end; infinite: when all trainers are done.
    marks_s : tuple of float
        Instants, ascending, at which the outcome is looked at.
    rescale : float
        What changes of size cost, as a multiple.
    """

    trainers: str
    policy: str
    idle: Idle | int
    until_s: float = math.inf
    marks_s: tuple[float, ...] = ()
    rescale: float = 1.0


class Replayed(NamedTuple):
    """What came of a replay.

    Attributes
    ----------
    end_s : float
        When the last trainer was done; else `until_s`.
    done : Done
    outcomes : tuple of Done
        The same at each mark.
    lost : Lost
    lost_at : tuple of Lost
        The same at each mark.
    ran : tuple of Ran
    held_node_s, trained_node_s : float
        That trainers had, and of these in which they made progress.
    events : int
        How often the engine was stepped.
    """

    end_s: float
    done: Done
    outcomes: tuple[Done, ...]
    lost: Lost
    lost_at: tuple[Lost, ...]
    ran: tuple[Ran, ...]
    held_node_s: float
    trained_node_s: float
    events: int

    @property
    def finished(self) -> bool:
        """Whether all trainers are done."""
        return all(each.ended_s is not None for each in self.ran)


def replay(case: Case) -> Replayed:
    """Simulate one case.

    Raises
    ------
    RuntimeError
        The policy failed, or its answer was refused.
    """
    changes: Iterable[Change]
    if isinstance(case.idle, Idle):
        changes = case.idle.changes()
    else:
        changes = [Change(0.0, tuple(range(case.idle)), ())]
    jobs = trainers(case.trainers, case.rescale)
    return watched(jobs, changes, case.policy, case.until_s, case.marks_s)


def watched(
    jobs: Iterable[tuple[Job, Physics]],
    changes: Iterable[Change],
    policy: str,
    until_s: float = math.inf,
    marks_s: Sequence[float] = (),
) -> Replayed:
    """Simulate some trainers on the idle nodes of a trace; see :class:`Case`."""
    heap = Heap()
    executor = Simulated(heap, (), {})
    engine = Engine(find_policy(policy))
    watch = Watch(engine, marks_s)
    heap.feed(_submissions(jobs, executor, watch))
    heap.feed((when_s, _happening(executor, each)) for when_s, each in facts(changes, 1))
    looks_s = [*marks_s, until_s] if math.isfinite(until_s) else marks_s
    heap.feed((_before(mark_s), _looking(executor)) for mark_s in looks_s)

    def stop() -> bool:
        if engine.refusal:
            raise RuntimeError(f"{policy} {engine.refusal}")
        return watch.over

    drive(engine, heap, executor, until_s=until_s, observe=watch, stop=stop)
    watch.mark(math.inf)
    executor.settle()
    spent = executor.spent.values()
    return Replayed(
        watch.last_end_s if watch.over else until_s,
        watch.done,
        tuple(watch.outcomes),
        watch.lost,
        tuple(watch.lost_at),
        watch.ran,
        math.fsum(each.held_gpu_s for each in spent),
        math.fsum(each.trained_gpu_s for each in spent),
        watch.events,
    )


def _submissions(
    jobs: Iterable[tuple[Job, Physics]], executor: Simulated, watch: Watch
) -> Iterator[tuple[float, Produce]]:
    for job, physics in jobs:
        executor.expect(job.id, physics)
        yield job.submitted_s, lambda job=job: (Submitted(job),)  # type: ignore[misc]
    watch.all_there = True


def _happening(executor: Simulated, happened: tuple[Fact, ...]) -> Produce:
    return lambda: tuple(known for fact in happened for known in executor.happen(fact))


def _before(when_s: float) -> float:
    """The last instant before another one: who is stopped at that has not been stopped yet."""
    return math.nextafter(when_s, -math.inf)


def _looking(executor: Simulated) -> Produce:
    def look() -> tuple[Fact, ...]:
        executor.look()
        return ()

    return look
