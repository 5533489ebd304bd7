"""The place of a pilot's jobs: this machine, the nodes of a batch job, or idle nodes as leases."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext.backends.lsf import job as lsf_job
from hpcext.backends.lsf import suspend as lsf_suspend
from hpcext.backends.lsf.script import LsfScript
from hpcext.backends.lsf.steps import Launcher, LsfHost, LsfSteps
from hpcext.backends.slurm import job as slurm_job
from hpcext.backends.slurm.script import SlurmScript
from hpcext.backends.slurm.steps import Share, SlurmSteps
from hpcext.batch import runner, slurm
from hpcext.batch.lsf.engine import starts_on_hosts
from hpcext.batch.lsf.inside import LsfJob
from hpcext.batch.slurm.reads import reads
from hpcext.core.engine import Engine
from hpcext.core.errors import BatchError, NoManagerError
from hpcext.core.values import Node
from hpcext.executors.allocation import AllocationExecutor
from hpcext.executors.base import Executor
from hpcext.executors.gpus import find_gpus
from hpcext.executors.local import LocalExecutor
from hpcext.harvest.executor import LeaseExecutor
from hpcext.harvest.lease import recorded as recorded_nodes
from hpcext.harvest.leases import Terms, first, wanted
from hpcext.manager.directory import host
from hpcext.policies.autoscale import Autoscaler, Nodes, loss
from hpcext.protocol import Allocation, JobId

if TYPE_CHECKING:
    from hpcext.manager.directory import Pilot

log = logging.getLogger(__name__)

MAX_RESTARTS = 1000
"""The largest number of allocations of one job of Slurm, whatever it gained in them."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A set of nodes, and what runs jobs on them.

    Attributes
    ----------
    nodes : tuple of Node
    executor : callable
        Takes what every executor needs, see
        :class:`~hpcext.executors.processes.ProcessExecutor`.
    carry_on : callable
        Has the pilot go on in the next allocation; told with ``gained`` whether this one was of
        any use.
    gone : tuple of str
        Nodes that its allocation had, and has no more.
    """

    nodes: tuple[Node, ...]
    executor: Callable[..., Executor]
    carry_on: Callable[..., None]
    gone: tuple[str, ...] = ()


def find(pilot: Pilot, engine: Engine, directory: Path) -> Place:
    """Return where a pilot runs its jobs, if this process manages it.

    Parameters
    ----------
    pilot : Pilot
    engine : Engine
        What is known from before.
    directory : pathlib.Path
        The pilot's.

    Raises
    ------
    NoManagerError
        It is a pilot for a batch system, and this is no job of that.
    """
    if pilot.harvest is not None:
        return _leases(pilot, pilot.harvest, engine, directory)
    if pilot.batch == "lsf":
        return _lsf_script(pilot, directory) if pilot.alone else _lsf(pilot, engine, directory)
    return _allocation(pilot, engine) if pilot.batch else _machine(pilot)


def batch_job() -> tuple[str, JobId | None]:
    """Return batch system and id of the job that this process is in; ``"", None`` if in none."""
    if (here := Allocation.from_environ()) is not None:
        return "slurm", here.name
    inside = LsfJob.from_environ()
    return ("lsf", inside.name) if inside else ("", None)


def go_back(pilot: Pilot, directory: Path) -> None:
    """Requeue our job of LSF, of which no manager has begun."""
    here = LsfJob.from_environ()
    if here is not None and pilot.alone:
        lsf_suspend.requeue(here, directory)
    elif here is not None:
        lsf_job.requeue(directory)


def _machine(pilot: Pilot) -> Place:
    node = Node(host(), len(pilot.own_gpus))
    shared = pilot.shared and pilot.shared.as_node(host())
    nodes = tuple(each for each in (node, shared) if each and each.gpus)

    def executor(**common: Any) -> Executor:
        hide = pilot.logical and bool(find_gpus(environ={}))
        return LocalExecutor(
            node=node, indices=pilot.own_gpus, hide_gpus=hide, shared=pilot.shared, **common
        )

    def carry_on(*, gained: bool) -> None:
        raise AssertionError("this machine has no end")

    return Place(nodes, executor, carry_on)


def _leases(pilot: Pilot, terms: Terms, engine: Engine, directory: Path) -> Place:
    """Return idle nodes of a batch system, for as long as nobody else needs them."""
    # Slurm will report those that are gone meanwhile.
    recorded = recorded_nodes(directory / "leases")
    world = engine.world
    nodes = tuple(node for name, node in world.nodes.items() if name in recorded)

    def usable() -> int:
        return wanted(world.unfinished(), terms)

    want = usable
    if terms.autoscale is not None:
        want = _worth_having(terms, Autoscaler(terms.autoscale, len(nodes)), engine)

    def executor(**common: Any) -> Executor:
        return LeaseExecutor(
            name=f"hpcext-{pilot.id}",
            terms=terms,
            began_at=pilot.began_at,
            seen=lambda: world.seen.fragments,
            want=want,
            loss=lambda node: loss(world.queue.busy(), node),
            bound=terms.autoscale is not None,
            **common,
        )

    def carry_on(*, gained: bool) -> None:
        raise AssertionError("leases have no common end")

    return Place(nodes, executor, carry_on)


def _worth_having(terms: Terms, autoscaler: Autoscaler, engine: Engine) -> Callable[[], int]:
    """Return a function that counts the nodes that trainers can use, and that are worth it."""

    def want() -> int:
        jobs = engine.world.unfinished()
        kinds = {node.kind for node in engine.world.nodes.values()}
        most = min(terms.max_nodes, wanted(jobs, terms))
        nodes = Nodes(most, terms.gpus, kinds.pop() if len(kinds) == 1 else "")
        return autoscaler.wanted(time.monotonic(), first(jobs, terms), nodes)

    return want


def _orphans(engine: Engine) -> list[tuple[str, int, str]]:
    """Return job, attempt and node of what may still run where a node was lost."""
    found = engine.world.records.items()
    return [(name, attempt, node) for name, each in found for node, attempt in each.orphans]


def _allocation(pilot: Pilot, engine: Engine) -> Place:
    here = Allocation.from_environ()
    if here is None:
        raise _outside(pilot, "Slurm")
    nodes, kind, more = _script(pilot, here) if pilot.alone else _steps(pilot, engine, here)
    made: list[AllocationExecutor] = []

    def executor(**common: Any) -> Executor:
        made.append(
            kind(job_id=here.name, restarts=here.restarts, lead_s=pilot.lead_s, **more, **common)
        )
        return made[-1]

    def requeue() -> None:
        slurm_job.requeue(here.name)

    gone = () if pilot.alone else _gone(here, nodes)
    nodes = tuple(node for node in nodes if node.name not in gone)
    return Place(nodes, executor, _carry_on(here.restarts, requeue, made), gone)


def _gone(here: Allocation, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return nodes that the job has lost since it began, which its environment does not show."""
    try:
        left = reads().nodes_of(here.name)
    except BatchError as error:
        log.warning("which nodes are left is not known: %s", error)
        return ()
    return tuple(node.name for node in nodes if left and node.name not in left)


