"""The data of the dashboard: one document, schema hpcext.dashboard/1, made from readings alone."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from hpcext.core.errors import HpcextError
from hpcext.core.reasons import reason
from hpcext.core.saving import lost
from hpcext.core.values import Job, Record, State, total
from hpcext.core.world import World
from hpcext.dashboard.timeline import Span, spans
from hpcext.executors.gpu_facts import GpuFacts
from hpcext.manager.views.harvest_report import harvest_document
from hpcext.manager.views.reading import Reading
from hpcext.manager.views.report import (
    busy_fraction,
    chief,
    display_state,
    makespan,
    outlook_of,
    worth_of,
)

SCHEMA = "hpcext.dashboard/1"


class Gpu(msgspec.Struct, frozen=True):
    """A GPU, or the slot that stands for one.

    Attributes
    ----------
    name : str
        ``HOST:INDEX``.
    job : str or None
        The id of the job that has it.
    """

    name: str
    job: str | None = None


class NodeView(msgspec.Struct, frozen=True):
    """A node.

    Attributes
    ----------
    name, kind : str
    gpus : tuple of Gpu
        The GPUs whose names are known. With Slurm that is after the first job has had them.
    count : int
        The number of GPUs that it offers; 0 if it is wanted back.
    unnamed : dict of str to int
        Id of a job → the number of GPUs of this node that it holds and whose names are unknown.
    ends_s : float or None
        When the node is expected to leave; None if that is unknown.
    """

    name: str
    kind: str
    gpus: tuple[Gpu, ...]
    count: int
    unnamed: dict[str, int]
    ends_s: float | None


class JobView(msgspec.Struct, frozen=True):
    """A job, as the page shows it.

    Attributes
    ----------
    place : int
        The position among all submitted jobs, from 0 on.
    mark : str
        Letters that stand for it where there is no room for its name.
    state : str
        In words for people.
    final : bool
    gpus : int
        The number of GPUs that it holds.
    progress : float or None
        The share of its work that is done; None if that is unknown.
    chief : tuple of (str, float)
        The most important metrics.
    left_s : float or None
        The remaining seconds at its recent speed.
    worth : dict or None
        Goodput, batch, statistical efficiency and gain, if it reports them.
    """

    id: str
    name: str
    place: int
    mark: str
    state: str
    final: bool
    role: str
    gpus: int
    where: tuple[str, ...]
    progress: float | None
    step: int
    metrics: Mapping[str, float]
    chief: tuple[tuple[str, float], ...]
    left_s: float | None
    worth: dict[str, Any] | None
    why: str
    suspends: int
    rescales: int
    lost_steps: int
    lost_s: float
    lost: str
    submitted_s: float
    ended_s: float | None


class PilotView(msgspec.Struct, frozen=True):
    """A pilot or a harvester; instants are seconds since `started_at`.

    Attributes
    ----------
    kind : {"pilot", "harvester"}
    batch : str
        The batch system in a job of which it runs; empty if none.
    managed : bool
        Whether a manager runs it, or may do so.
    busy_fraction : float
        The share of the GPU time so far in which a job held the GPU.
    outlook : dict or None
        The utility of the nodes, if jobs report their goodput.
    jobs : tuple of JobView
        In the order of submission.
    queue : tuple of str
        The ids of waiting jobs, in order.
    spans : tuple of Span
    harvest : dict or None
        The report of a harvester, schema hpcext.harvest-report/1.
    standing : str
        The state of its batch job, or what starts a manager; empty if one runs.
    """

    id: str
    name: str
    kind: str
    batch: str
    policy: str
    managed: bool
    draining: bool
    started_at: str
    now_s: float
    busy_fraction: float
    outlook: dict[str, float] | None
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    queue: tuple[str, ...]
    spans: tuple[Span, ...]
    harvest: dict[str, Any] | None
    standing: str = ""

    @property
    def gpus(self) -> int:
        """The number of GPUs that it has."""
        return sum(node.count for node in self.nodes)

    @property
    def held(self) -> int:
        """The number of GPUs that its jobs hold."""
        return sum(job.gpus for job in self.jobs)


class LocalGpus(msgspec.Struct, frozen=True):
    """The GPUs of the machine on which the document was made.

    Attributes
    ----------
    host : str
    gpus : tuple of GpuFacts
    mps : bool
        Whether the MPS daemon runs there.
    """

    host: str
    gpus: tuple[GpuFacts, ...]
    mps: bool


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read at an instant.

    Attributes
    ----------
    read_at : str
    machine : LocalGpus or None
        None if it has no GPU.
    pilots : tuple of PilotView
        Newest first.
    unreadable : tuple of dict
        The errors of pilots that could not be read: what, where, valid, do.
    """

    schema: str = SCHEMA
    read_at: str
    machine: LocalGpus | None = None
    pilots: tuple[PilotView, ...]
    unreadable: tuple[dict[str, str], ...] = ()


