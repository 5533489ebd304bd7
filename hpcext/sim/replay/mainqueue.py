"""The main queue of a machine, first come, first served with backfill, and the holes in it.

It stands for Slurm or LSF: it makes the nodes that come and go for the harvester, and is not one of
hpcext's policies. EASY backfill (Lifka 1995): the first waiting job has a reservation, the earliest
time at which enough nodes are free if every running job takes as long as it requested. A job behind
it starts now if that does not delay the reservation, because it ends before, or uses nodes that the
first job leaves free. Conservative backfill (Mu'alem and Feitelson 2001): each waiting job has a
reservation, and one behind it starts now only if it delays none of them; what both know of room is
what the policies of these names know (:mod:`~hpcext.policies.placement.availability`).
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.core.errors import InputError
from hpcext.policies.placement.availability import Availability, Changes, Wanted
from hpcext.sim.traces.idle import MOST_NODES, NodeChange
from hpcext.sim.traces.swf import SwfJob

DEPTH = 500
"""Number of waiting jobs to consider for backfill: Slurm's ``bf_max_job_test``, slurm.conf(5)."""

EASY, CONSERVATIVE = "easy", "conservative"
BACKFILLS = (EASY, CONSERVATIVE)

ALL = (np.zeros(1, dtype=np.int64),)
"""The columns that a job may use: the nodes are alike."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Plan = tuple[float | None, tuple[int, ...]]


class Start(NamedTuple):
    """A job that starts.

    Attributes
    ----------
    job : SwfJob
        The job; its submission is relative to that of the first job, as `start_s` is.
    start_s : float
    promised_s : float
        Its reservation: the latest planned start at the time when it became the first waiting job,
        or, under conservative backfill, when it was first considered; infinity if it had none.
    nodes : ndarray of int
        The numbers of its nodes, ascending.
    """

    job: SwfJob
    start_s: float
    promised_s: float
    nodes: Ints


class _Waiting(NamedTuple):
    job: SwfJob
    need: int
    limit_s: float
    order: int


def nodes_of(job: SwfJob, procs_per_node: int) -> int:
    """Return the nodes that a job of a log needs, none of them shared.

    Parameters
    ----------
    job : SwfJob
    procs_per_node : int
        Processors of a node, as the log counts them.
    """
    return -(-job.wanted // procs_per_node)


class MainQueue:
    """A machine of equal nodes and its queue.

    Nodes are allocated by their number, the lowest idle ones first.

    Parameters
    ----------
    nodes : int
    procs_per_node : int
        Processors of a node; a job gets as many nodes as its processors fill. Nodes are not shared.
    depth : int
        Largest number of jobs behind the first one to try for backfill each time; 0: none.
    backfill : {"easy", "conservative"}
    observe : callable, optional
        Called with every job that starts.

    Attributes
    ----------
    jobs, skipped : int
        Jobs that were submitted, and jobs that were left out because the log does not state how
        long or on how many processors they ran, or that they ran at all.
    too_large, most_needed : int
        Jobs that were left out because they need more nodes than the machine has, and the largest
        number needed.
    waited_s : float
        Sum of the waits of the jobs that started, in seconds.
    started : int
    node_s : float
        Node-seconds of the jobs that started.
    most_waiting : int
    """

    def __init__(
        self,
        nodes: int,
        *,
        procs_per_node: int = 1,
        depth: int = DEPTH,
        backfill: str = EASY,
        observe: Callable[[Start], None] | None = None,
    ) -> None:
        if not 1 <= nodes <= MOST_NODES:
            raise InputError(f"{nodes} nodes", valid=f"1 to {MOST_NODES}")
        if procs_per_node < 1 or depth < 0:
            raise InputError(
                f"{procs_per_node} processors per node, depth {depth}",
                valid="at least 1 processor and depth 0",
            )
        if backfill not in BACKFILLS:
            raise InputError(f"backfill {backfill!r}", valid=", ".join(BACKFILLS))
        self.nodes, self.procs_per_node, self.depth = nodes, procs_per_node, depth
        self._schedule = self._easily if backfill == EASY else self._conservatively
        self._observe = observe
        self.jobs = self.skipped = self.started = self.most_waiting = 0
        self.too_large = self.most_needed = 0
        self.waited_s = self.node_s = 0.0
        self._idle = np.ones(nodes, dtype=np.bool_)
        self._free = nodes
        # Candidates to start now (the first job and `depth` more), then the rest of the queue.
        self._near: list[_Waiting] = []
        self._far: deque[_Waiting] = deque()
        # Running jobs: (end, order, limit, nodes), a heap; and (limit, order, nodes), sorted.
        self._ends: list[tuple[float, int, float, Ints]] = []
        self._limits: list[tuple[float, int, Ints]] = []
        # The first waiting job, its first reservation, its present one, and the nodes left beside
        # it.
        self._first: _Waiting | None = None
        self._promised_s = self._shadow_s = math.inf
        self._spare = 0
        # Of a conservative queue, by order: the first reservation of each candidate, and the last.
        self._promises: dict[int, tuple[float, float]] = {}

    def changes(
        self, jobs: Iterable[SwfJob], *, planned: bool = False, drain: bool = False
    ) -> Iterator[NodeChange]:
        """Run jobs, and yield the changes of the idle nodes.

        Parameters
        ----------
        jobs : iterable of SwfJob
            Jobs in the order of their submission; that of the first is 0 s.
        planned : bool
            Whether to include the plan for the first waiting job. A change of only the plan is then
            yielded without nodes.
        drain : bool
            Whether to go on until the last job has ended. By default the last submission is the
            end, because later nodes are idle only for the end of the log.

        Yields
        ------
        NodeChange
        """
        arrivals = self._arrivals(jobs)
        arrival = next(arrivals, None)
        before = np.zeros(self.nodes, dtype=np.bool_)
        plan: _Plan = (None, ())
        now_s = told_s = 0.0
        while arrival is not None or (drain and self._ends):
            now_s = arrival.job.submit_s if arrival else math.inf
            now_s = min(now_s, self._ends[0][0]) if self._ends else now_s
            # If no job has ended, jobs that could not start before cannot start now.
            known = 0 if self._end(now_s) else len(self._near)
            while arrival is not None and arrival.job.submit_s <= now_s:
                self._submit(arrival)
                arrival = next(arrivals, None)
            self._schedule(now_s, known)
            new = self._planned() if planned else plan
            if new != plan or not np.array_equal(before, self._idle):
                yield _change(now_s, before, self._idle, new)
                before, plan, told_s = self._idle.copy(), new, now_s
        if now_s > told_s:
            yield NodeChange(now_s, (), (), *plan)

    def _arrivals(self, jobs: Iterable[SwfJob]) -> Iterator[_Waiting]:
        first_s: float | None = None
        for job in jobs:
            first_s = job.submit_s if first_s is None else first_s
            self.jobs += 1
            if job.run_s <= 0 or job.wanted <= 0:
                self.skipped += 1
                continue
            need = nodes_of(job, self.procs_per_node)
            if need > self.nodes:
                self.too_large += 1
                self.most_needed = max(self.most_needed, need)
                continue
            # A job that ran longer than requested got more time; the log does not say when.
            limit_s = max(job.walltime_s, job.run_s)
            job = job._replace(submit_s=job.submit_s - first_s)  # noqa: PLW2901
            yield _Waiting(job, need, limit_s, self.jobs)

    def _submit(self, waiting: _Waiting) -> None:
        if self._far or len(self._near) > self.depth:
            self._far.append(waiting)
        else:
            self._near.append(waiting)
        self.most_waiting = max(self.most_waiting, len(self._near) + len(self._far))

    def _end(self, now_s: float) -> bool:
        """Free the nodes of the jobs that end now; return whether any does."""
        some = False
        while self._ends and self._ends[0][0] <= now_s:
            _, order, limit_s, nodes = heapq.heappop(self._ends)
            del self._limits[bisect.bisect_left(self._limits, (limit_s, order))]
            self._idle[nodes] = True
            self._free += len(nodes)
            some = True
        return some

    def _easily(self, now_s: float, known: int) -> None:
        """Start jobs that may start; the first `known` candidates are known not to."""
        near = self._near
        while near and near[0].need <= self._free:
            known = 0
            waiting = near.pop(0)
            self._fill()
            self._start(waiting, now_s, self._promised_s if waiting is self._first else math.inf)
        if not near:
            self._first = None
            return
        if not known or near[0] is not self._first:
            self._reserve(near[0])
            known = 1
        self._backfill(now_s, known)

    def _conservatively(self, now_s: float, known: int) -> None:
        """Start jobs whose time has come, and reserve for all other candidates.

        Where jobs have ended, reservations move forward in their order; else they stay.
        """
        near, stays = self._near, known > 0
        room = Availability(now_s, np.array([self._free]), self._releases())
        none = (math.inf, math.inf)
        coming = deque(sorted(near, key=lambda each: self._promises.get(each.order, none)[1]))
        while coming:
            waiting = coming.popleft()
            job, need, limit_s, order = waiting
            first_s, last_s = self._promises.get(order, none)
            wanted = Wanted(need, 1, ALL)
            slot = room.at(last_s, wanted, limit_s) if stays and last_s < math.inf else None
            slot = slot or room.earliest(wanted, limit_s)
            if slot is None:
                raise AssertionError(f"job {job.number} never starts, though all state their ends")
            room.take(slot, limit_s)
            if slot.start_s > now_s:
                self._promises[order] = (min(first_s, slot.start_s), slot.start_s)
                continue
            near.remove(waiting)
            self._promises.pop(order, None)
            if self._far:
                coming.append(self._far[0])
            self._fill()
            self._start(waiting, now_s, first_s)
        self._first = near[0] if near else None
        self._shadow_s = self._promises[near[0].order][1] if near else math.inf

    def _releases(self) -> Changes:
        """Return what running jobs set free at the latest."""
        times = np.array([limit_s for limit_s, _, _ in self._limits])
        units = np.array([len(nodes) for _, _, nodes in self._limits], dtype=np.int64)
        return Changes(times, np.zeros_like(units), units)

    def _reserve(self, first: _Waiting) -> None:
        """Compute the latest start of the first waiting job, and the nodes left beside it then."""
        free, shadow_s = self._free, math.inf
        for limit_s, _, nodes in self._limits:
            if free >= first.need and limit_s > shadow_s:
                break
            free += len(nodes)
            shadow_s = limit_s
        self._shadow_s, self._spare = shadow_s, free - first.need
        if first is not self._first:
            self._first, self._promised_s = first, shadow_s

    def _backfill(self, now_s: float, at: int) -> None:
        """Start candidates from index `at` on that do not delay the first job."""
        near = self._near
        while self._free:
            at = self._fitting(now_s, at)
            if at == len(near):
                return
            waiting = near.pop(at)
            if now_s + waiting.limit_s > self._shadow_s:
                self._spare -= waiting.need
            self._fill()
            self._start(waiting, now_s, math.inf)

    def _fitting(self, now_s: float, at: int) -> int:
        """Return the index of the next candidate, from `at` on, that may start."""
        free, shadow_s, spare = self._free, self._shadow_s, self._spare
        for place in range(at, len(self._near)):
            _, need, limit_s, _ = self._near[place]
            if need <= free and (need <= spare or now_s + limit_s <= shadow_s):
                return place
        return len(self._near)

    def _fill(self) -> None:
        """Move one more job to the candidates."""
        if self._far:
            self._near.append(self._far.popleft())

    def _start(self, waiting: _Waiting, now_s: float, promised_s: float) -> None:
        job, need, limit_s, _ = waiting
        nodes = np.flatnonzero(self._idle)[:need]
        self._idle[nodes] = False
        self._free -= need
        # With an order number, sorting by time never compares nodes at equal times.
        order = self.started
        heapq.heappush(self._ends, (now_s + job.run_s, order, now_s + limit_s, nodes))
        bisect.insort(self._limits, (now_s + limit_s, order, nodes))
        self.started += 1
        self.waited_s += now_s - job.submit_s
        self.node_s += need * job.run_s
        if self._observe:
            self._observe(Start(job, now_s, promised_s, nodes))

    def _planned(self) -> _Plan:
        """Return the planned start of the first waiting job, and the idle nodes it will use."""
        if self._first is None:
            return None, ()
        will = self._idle.copy()
        for limit_s, _, nodes in self._limits:
            if limit_s > self._shadow_s:
                break
            will[nodes] = True
        chosen = np.flatnonzero(will)[: self._first.need]
        return self._shadow_s, tuple(chosen[self._idle[chosen]].tolist())


def _change(now_s: float, before: Bools, after: Bools, plan: _Plan) -> NodeChange:
    joined, left = np.flatnonzero(after & ~before), np.flatnonzero(before & ~after)
    return NodeChange(now_s, tuple(joined.tolist()), tuple(left.tolist()), *plan)