def _carry_on(
    times: int, requeue: Callable[[], None], made: Sequence[AllocationExecutor] = ()
) -> Callable[..., None]:
    """Return a function that requeues the job, if that is of use and was not done too often."""

    def carry_on(*, gained: bool) -> None:
        if times >= MAX_RESTARTS:
            log.warning("restarted %d times: not put back into the queue again", times)
        elif gained or any(each.preempted for each in made):
            requeue()
        else:
            log.warning("nothing was saved before the time limit: not put back into the queue")

    return carry_on


def _outside(pilot: Pilot, system: str) -> NoManagerError:
    return NoManagerError(
        f"pilot {pilot.name} runs inside a job of {system}, and this is none",
        do=f"hpcext pilot resubmit {pilot.id}",
    )


def _lsf(pilot: Pilot, engine: Engine, directory: Path) -> Place:
    """Return the hosts of an LSF job; one host with the manager on it needs no launcher."""
    here = LsfJob.from_environ()
    if here is None:
        raise _outside(pilot, "LSF")
    # Where there is jsrun the script runs on a launch node, which is named first.
    listed = here.hosts[1:] if pilot.launcher == "jsrun" else here.hosts
    if not listed:
        raise NoManagerError(f"LSF does not say which hosts job {here.name} has")
    gpus = len(pilot.gpus)
    nodes = tuple(Node(name, gpus) for name, _ in listed)
    times = lsf_job.restarts(directory)
    more: dict[str, Any] = {
        "job_id": here.name,
        "restarts": here.number or times,
        "lead_s": pilot.lead_s,
        "system": "lsf",
    }
    kind: type[AllocationExecutor] = LsfSteps
    if pilot.launcher != "jsrun" and len(nodes) == 1:
        kind = LsfHost
        more |= {"node": nodes[0], "indices": here.indices or pilot.gpus}
    else:
        launcher = Launcher(starts_on_hosts(pilot.launcher), dict(listed), gpus)
        more |= {"nodes": nodes, "launcher": launcher, "orphans": _orphans(engine)}

    made: list[AllocationExecutor] = []

    def executor(**common: Any) -> Executor:
        made.append(kind(**more, **common))
        return made[-1]

    def requeue() -> None:
        lsf_job.requeue(directory)

    return Place(nodes, executor, _carry_on(times, requeue, made))


