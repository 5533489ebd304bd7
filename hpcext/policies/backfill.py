"""Backfilling of rigid jobs: what the policies `easy` and `conservative` have in common.

A batch system plans by the longest time that each job states (``walltime_s``), never by what is
measured. A job that states none is taken to have no end: nobody's start is planned on what it
holds, and while a waiting job needs that, nothing behind starts on nodes that it could use. A job
that has outlasted its statement is expected to end at any moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcext.core.values import Alloc, Job, Node, Snapshot
from hpcext.policies.common import busy, keep
from hpcext.policies.placement.availability import Availability, Changes, Ints, Slot, Wanted
from hpcext.policies.placement.candidates import Candidate, ask_of
from hpcext.policies.rigid import Room, granted, needs, resized, shape_of, wants_other_size
from hpcext.scaling.identity import of_a_machine, of_an_allocation

DEPTH = 500
"""Number of waiting jobs to consider: Slurm's ``bf_max_job_test``, slurm.conf(5)."""


class Options(msgspec.Struct, frozen=True):
    """The options of both policies.

    Attributes
    ----------
    depth : int
        Most jobs to consider in a decision that go on waiting, besides the first one; 0: no
        backfill.
    """

    depth: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = DEPTH


class Ground(NamedTuple):
    """The nodes of a machine as arrays, by their place in the order of the nodes.

    Attributes
    ----------
    names : tuple of str
    place : Mapping[str, int]
        By name.
    gpus, kind, group : array of int
        Of each node: its GPUs, the number of its kind, and that of its group of alike nodes.
    first : array of int
        The first node of each group; narrow groups come first.
    """

    names: tuple[str, ...]
    place: Mapping[str, int]
    gpus: Ints
    kind: Ints
    group: Ints
    first: Ints


@of_a_machine
def ground_of(nodes: Mapping[str, Node]) -> Ground:
    """Return the nodes as arrays; they are made once while the nodes stay the same."""
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(n.kind for n in nodes.values()))}
    alike = sorted({(node.gpus, kinds[node.kind]) for node in nodes.values()})
    groups = {each: at for at, each in enumerate(alike)}
    gpus = np.array([node.gpus for node in nodes.values()], dtype=np.int64)
    kind = np.array([kinds[node.kind] for node in nodes.values()], dtype=np.int64)
    group = np.array(
        [groups[node.gpus, kinds[node.kind]] for node in nodes.values()], dtype=np.int64
    )
    first = np.unique(group, return_index=True)[1]
    place = {name: at for at, name in enumerate(nodes)}
    return Ground(tuple(nodes), place, gpus, kind, group, first)


@of_an_allocation
def _held(alloc: Alloc, ground: Ground) -> tuple[Ints, Ints]:
    """Return the places of the nodes of an allocation, and the GPUs on each."""
    places = np.fromiter((ground.place[name] for name in alloc), np.int64, len(alloc))
    return places, np.fromiter(alloc.values(), np.int64, len(alloc))


@of_an_allocation
def _groups(alloc: Alloc, ground: Ground) -> tuple[Ints, Ints]:
    """Return the groups of the nodes of an allocation, and the nodes in each."""
    return np.unique(ground.group[_held(alloc, ground)[0]], return_counts=True)


