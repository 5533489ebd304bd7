"""Simulations of a few jobs under a policy on a virtual clock, whose result is a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from hpcext.core.engine import Engine, Policy
from hpcext.core.facts import Fact, NodeJoined, Submitted
from hpcext.core.values import Action, Job, Node, Record
from hpcext.sim.replay.executor import Simulated
from hpcext.sim.replay.heap import Heap, drive
from hpcext.sim.replay.physics import Faults, Physics


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a simulated run.

    Attributes
    ----------
    makespan_s : float
        From the beginning to the end of the last job, or to the last event if some job could
        not end.
    gpu_busy_fraction : float
        Share of the GPU time offered until then in which a job held the GPU.
    jobs : Mapping[str, Job]
        By id, as they are at the end.
    records : Mapping[str, Record]
        By id.
    actions : tuple of (float, Action)
        Every decision, with its instant.
    """

    makespan_s: float
    gpu_busy_fraction: float
    jobs: Mapping[str, Job]
    records: Mapping[str, Record]
    actions: tuple[tuple[float, Action], ...]

    @property
    def finished(self) -> bool:
        """Whether every job reached a final state."""
        return all(job.state.final for job in self.jobs.values())


def simulate(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    policy: Policy,
    physics: Mapping[str, Physics],
    seed: int = 0,
    *,
    faults: Faults | None = None,
    inputs: Iterable[tuple[float, Fact]] = (),
    report_s: float | None = None,
) -> Result:
    """Run jobs to their end on a virtual clock.

    Parameters
    ----------
    jobs : sequence of Job
        Each is submitted at its `submitted_s`.
    nodes : sequence of Node
        There from the beginning.
    policy : Policy
    physics : Mapping[str, Physics]
        Job id → its true behaviour.
    seed : int
        Of the faults.
    faults : Faults, optional
    inputs : iterable of (float, Fact)
        What else happens from outside: requests, nodes that come and go.
    report_s : float or None
        Time between reports of progress; None: only when an attempt stops training.

    Raises
    ------
    KeyError
        A job has no physics.
    """
    if missing := [job.id for job in jobs if job.id not in physics]:
        raise KeyError(f"no physics for job {missing[0]}")
    heap = Heap()
    executor = Simulated(heap, nodes, physics, faults=faults, seed=seed, report_s=report_s)
    arrivals = [(job.submitted_s, Submitted(job)) for job in jobs]
    begin: list[tuple[float, Fact]] = [(0.0, NodeJoined(node)) for node in nodes]
    for when_s, fact in (*begin, *arrivals, *inputs):
        heap.at(when_s, lambda it=fact: executor.happen(it))  # type: ignore[misc]
    engine = Engine(policy)
    actions: list[tuple[float, Action]] = []

    def note(now_s: float, _: tuple[Fact, ...], given: tuple[Action, ...]) -> None:
        actions.extend((now_s, action) for action in given)

    drive(engine, heap, executor, observe=note)
    world = engine.world
    makespan_s = _makespan(world.jobs.values(), heap.now_s)
    offered_gpu_s = executor.offered_gpu_s(makespan_s)
    busy_gpu_s = sum(_busy(record, makespan_s) for record in world.records.values())
    return Result(
        makespan_s=makespan_s,
        gpu_busy_fraction=busy_gpu_s / offered_gpu_s if offered_gpu_s else 0.0,
        jobs=dict(world.jobs),
        records=dict(world.records),
        actions=tuple(actions),
    )


def _makespan(jobs: Iterable[Job], now_s: float) -> float:
    """Return when the last job ended; now, if some job has not."""
    return max((job.since_s if job.state.final else now_s for job in jobs), default=now_s)


def _busy(record: Record, until_s: float) -> float:
    """Return the GPU-seconds that a job held."""
    return sum(
        len(part.gpus) * ((until_s if part.end_s is None else part.end_s) - part.start_s)
        for part in record.segments
    )
