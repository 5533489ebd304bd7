"""Runs of a scenario under a policy on a virtual clock, however long they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hpcext.core.band import Band
from hpcext.core.engine import Engine, Policy
from hpcext.core.errors import HpcextError
from hpcext.core.facts import Fact, NodeJoined, Submitted
from hpcext.core.values import Action, Job, Node, Snapshot, Target
from hpcext.sim.evaluate.fair import FairShares
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.autoscaled import Autoscaled
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.heap import Heap, Observe, Produce, drive
from hpcext.sim.replay.physics import Faults, Physics
from hpcext.sim.replay.recorder import Recorder


class Scenario(NamedTuple):
    """The world outside of a policy.

    Attributes
    ----------
    jobs : iterable of (Job, Physics)
        Each with its true behaviour, in the order of `submitted_s`, at which it is submitted. May
        be a stream that is read once.
    nodes : tuple of Node
        The initial nodes.
    changes : iterable of (float, tuple of Fact)
        Further facts in order of time: nodes that come and go. May be a stream. An empty tuple says
        that the nodes stay, so that rows can contain the time on a fair share of them.
    """

    jobs: Iterable[tuple[Job, Physics]]
    nodes: tuple[Node, ...] = ()
    changes: Iterable[tuple[float, tuple[Fact, ...]]] = ()


class SimulationOptions(NamedTuple):
    """The options of a simulation.

    Attributes
    ----------
    seed : int
        Seed of the faults.
    faults : Faults
    report_s : float or None
        Time between reports of progress; None: only when an attempt stops training.
    until_s : float
        Stop before anything later; infinite: stop when all jobs have ended, or no event is left.
    looks_s : sequence of float
        Instants, ascending; attempts that train also report just before each of them.
    autoscale : Band or None
        If given, hold only as many of the nodes as are worthwhile.
    """

    seed: int = 0
    faults: Faults = Faults()
    report_s: float | None = None
    until_s: float = math.inf
    looks_s: Sequence[float] = ()
    autoscale: Band | None = None


class Named(NamedTuple):
    """The names of a run; see :class:`~hpcext.sim.evaluate.outcome.SimulatedRun`."""

    policy: str
    workload: str = ""
    source: str = ""
    label: str = ""


class _Counted:
    """A policy that counts its decisions."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.calls = 0

    def __call__(self, now: Snapshot) -> Target:
        self.calls += 1
        return self._policy(now)


Watcher = Callable[[Engine], Observe]
"""A function of a run's engine that returns an observer of its steps."""


def run(
    scenario: Scenario,
    policy: Policy,
    named: Named,
    how: SimulationOptions | None = None,
    watcher: Watcher | None = None,
) -> SimulatedRun:
    """Run jobs until they end, or no event is left.

    Memory grows with the number of jobs, by a row for each that has ended, and not with the length
    of the run.

    Parameters
    ----------
    scenario : Scenario
    policy : Policy
    named : Named
    how : SimulationOptions, optional
    watcher : callable, optional
        Makes a further observer, which is told of each step while the engine still has the jobs
        that ended in it.

    Raises
    ------
    HpcextError
        The policy failed, or its answer was refused.
    """
    how = how or SimulationOptions()
    heap = Heap()
    here = scenario.nodes if how.autoscale is None else ()
    executor = SimulatedExecutor(
        heap, here, {}, faults=how.faults, seed=how.seed, report_s=how.report_s
    )
    counted = _Counted(policy)
    engine = Engine(counted)
    stays = scenario.changes == () and bool(scenario.nodes) and how.autoscale is None
    recorder = Recorder(engine, executor, FairShares(scenario.nodes) if stays else None)
    told = (recorder.watch,) if watcher is None else (watcher(engine), recorder.watch)
    offered: Offered = tuple
    if how.autoscale is not None:
        held = Autoscaled(how.autoscale, engine, executor, heap)
        offered, told = held.offered, (*told, held.watch)
    coming = _Submissions(scenario.jobs, executor, recorder)
    heap.at(0.0, _happening(executor, tuple(map(NodeJoined, scenario.nodes)), offered))
    heap.feed(coming)
    heap.feed((when_s, _happening(executor, facts, offered)) for when_s, facts in scenario.changes)
    heap.feed((_before(when_s), _looking(executor)) for when_s in how.looks_s)

    def observe(now_s: float, facts: tuple[Fact, ...], actions: tuple[Action, ...]) -> None:
        for each in told:
            each(now_s, facts, actions)

    def stop() -> bool:
        recorder.after()
        if engine.refusal:
            raise HpcextError(f"it {engine.refusal}", where=f"policy {named.policy}")
        return coming.over and not len(engine.world.queue)

    drive(
        engine, heap, executor,
        until_s=how.until_s, observe=observe, quiet=recorder.between, stop=stop,
    )  # fmt: skip
    over = coming.over and not len(engine.world.queue)
    end_s = recorder.last_end_s if over else min(max(heap.now_s, 0.0), how.until_s)
    if math.isfinite(how.until_s) and not over:
        end_s = how.until_s
        heap.advance(end_s)
    rows, spans = recorder.finish(end_s)
    return SimulatedRun(
        named.label or named.policy,
        named.workload,
        named.source,
        named.policy,
        how.seed,
        end_s,
        rows,
        spans,
        recorder.events,
        counted.calls,
        recorder.done,
    )


class _Submissions:
    """The submissions as events; it can tell whether there are more."""

    def __init__(
        self, jobs: Iterable[tuple[Job, Physics]], executor: SimulatedExecutor, recorder: Recorder
    ) -> None:
        self._jobs = iter(jobs)
        self._executor = executor
        self._recorder = recorder
        self.over = False

    def __iter__(self) -> Iterator[tuple[float, Produce]]:
        for job, physics in self._jobs:
            self._executor.expect(job.id, physics)
            self._recorder.expect(job.id, physics)
            yield job.submitted_s, _submission(job)
        self.over = True


def _submission(job: Job) -> Produce:
    return lambda: (Submitted(job),)


Offered = Callable[[Iterable[Fact]], tuple[Fact, ...]]
"""A function from facts about nodes to those that the engine is told."""


def _happening(executor: SimulatedExecutor, facts: tuple[Fact, ...], offered: Offered) -> Produce:
    return lambda: executor.happen(*offered(facts))


def _before(when_s: float) -> float:
    """Return the last instant before another one, so that a run that stops there has not ended."""
    return math.nextafter(when_s, -math.inf)


def _looking(executor: SimulatedExecutor) -> Produce:
    def look() -> tuple[Fact, ...]:
        executor.look()
        return ()

    return look