class Planner:
    """A plan for the waiting jobs beside those that run.

    Parameters
    ----------
    now : Snapshot

    Attributes
    ----------
    now_s : float
    grants : dict of str to Grant
        Of the jobs that run, and of those that start now.
    waiting : list of Job
        The others that are ready, in the order of the queue.
    """

    def __init__(self, now: Snapshot) -> None:
        self._now, self._ground = now, ground_of(now.nodes)
        self.now_s = now.now_s
        self.grants = keep(now, busy(now))
        running = [job for job in busy(now) if job.id in self.grants]
        self._resize(running)
        self.waiting = [job for job in now.jobs if job.ready and job.id not in self.grants]
        self._free: Ints = self._ground.gpus.copy()
        for job in running:
            places, gpus = _held(self.grants[job.id].alloc, self._ground)
            self._free[places] -= gpus
        self._nodes = self._shared()
        self._asks: dict[str, Candidate] = {}
        self._columns: dict[int, list[Ints]] = {}
        self._room = Availability(
            now.now_s, self._free_now(), self._releases(running), nodes=self._nodes
        )

    @property
    def idle(self) -> bool:
        """Whether anything is left that a job could start on."""
        return self._room.idle

    def possible(self, job: Job) -> bool:
        """Return whether the machine is large enough for a job."""
        return bool(self._ask(job).shapes)

    def earliest(self, job: Job) -> Slot | None:
        """Return the first slot for a job; None if it has none that is known."""
        wanted = self._wanted(job)
        return None if wanted is None else self._room.earliest(wanted, lasts_s(job))

    def at(self, start_s: float, job: Job) -> Slot | None:
        """Return a slot for a job at an instant, if there is one."""
        wanted = self._wanted(job)
        return None if wanted is None else self._room.at(start_s, wanted, lasts_s(job))

    def start(self, job: Job) -> bool:
        """Start a job now, if that takes nothing of those that it was planned after."""
        wanted = self._wanted(job)
        slot = None if wanted is None else self._room.now(wanted, lasts_s(job))
        if slot is None:
            return False
        self.begin(job, slot)
        return True

    def begin(self, job: Job, slot: Slot) -> None:
        """Grant a job a slot that begins now."""
        alloc = self._alloc(job, slot)
        places, gpus = _held(alloc, self._ground)
        self._free[places] -= gpus
        self.grants[job.id] = granted(job, alloc)
        self._room.take(slot, lasts_s(job))

    def reserve(self, job: Job, slot: Slot | None) -> None:
        """Keep a slot for a job; if it has none, all that it could use."""
        if slot is not None:
            self._room.take(slot, lasts_s(job))
        elif (wanted := self._wanted(job)) is not None:
            self._room.close(wanted)

    def needs(self, job: Job) -> str:
        """Return why a job waits that is the next one."""
        return needs(self._ask(job))

    def _resize(self, running: Sequence[Job]) -> None:
        """Give running jobs the sizes that their users request."""
        room = None
        for job in running:
            if wants_other_size(job) and (ask := ask_of(job, self._now)).shapes:
                room = room or Room(self._now, self.grants)
                self.grants[job.id] = resized(ask, self.grants[job.id], room)

    def _shared(self) -> bool:
        """Return whether jobs may share a node."""
        sizes = [job.sizes[0] for job in self.waiting]
        sizes += [int(_held(each.alloc, self._ground)[1].min()) for each in self.grants.values()]
        widest = int(self._ground.gpus.max(initial=0))
        return 2 * min(sizes, default=widest) <= widest

    def _free_now(self) -> Ints:
        if self._nodes:
            return self._free
        ground = self._ground
        untouched = ground.group[self._free == ground.gpus]
        return np.bincount(untouched, minlength=len(ground.first)).astype(np.int64)

    def _releases(self, running: Sequence[Job]) -> Changes:
        """Return what the jobs that run set free, by their statements."""
        now_s = self.now_s
        soon_s = math.nextafter(now_s, math.inf)
        times, columns, units = [np.zeros(0)], [_NONE], [_NONE]
        held = _held if self._nodes else _groups
        for job in running:
            began_s = job.since_s if job.state.active else now_s
            if (end_s := began_s + lasts_s(job)) < math.inf:
                where, count = held(self.grants[job.id].alloc, self._ground)
                times.append(np.full(len(where), max(end_s, soon_s)))
                columns.append(where)
                units.append(count)
        return Changes(np.concatenate(times), np.concatenate(columns), np.concatenate(units))

    def _ask(self, job: Job) -> Candidate:
        if job.id not in self._asks:
            self._asks[job.id] = ask_of(job, self._now)
        return self._asks[job.id]

    def _wanted(self, job: Job) -> Wanted | None:
        ask = self._ask(job)
        if not ask.shapes:
            return None
        gpus, nodes = shape_of(ask)
        if gpus not in self._columns:
            self._columns[gpus] = list(self._wide_enough(gpus))
        avoids = self._failed(job) if self._nodes else ()
        return Wanted(nodes, gpus, self._columns[gpus], avoids)

    def _failed(self, job: Job) -> list[int]:
        return [self._ground.place[name] for name in job.failed_on if name in self._ground.place]

    def _wide_enough(self, gpus: int) -> Iterable[Ints]:
        """Yield for each kind the columns whose nodes have so many GPUs."""
        ground = self._ground
        widths, kinds = ground.gpus, ground.kind
        if not self._nodes:
            widths, kinds = widths[ground.first], kinds[ground.first]
        for kind in np.unique(kinds):
            columns = np.flatnonzero((kinds == kind) & (widths >= gpus))
            if len(columns):
                yield columns

    def _alloc(self, job: Job, slot: Slot) -> Alloc:
        """Return the nodes of a slot that begins now; those where it has failed come last."""
        ground, (gpus, _) = self._ground, shape_of(self._ask(job))
        if self._nodes:
            return {ground.names[place]: gpus for place in slot.columns.tolist()}
        failed = self._failed(job)
        chosen: list[int] = []
        for group, count in zip(slot.columns.tolist(), slot.units.tolist(), strict=True):
            free = np.flatnonzero((ground.group == group) & (self._free == ground.gpus))
            if failed:
                free = free[np.argsort(np.isin(free, failed), kind="stable")]
            chosen += free[:count].tolist()
        return {ground.names[place]: gpus for place in sorted(chosen)}


_NONE: NDArray[np.int64] = np.zeros(0, dtype=np.int64)


def lasts_s(job: Job) -> float:
    """Return the longest time that a job states; infinite if it states none."""
    return math.inf if job.walltime_s is None else job.walltime_s