def _lsf_script(pilot: Pilot, directory: Path) -> Place:
    """Return the first host of an LSF job; what its script does on others is its own affair."""
    here = LsfJob.from_environ()
    if here is None or not lsf_suspend.known(here, directory):
        raise NoManagerError(f"pilot {pilot.name} runs inside its job of LSF, and this is not that")
    node = Node(host(), len(pilot.gpus))
    runs = lsf_suspend.runs(directory)
    made: list[LsfScript] = []

    def executor(**common: Any) -> Executor:
        where = {"node": node, "indices": pilot.gpus}
        made.append(
            LsfScript(job_id=here.name, restarts=runs, lead_s=pilot.lead_s, **where, **common)
        )
        return made[-1]

    def requeue() -> None:
        lsf_suspend.requeue(here, directory)

    return Place((node,), executor, _carry_on(runs - 1, requeue, made))


_Executor = tuple[tuple[Node, ...], type[AllocationExecutor], dict[str, Any]]
"""Nodes, the class that runs jobs on them, and further arguments of that."""


def _script(pilot: Pilot, here: Allocation) -> _Executor:
    """Return the batch step, on the first node; what its script does on others is its own."""
    node = Node(here.node, len(pilot.gpus))
    more = {"number": here.job_id, "node": node, "indices": here.gpus or pilot.gpus}
    return (node,), SlurmScript, more


def _steps(pilot: Pilot, engine: Engine, here: Allocation) -> _Executor:
    """Return steps on all nodes of the allocation."""
    names = slurm.parse_hostnames(runner.run(slurm.hostnames_command(here.nodelist)))
    gpus = len(pilot.gpus)
    cpus = slurm.parse_cpus(here.cpus_per_node)
    # As sbatch's --gpus-per-node promises, all nodes have as many GPUs; CPUs may differ.
    shares = {
        name: Share(gpus, cpus=count, memory_mb=here.memory_mb, logical=pilot.logical)
        for name, count in zip(names, cpus, strict=True)
    }
    hosts = reads().hosts(names) if len(names) > 1 else {}
    addresses = {name: host.address for name, host in hosts.items()}
    # Slots are alike wherever they are.
    kinds = {name: host.kind for name, host in hosts.items() if not pilot.logical}
    nodes = tuple(Node(name, gpus, kinds.get(name, "")) for name in names)
    more = {"number": here.job_id, "shares": shares, "addresses": addresses}
    return nodes, SlurmSteps, {**more, "orphans": _orphans(engine)}
