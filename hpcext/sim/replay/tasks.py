"""Tasks to simulate, in a form that can be sent to another process, and their runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import fields, replace

from hpcext.core.band import Band
from hpcext.core.engine import Engine, Policy
from hpcext.core.facts import Fact
from hpcext.core.values import Action, Job
from hpcext.jobfile import read_jobs
from hpcext.jobspec import JobSpec
from hpcext.policies import find_policy
from hpcext.profiles import Profiles
from hpcext.sim.evaluate.calibration import Calibration
from hpcext.sim.evaluate.ideal import ideal
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay import sources
from hpcext.sim.replay.heap import Observe
from hpcext.sim.replay.mainqueue import EASY
from hpcext.sim.replay.physics import Faults, Physics
from hpcext.sim.replay.progress import Progress
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.replay.sources import Source
from hpcext.sim.workloads.find import find_workload, job_file
from hpcext.sim.workloads.workload import Costs, Setting, Workload

ORACLE, KNOWN = "oracle", "known ends"
"""Labels of runs in which policies know what is really unknown."""


class NodeSource(msgspec.Struct, frozen=True):
    """The nodes for jobs, of which one of the first three fields is given.

    Attributes
    ----------
    nodes : str
        A machine that stays, as read by :func:`hpcext.sim.replay.sources.read_nodes`.
    idle : str
        A trace of idle nodes, or the machine for which one is generated.
    main : str
        The log of a main queue, whose holes are harvested.
    main_nodes : int
        Nodes of its machine.
    per_node : int
        Processors of a node, if logs count processors.
    gpus : int
        GPUs of an idle node.
    skip : int
        Changes of idle nodes to skip at the beginning.
    known : bool
        Whether policies know when each idle node will leave.
    backfill : {"easy", "conservative"}
        How the main queue backfills.
    """

    nodes: str = ""
    idle: str = ""
    main: str = ""
    main_nodes: int = 0
    per_node: int = 1
    gpus: int = 1
    skip: int = 0
    known: bool = False
    backfill: str = EASY

    @property
    def harvest(self) -> bool:
        """Whether nodes come and go."""
        return not self.nodes

    def find(self) -> Source:
        """Return the source of the nodes."""
        if self.nodes:
            return sources.fixed(self.nodes)
        if self.idle:
            return sources.idle(self.idle, gpus=self.gpus, skip=self.skip, known=self.known)
        return sources.holes(
            Path(self.main),
            self.main_nodes,
            gpus=self.gpus,
            per_node=self.per_node,
            known=self.known,
            backfill=self.backfill,
        )


class RunObserver(Protocol):
    """What observes a run, and adds to its outcome."""

    def begin(self, engine: Engine) -> Observe:
        """Return what is told of each step of an engine, before its first one."""

    def completed(self, found: SimulatedRun) -> SimulatedRun:
        """Return the outcome with what was observed."""


class Task(msgspec.Struct, frozen=True):
    """One run to simulate.

    Attributes
    ----------
    workload, policy : str
    place : NodeSource
    seed : int
    learn : bool
        Whether policies do not know the speeds that jobs state.
    oracle : bool
        Whether policies know the true speeds, and the true work.
    launch_s, checkpoint_s, interference : float or None
    rescale : float
        See :class:`~hpcext.sim.workloads.workload.Costs`.
    fail_s : float or None
        Mean training time until an attempt fails.
    report_s : float or None
        Seconds between reports of progress; None: as the workload has it.
    until_s : float or None
        Time at which to end; None: when all jobs have ended.
    profiles, gpu : str
        The directory of measured speeds that a job file may name, and the kind of GPU for which
        they are looked up.
    data : str
        The folder of recorded data.
    autoscale : Band or None
        Band of auto-scaling; only worthwhile nodes are held.
    """

    workload: str
    policy: str
    place: NodeSource
    seed: int = 0
    learn: bool = False
    oracle: bool = False
    launch_s: float | None = None
    checkpoint_s: float | None = None
    interference: float | None = None
    rescale: float = 1.0
    fail_s: float | None = None
    report_s: float | None = None
    until_s: float | None = None
    profiles: str = ""
    gpu: str = ""
    data: str = ""
    autoscale: Band | None = None

    def jobs(self, source: Source) -> Workload:
        """Return the workload."""
        return find_workload(self.workload, self.setting(source))

    def decider(self) -> Policy:
        """Return the policy, which a run or its ideal asks from its beginning on."""
        return find_policy(self.policy)

    def observer(self, _: Source) -> RunObserver | None:
        """Return what observes a run and adds to its outcome, if anything does."""
        return None

    def setting(self, source: Source) -> Setting:
        """Return the setting for which the jobs are made."""
        widest = max((node.gpus for node in source.nodes), default=self.place.gpus)
        return Setting(
            gpus=widest,
            nodes=len(source.nodes) or None,
            per_node=self.place.per_node if self.place.per_node > 1 else None,
            policy=self.policy,
            learn=self.learn,
            oracle=self.oracle,
            elastic=self.place.harvest,
            costs=Costs(self.launch_s, self.checkpoint_s, self.interference, self.rescale),
            profiles=self._store(),
            data=Path(self.data) if self.data else None,
        )

    @property
    def label(self) -> str:
        """The name that distinguishes its runs: policy, its knowledge, and choice of nodes."""
        both = ((ORACLE, self.oracle), (KNOWN, self.place.known))
        told = ", ".join(name for name, is_ in both if is_)
        if self.autoscale is not None:
            told += f"{', ' if told else ''}autoscale {self.autoscale}"
        return f"{self.policy} ({told})" if told else self.policy

    def specs(self) -> tuple[JobSpec, ...]:
        """Return the jobs of its job file, if it has one."""
        path = job_file(self.workload)
        return () if path is None else read_jobs(path, profiles=self._store())

    def _store(self) -> Profiles | None:
        return Profiles(Path(self.profiles), self.gpu) if self.profiles else None

    @property
    def options(self) -> dict[str, str]:
        """All that the result depends on besides workload, source, policy and seed."""
        skipped = {"workload", "policy", "seed", "place", "profiles", "gpu", "data"}
        said = {}
        for field in fields(self):
            value = getattr(self, field.name)
            # Keys leave out what is nothing by default; a 0 that was given is not nothing.
            if field.name not in skipped and (value not in {None, False} or value != field.default):
                said[field.name] = str(value)
        place = {field: str(getattr(self.place, field)) for field in self.place.__struct_fields__}
        # A measured curve improves over time, and one by kinds is another one on another machine,
        # while the file that states it stays the same.
        named = {
            f"speed.{spec.name}": repr((sorted(spec.scaling.items()), spec.by_kind))
            for spec in self.specs()
            if spec.profile or spec.by_kind
        }
        return said | {f"place.{field}": value for field, value in place.items()} | named


def simulate_task(
    task: Task, tell: Callable[[float], None] | None = None
) -> tuple[SimulatedRun, float]:
    """Simulate a task; return its run, and the seconds that it took.

    Parameters
    ----------
    task : Task
    tell : callable, optional
        Called after each step with the part of it that is done, from 0 to 1.
    """
    began = time.perf_counter()
    source = task.place.find()
    workload = task.jobs(source)
    jobs: Iterable[tuple[Job, Physics]] = workload.jobs(task.seed)
    progress = None
    if tell is not None:
        until_s = math.inf if task.until_s is None else task.until_s
        progress = Progress(tell, lambda: sum(1 for _ in workload.jobs(task.seed)), until_s)
        jobs = progress.of(jobs)
    scenario = Scenario(jobs, source.nodes, source.changes(task.seed))
    how = SimulationOptions(
        task.seed,
        Faults(fail_s=task.fail_s),
        workload.report_s if task.report_s is None else task.report_s,
        math.inf if task.until_s is None else task.until_s,
        autoscale=task.autoscale,
    )
    named = Named(task.policy, workload.text, source.text, task.label)
    calibrations: list[Calibration] = []
    harvest, observer = task.place.harvest, task.observer(source)

    def watcher(engine: Engine) -> Observe:
        told: list[Observe] = []
        if harvest:
            calibrations.append(Calibration(engine.world))
            told.append(calibrations[0])
        if observer is not None:
            told.append(observer.begin(engine))
        if progress is not None:
            told.append(progress.begin(engine))

        def watch(now_s: float, facts: tuple[Fact, ...], actions: tuple[Action, ...]) -> None:
            for each in told:
                each(now_s, facts, actions)

        return watch

    found = run(scenario, task.decider(), named, how, watcher)
    if harvest:
        free = replace(task, launch_s=0.0, rescale=0.0, fail_s=None).jobs(source)
        ideally = ideal(found, free.jobs(task.seed), task.decider(), task.place.gpus, how)
        found = replace(found, ideal=ideally, stays=calibrations[0].found())
    if observer is not None:
        found = observer.completed(found)
    return found, time.perf_counter() - began