def document(
    found: Iterable[Reading | HpcextError], at: float, machine: LocalGpus | None = None
) -> Document:
    """Return the document of some pilots.

    Parameters
    ----------
    found : iterable of Reading or HpcextError
        An error stands for a pilot that could not be read.
    at : float
        When they were read, in epoch seconds.
    machine : LocalGpus, optional
    """
    pilots: list[PilotView] = []
    unreadable: list[dict[str, str]] = []
    for each in found:
        if isinstance(each, HpcextError):
            unreadable.append(each.as_json()["error"])
        else:
            pilots.append(pilot_view(each))
    return Document(
        read_at=_instant(at), machine=machine, pilots=tuple(pilots), unreadable=tuple(unreadable)
    )


def pilot_view(found: Reading) -> PilotView:
    """Return the view of one pilot."""
    world, pilot = found.world, found.pilot
    outlook = outlook_of(world)
    harvest = pilot.harvest is not None
    ran = spans(world)
    return PilotView(
        id=pilot.id,
        name=pilot.name,
        kind="harvester" if harvest else "pilot",
        batch=pilot.harvest.system if pilot.harvest else pilot.batch,
        policy=found.policy,
        managed=found.alive,
        standing=f"{found.standing.what}; {found.standing.do}".rstrip("; "),
        draining=world.draining,
        started_at=_instant(found.began_at),
        now_s=round(found.now_s, 3),
        busy_fraction=round(busy_fraction(world, makespan(world, found.now_s)), 4),
        outlook=outlook._asdict() if outlook else None,
        nodes=_nodes(world, ran, None if harvest or pilot.batch else pilot.indices),
        jobs=tuple(
            _job(job, world.records[job.id], place) for place, job in enumerate(world.jobs.values())
        ),
        queue=tuple(job.id for job in world.unfinished() if job.state is State.PENDING),
        spans=ran,
        harvest=harvest_document(found.directory, world, found.node_time) if harvest else None,
    )


def mark(place: int) -> str:
    """Return the letters for a position from 0 on: A to Z, AA, AB and so on."""
    letters = ""
    left = place + 1
    while left:
        left, rest = divmod(left - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _nodes(
    world: World, ran: Iterable[Span], indices: Callable[[str], Iterable[str]] | None
) -> tuple[NodeView, ...]:
    """Return the nodes, with the GPUs whose names are known.

    For a pilot on this machine, `indices` returns them all.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for span in ran:
        names[span.gpu.rpartition(":")[0]].add(span.gpu)
    holders: dict[str, str] = {}
    unnamed: dict[str, dict[str, int]] = defaultdict(dict)
    for job in world.jobs.values():
        if job.state.active:
            holders.update(dict.fromkeys(job.gpus, job.id))
            for host, gpus in job.held.items():
                if more := gpus - sum(gpu.rpartition(":")[0] == host for gpu in job.gpus):
                    unnamed[host][job.id] = more
    views = []
    for node in sorted(world.nodes.values(), key=lambda node: natural(node.name)):
        there = indices(node.name) if indices else ()
        known = names[node.name] | {f"{node.name}:{index}" for index in there}
        views.append(
            NodeView(
                node.name,
                node.kind,
                tuple(Gpu(name, holders.get(name)) for name in sorted(known, key=natural)),
                node.gpus,
                unnamed[node.name],
                node.ends_s,
            )
        )
    return tuple(views)


def natural(name: str) -> list[Any]:
    """Return a key that sorts numbers in names by value: ``node2`` before ``node10``."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def _job(job: Job, record: Record, place: int) -> JobView:
    known, worth = job.estimate, worth_of(job)
    running = job.state is State.RUNNING
    progress = min(1.0, known.done / known.work) if known.work else None
    if job.state is State.COMPLETED:
        progress = 1.0
    return JobView(
        id=job.id,
        name=job.name,
        place=place,
        mark=mark(place),
        state=display_state(job),
        final=job.state.final,
        role=job.role.value if job.role and job.state.active else "",
        gpus=total(job.held),
        where=job.gpus if job.state.active else (),
        progress=progress,
        step=job.step,
        metrics=record.metrics,
        chief=tuple(chief(record.metrics, job.trial)),
        left_s=known.left_s(total(job.held)) if running else None,
        worth=worth._asdict() if worth else None,
        why=reason(job),
        suspends=record.suspends,
        rescales=record.rescales,
        lost_steps=record.lost_steps,
        lost_s=record.lost_s,
        lost=lost(record),
        submitted_s=job.submitted_s,
        ended_s=job.since_s if job.state.final else None,
    )


def _instant(at: float) -> str:
    when = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    return when.isoformat(timespec="seconds")
