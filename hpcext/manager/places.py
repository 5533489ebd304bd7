"""The place of a pilot's jobs: this machine, the nodes of a batch job, or idle nodes as leases."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext import backends
from hpcext.backends.base import PilotRun
from hpcext.core.band import Band
from hpcext.core.engine import Engine
from hpcext.core.errors import NoManagerError
from hpcext.core.values import Node
from hpcext.executors.base import Executor
from hpcext.executors.gpus import find_gpus
from hpcext.executors.local import LocalExecutor
from hpcext.harvest.executor import LeaseExecutor
from hpcext.harvest.lease import recorded as recorded_nodes
from hpcext.harvest.leases import Terms, first, wanted
from hpcext.harvest.site import SiteLeave
from hpcext.manager.directory import host

if TYPE_CHECKING:
    from hpcext.manager.directory import Pilot

log = logging.getLogger(__name__)

MAX_RESTARTS = 1000
"""The most allocations of one batch job, whatever progress it makes in them."""


def _never(*, gained: bool) -> None:
    raise AssertionError("this machine, or leases, have no common end")


@dataclasses.dataclass(frozen=True)
class Resources:
    """A set of nodes, and what runs jobs on them.

    Attributes
    ----------
    nodes : tuple of Node
    executor : callable
        Takes what every executor needs, see
        :class:`~hpcext.executors.processes.ProcessExecutor`.
    carry_on : callable
        Has the pilot go on in the next allocation; its argument ``gained`` says whether there was
        any progress in this one. Only an allocation ends.
    gone : tuple of str
        Nodes that its allocation had, and has no more.
    again : bool
        Whether they are those of a batch job that was put back into the queue.
    """

    nodes: tuple[Node, ...]
    executor: Callable[..., Executor]
    carry_on: Callable[..., None] = _never
    gone: tuple[str, ...] = ()
    again: bool = False


def find(pilot: Pilot, engine: Engine, directory: Path) -> Resources:
    """Return where a pilot runs its jobs, if this process manages it.

    Parameters
    ----------
    pilot : Pilot
    engine : Engine
        The engine with the facts so far.
    directory : pathlib.Path
        The pilot's.

    Raises
    ------
    NoManagerError
        It is a pilot for a batch system, and this is no job of that.
    InputError
        No installed package brings that batch system.
    """
    if pilot.harvest is not None:
        return _leases(pilot, pilot.harvest, engine, directory)
    return _job(pilot, engine, directory) if pilot.batch else _machine(pilot)


def _machine(pilot: Pilot) -> Resources:
    node = Node(host(), len(pilot.own_gpus))
    shared = pilot.shared and pilot.shared.as_node(host())
    nodes = tuple(each for each in (node, shared) if each and each.gpus)

    def executor(**common: Any) -> Executor:
        hide = pilot.logical and bool(find_gpus(environ={}))
        return LocalExecutor(
            node=node, indices=pilot.own_gpus, hide_gpus=hide, shared=pilot.shared, **common
        )

    return Resources(nodes, executor)


def _leases(pilot: Pilot, terms: Terms, engine: Engine, directory: Path) -> Resources:
    """Idle nodes of a batch system, as long as no other job needs them."""
    from hpcext.policies.autoscale import loss  # noqa: PLC0415  (slow, and for harvesters alone)

    # The batch system will report the leases that have ended since then.
    recorded = recorded_nodes(directory / "leases")
    world = engine.world
    nodes = tuple(node for name, node in world.nodes.items() if name in recorded)

    def usable() -> int:
        return wanted(world.unfinished(), terms)

    want = usable
    if terms.autoscale is not None:
        want = _worth_having(terms, terms.autoscale, len(nodes), engine)

    name = f"hpcext-{pilot.id}"
    site = SiteLeave(name, terms, lambda: first(world.unfinished(), terms))

    def executor(**common: Any) -> Executor:
        return LeaseExecutor(
            name=name,
            terms=terms,
            began_at=pilot.began_at,
            seen=lambda: world.seen.fragments,
            want=want,
            loss=lambda node: loss(world.queue.busy(), node),
            avoid=lambda: world.aside,
            homes=world.waited_for,
            bound=terms.autoscale is not None,
            site=site,
            **common,
        )

    return Resources(nodes, executor)


def _worth_having(terms: Terms, band: Band, had: int, engine: Engine) -> Callable[[], int]:
    """Return a function that counts the nodes that trainers can use, and that are worth it."""
    from hpcext.policies.autoscale import Autoscaler, AvailableNodes  # noqa: PLC0415  (slow)

    autoscaler = Autoscaler(band, had)

    def want() -> int:
        jobs = engine.world.unfinished()
        kinds = {node.kind for node in engine.world.nodes.values()}
        most = min(terms.max_nodes, wanted(jobs, terms))
        nodes = AvailableNodes(most, terms.gpus, kinds.pop() if len(kinds) == 1 else "")
        return autoscaler.wanted(time.monotonic(), first(jobs, terms), nodes)

    return want


def _job(pilot: Pilot, engine: Engine, directory: Path) -> Resources:
    """Return what the batch job that we are in has."""
    backend = backends.find(pilot.batch, str(directory / "pilot.json"))
    if backend.own_job() is None:
        raise NoManagerError(
            f"pilot {pilot.name} runs inside a job of {backend.title}, but this process does not",
            do=f"hpcext pilot resubmit {pilot.id}",
        )
    run = PilotRun(
        id=pilot.id,
        name=pilot.name,
        directory=directory,
        node=host(),
        gpus=pilot.gpus,
        logical=pilot.logical,
        lead_s=pilot.lead_s,
        alone=pilot.alone,
        launcher=pilot.launcher,
        orphans=_orphans(engine),
    )
    has = backend.place(run)
    made: list[Executor] = []

    def executor(**common: Any) -> Executor:
        made.append(has.executor(**common))
        return made[-1]

    def carry_on(*, gained: bool) -> None:
        if has.restarts >= MAX_RESTARTS:
            log.warning("restarted %d times: not requeued again", has.restarts)
        elif gained or any(each.preempted for each in made):
            has.requeue()
        else:
            log.warning("nothing was saved before the time limit: not requeued")

    return Resources(has.nodes, executor, carry_on, has.gone, again=has.restarts > 0)


def _orphans(engine: Engine) -> tuple[tuple[str, int, str], ...]:
    """Job, attempt and node of what may run where a node was lost."""
    found = engine.world.records.items()
    return tuple((name, attempt, node) for name, each in found for node, attempt in each.orphans)
