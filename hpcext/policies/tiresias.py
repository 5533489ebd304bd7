"""Tiresias: least attained service first, in a few queues (Gu et al., NSDI 2019, section 3.2).

The service of a job is the number of GPUs that it held times the time for which it held them, so no
estimate of its length is needed. A job begins in the first queue and sinks to the next one when its
service passes a threshold. Within a queue jobs are ordered by their entry into it, and jobs of
later queues are suspended when those of an earlier one need their GPUs. The promotion of jobs that
have waited for long is left out, as in Pollux's evaluation (section 5.1 there), whose threshold is
the default: 16 GPU-hours.

A job gets the number of GPUs that its user requests: its best size, on its fewest nodes, packed on
as few nodes as possible. If a job states no nodes (:class:`~hpcext.core.values.Job`), its GPUs may
be spread in any way.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from hpcext.core.reconcile import fits
from hpcext.core.values import Alloc, Grant, Job, Role, Snapshot, Target, total
from hpcext.policies.common import (
    AS_ASKED,
    ONE_NODE,
    avoided,
    fixed,
    free_beside,
    keep,
    kinds_of,
    largest,
    named,
    no_room,
    take,
)
from hpcext.policies.total_time import Interval


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    interval_s : float
        Seconds between two checks of the thresholds.
    thresholds : str
        GPU-seconds at which a job leaves each queue but the last, ascending: ``57600``, or
        ``3600/57600`` for three queues.
    """

    interval_s: Interval = 60.0
    thresholds: Annotated[str, msgspec.Meta(max_length=200)] = "57600"

    def __post_init__(self) -> None:
        limits = self.limits()
        rises = all(low < high for low, high in zip((0.0, *limits), limits, strict=False))
        if not rises or not limits[-1] < float("inf"):
            raise ValueError("expected ascending GPU-seconds, such as 57600 or 3600/57600")

    def limits(self) -> tuple[float, ...]:
        """Return the thresholds as numbers, in GPU-seconds."""
        try:
            return tuple(map(float, self.thresholds.split("/")))
        except ValueError:
            return (0.0,)


class _Memo(NamedTuple):
    """The state that is kept between decisions.

    Attributes
    ----------
    at_s : float
        Time of the last decision.
    held : Mapping[str, int]
        GPUs that each job held then.
    service : dict of str to float
        GPU-seconds that each job has had.
    queues : list of list of str
        The jobs of each queue but the first, in the order in which they came into it.
    """

    at_s: float
    held: Mapping[str, int]
    service: dict[str, float]
    queues: list[list[str]]

    @classmethod
    def of(cls, memo: Mapping[str, Any] | None, now_s: float, queues: int) -> _Memo:
        """Read the memo from JSON; begin with an empty one if another policy left it.

        Parameters
        ----------
        memo : Mapping or None
        now_s : float
        queues : int
            Number of queues but the first.
        """
        known = memo or {}
        lower = known.get("queues")
        if not isinstance(lower, list) or "service" not in known:
            return cls(now_s, {}, {}, [[] for _ in range(queues)])
        # With fewer queues than before, jobs of the removed ones go to the last.
        kept = [list(each) for each in lower[:queues]] + [[] for _ in range(queues - len(lower))]
        for each in lower[queues:]:
            kept[-1].extend(each)
        return cls(known["at_s"], known["held"], dict(known["service"]), kept)


def allocate(now: Snapshot, options: Options) -> Target:
    """Give GPUs to jobs in the order of the queues."""
    limits = options.limits()
    memo = _accounted(_Memo.of(now.memo, now.now_s, len(limits)), now)
    _demote(memo, now.jobs, limits)
    order = _order(now.jobs, memo.queues)
    grants, waits = _served(now, order)
    wake_s = now.now_s + options.interval_s if grants else None
    return Target(grants, waits, wake_s=wake_s, memo=memo._asdict())


def _accounted(memo: _Memo, now: Snapshot) -> _Memo:
    """Charge jobs for what they held since the last decision; forget jobs that are gone."""
    passed_s = max(0.0, now.now_s - memo.at_s)
    service = {}
    for job in now.jobs:
        gpus = total(job.held) or memo.held.get(job.id, 0)
        service[job.id] = memo.service.get(job.id, 0.0) + gpus * passed_s
    held = {job.id: total(job.held) for job in now.jobs if job.held}
    queues = [[job for job in queue if job in service] for queue in memo.queues]
    return _Memo(now.now_s, held, service, queues)


def _demote(memo: _Memo, jobs: Sequence[Job], limits: Sequence[float]) -> None:
    """Move jobs down to the queue of their service; never up again."""
    where = {job: depth for depth, queue in enumerate(memo.queues, 1) for job in queue}
    for job in jobs:
        depth = sum(memo.service[job.id] >= limit for limit in limits)
        before = where.get(job.id, 0)
        if depth > before:
            if before:
                memo.queues[before - 1].remove(job.id)
            memo.queues[depth - 1].append(job.id)


def _order(jobs: Sequence[Job], queues: Sequence[Sequence[str]]) -> list[Job]:
    """Order jobs by priority, then by queue, then by their entry into the queue."""
    place = {
        job: (depth, at) for depth, each in enumerate(queues, 1) for at, job in enumerate(each)
    }
    first = {job.id: (0, at) for at, job in enumerate(jobs)}
    return sorted(jobs, key=lambda job: (-job.priority, place.get(job.id, first[job.id])))


def _served(now: Snapshot, order: Sequence[Job]) -> tuple[dict[str, Grant], dict[str, str]]:
    """Return the grants of jobs, and why others wait.

    Counts decide which jobs run: the first ones that fit together. The rest is given to any job
    that fits.
    """
    kept = keep(now)
    grants = {job.id: kept[job.id] for job in now.jobs if job.id in kept and fixed(job)}
    free = free_beside(now, grants)
    rest = [job for job in order if job.ready and job.id not in grants]
    sizes = {job.id: _size(job, now) for job in rest}
    left = sum(free.values())
    runs: list[Job] = []
    for job in rest:
        if 0 < sizes[job.id] <= left:
            left -= sizes[job.id]
            runs.append(job)
    chosen = {job.id for job in runs}
    others = [job for job in rest if job.id not in chosen and sizes[job.id]]
    given = _together(runs, sizes, free, now)
    for alloc in given.values():
        take(free, alloc)
    given |= _on_nodes(others, 0, sizes, free, now)
    grants |= {job.id: _granted(job, given[job.id]) for job in rest if job.id in given}
    waits = {
        job.id: f"waits for {named(sizes[job.id])}" if sizes[job.id] else no_room(job)
        for job in rest
        if job.id not in grants
    }
    return grants, waits


def _together(
    runs: Sequence[Job], sizes: Mapping[str, int], free: Mapping[str, int], now: Snapshot
) -> dict[str, Alloc]:
    """Return the nodes of jobs of which there are enough GPUs for all.

    All running jobs keep their nodes, and the others are given what is left; but where GPUs that
    are left on many nodes do not help the first of those, jobs behind it make room.
    """
    given = _on_nodes(runs, len(runs), sizes, free, now)
    for number, job in enumerate(runs):
        if job.id not in given:
            instead = _on_nodes(runs, number, sizes, free, now)
            before = (each.id for each in runs[:number] if each.id in given)
            if job.id in instead and all(each in instead for each in before):
                return instead
    return given


def _on_nodes(
    jobs: Sequence[Job],
    keep: int,
    sizes: Mapping[str, int],
    free: Mapping[str, int],
    now: Snapshot,
) -> dict[str, Alloc]:
    """Return the nodes of jobs that are placed in order, after so many first ones keep theirs."""
    free = dict(free)
    has = {job.id: job.goal for job in jobs if job.goal and total(job.goal) == sizes[job.id]}
    turns = [(job, True) for job in jobs[:keep] if job.id in has]
    turns += [(job, False) for job in jobs]
    given: dict[str, Alloc] = {}
    for job, keeps in turns:
        if job.id in given:
            continue
        alloc = has.get(job.id, {})
        if not alloc or not fits(alloc, free):
            alloc = {} if keeps else _placed(job, sizes[job.id], free, now)
        if alloc:
            take(free, alloc)
            given[job.id] = alloc
    return given


def _size(job: Job, now: Snapshot) -> int:
    """Return the GPUs that a job's user requests; 0 if they fit nowhere."""
    every = sum(node.gpus for node in now.nodes.values())
    if job.nodes is None:
        return largest(job, min(job.optimal, every))
    fewest, _ = job.nodes or ONE_NODE
    for kind in kinds_of(now):
        widths = sorted((n.gpus for n in now.nodes.values() if n.kind == kind), reverse=True)
        if len(widths) >= fewest and (size := largest(job, min(job.optimal, widths[fewest - 1]))):
            return size * fewest
    return 0


def _placed(job: Job, size: int, free: Mapping[str, int], now: Snapshot) -> dict[str, int]:
    """Return `size` free GPUs, all of one kind; empty if there are too few."""
    for left_out, kind in itertools.product(avoided(job), kinds_of(now)):
        ours = (name for name, node in now.nodes.items() if node.kind == kind)
        here = {name: free[name] for name in ours if name not in left_out}
        if job.nodes is None:
            found = _spread(size, here)
        else:
            each = size // job.nodes[0]
            able = sorted((gpus, name) for name, gpus in here.items() if gpus >= each)
            enough = len(able) >= job.nodes[0]
            found = {name: each for _, name in able[: job.nodes[0]]} if enough else {}
        if found:
            return found
    return {}


def _spread(size: int, free: Mapping[str, int]) -> dict[str, int]:
    """Return GPUs on one node if possible, the fullest that has room, else on the emptiest ones."""
    one = min((gpus for gpus in free.values() if gpus >= size), default=0)
    if one:
        return {next(name for name, gpus in free.items() if gpus == one): size}
    found: dict[str, int] = {}
    for name, gpus in sorted(free.items(), key=lambda item: -item[1]):
        taken = min(gpus, size - sum(found.values()))
        if taken:
            found[name] = taken
    return found if sum(found.values()) == size else {}


def _granted(job: Job, alloc: Alloc) -> Grant:
    has = named(total(alloc))
    size = f"{has}, {AS_ASKED}" if job.stated else f"the {has} that it asks for"
    return Grant(alloc, Role.PRIMARY, f"runs on {size}: others have had more GPU time")
