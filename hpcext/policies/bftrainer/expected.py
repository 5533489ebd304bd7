"""The expected work of jobs on nodes that leave.

It is ``sum over pieces of time: speed(GPUs still there) x P(no stall for a lost node) x seconds
after the stall for a change``. That is Eq. 16 of BFTrainer, a gain less a cost, for nodes that do
not stay equally long. Further ahead only the cost of stalls counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcext.core.values import Alloc, Snapshot
from hpcext.policies.bftrainer import Objective, changes_s
from hpcext.policies.bftrainer.holes import Floats, Horizon, Ints, holes
from hpcext.policies.bftrainer.pool import Pool, PoolPart, run_of
from hpcext.policies.common import fixed
from hpcext.policies.placement.candidates import Candidate
from hpcext.policies.solve.tables import ValueTable

ENOUGH = 0.5
"""Share of the time after a change for which a free GPU must stay to lower the price: many GPUs
that leave at once would otherwise make GPUs seem plentiful."""


class Holding(NamedTuple):
    """The GPUs that a job will have.

    Attributes
    ----------
    classes : Mapping[int, int]
        Number of GPUs by class of nodes.
    gpus : int
        Number of all these. If it is not a size of the job, the job uses the next smaller size.
    part : PoolPart
    value : float
    changed : bool
        Whether some are new, so that the job stalls anyway.
    """

    classes: Mapping[int, int]
    gpus: int
    part: PoolPart
    value: float
    changed: bool = False


class Demand(NamedTuple):
    """The number of further GPUs that a job wants at some price.

    Attributes
    ----------
    surplus : float
        Gain in value with these, less their price.
    more : int
    value : float
        Value with these.
    part : PoolPart
        The GPUs that it has then, over time.
    """

    surplus: float
    more: int
    value: float
    part: PoolPart


class Curves:
    """The speed of each job by its GPUs, interpolated linearly between its sizes.

    Attributes
    ----------
    sizes, values, job : array, shape (m,)
        All sizes of all jobs, 0 first, one job after the other.
    starts : array of int, shape (j + 1,)
    most : array of int, shape (j,)
        Largest size of each job.
    """

    def __init__(self, sizes: Sequence[Ints], values: Sequence[Floats]) -> None:
        self.each = sizes
        self.sizes = np.concatenate(sizes)
        self.starts = np.cumsum([0, *map(len, sizes)])
        self.job = np.repeat(np.arange(len(sizes)), np.diff(self.starts))
        self.most = self.sizes[self.starts[1:] - 1]
        self.values = values
        # The curves lie end to end, so that one call looks up all of them.
        self._gap = float(self.most.max() + 1)
        self._at = self.sizes + self._gap * self.job
        self._flat = np.concatenate(values)
        self._rising = np.concatenate([np.maximum.accumulate(each) for each in values])

    def rates(self, job: Ints, alive: Floats) -> Floats:
        """Return the speeds of several jobs, shape (n,), on GPUs of shape (k, n).

        Parameters
        ----------
        job : array of int, shape (n,)
            Indices of jobs.
        alive : array of float, shape (k, n)
            GPUs of each, for each piece of time.
        """
        return self._looked_up(job, alive, self._flat)

    def rising(self, job: Ints, alive: Floats) -> Floats:
        """Return these speeds, made non-decreasing in the number of GPUs."""
        return self._looked_up(job, alive, self._rising)

    def _looked_up(self, job: Ints, alive: Floats, values: Floats) -> Floats:
        within = np.minimum(alive, self.most[job]) + self._gap * job
        return np.asarray(np.interp(within, self._at, values))

    def below(self, gpus: Ints) -> Ints:
        """Return the index of each job's largest size of at most `gpus`."""
        fits = self.sizes <= gpus[self.job]
        return self.starts[:-1] + np.add.reduceat(fits.astype(np.int64), self.starts[:-1]) - 1

    def of(self, job: int, alive: Floats) -> Floats:
        """Return the speeds of one job on GPUs of any shape.

        Parameters
        ----------
        job : int
            Index of the job.
        alive : array of float
            GPUs of the job.
        """
        return np.asarray(np.interp(alive, self.each[job], self.values[job]))


class Expected:
    """The expected values of jobs on their present nodes and on others.

    Parameters
    ----------
    now : Snapshot
        Its jobs are the candidates, and those that keep what they have.
    asks : sequence of Candidate
    objective : Objective
    forward_s : float
        Seconds of work that count beyond the most costly change.

    Attributes
    ----------
    asks : sequence of Candidate
    has : array of int, shape (j,)
        GPUs of each job.
    own : sequence of Mapping[int, int]
        GPUs of each job by class, the longest-lasting first.
    free : array of int, shape (c,)
        Free GPUs of each class.
    lasting : array of int, shape (c,)
        Free GPUs of each class that stay long enough to lower the price of a GPU.
    order : array of int, shape (c,)
        Classes by their value, in descending order.
    """

    def __init__(
        self, now: Snapshot, asks: Sequence[Candidate], objective: Objective, forward_s: float
    ) -> None:
        self.asks = asks
        jobs = [ask.job for ask in asks]
        self.up_s, self.down_s = np.array([changes_s(job) for job in jobs]).T
        span = Horizon.of(forward_s + float(max(self.up_s.max(), self.down_s.max())))
        kind = next(iter(now.nodes.values())).kind
        values = [ask.job.weight * objective(ask.job, ask.sizes, kind) for ask in asks]
        self.curves = Curves([ask.sizes.gpus for ask in asks], values)
        self.holes = holes(now.nodes, now.fragments, now.now_s, span, float(self.down_s.mean()))
        degraded = np.array([job.run.degraded for job in jobs])
        self._same_s = np.where(degraded, self.down_s, 0.0)
        self._span = span
        self._seconds = span.after(0.0)
        stays = self.holes.stays @ (self._seconds * (1.0 - span.beyond))
        stalls = 1.0 - np.exp(self.holes.calm)
        # Of the classes that stay for all of the near time, those without a stall soon come first.
        self._lasts = stays - stalls @ (self._seconds * span.beyond)
        self.own = [self.classes(job.goal or {}) for job in jobs]
        self.has = np.array([sum(each.values()) for each in self.own])
        self._rows, self._begins = self._held()
        self.free = self._left(now)
        after = span.after(float(self.up_s.mean())) * (1.0 - span.beyond)
        self.lasting = np.where(self.holes.stays @ after < ENOUGH * after.sum(), 0, self.free)
        self.order = self._ranked(stays, stalls @ self._seconds)
        self._after_up = span.after(self.up_s)

    def classes(self, alloc: Alloc) -> dict[int, int]:
        """Return the number of GPUs by class, the longest-lasting first."""
        found: dict[int, int] = {}
        for node, gpus in alloc.items():
            at = self.holes.of[node]
            found[at] = found.get(at, 0) + gpus
        return dict(sorted(found.items(), key=lambda each: (-self._lasts[each[0]], each[0])))

    def of(self, job: int, alloc: Alloc) -> float:
        """Return the value of an allocation to a job.

        Parameters
        ----------
        job : int
            Index of the job.
        alloc : Alloc
            GPUs by node.
        """
        before = self.asks[job].job.goal or {}
        classes = self.classes(alloc)
        which = np.fromiter(classes, dtype=np.int64, count=len(classes))
        counts = np.fromiter(classes.values(), dtype=np.float64, count=len(classes))
        alive, calm = counts @ self.holes.stays[which], self.holes.calm[which].sum(axis=0)
        stall_s = self._same_s[job]
        if alloc != before:
            less = all(gpus <= before.get(node, 0) for node, gpus in alloc.items())
            stall_s = self.down_s[job] if less else self.up_s[job]
        return float(self._span.after(stall_s) @ self._working(self.curves.of(job, alive), calm))

    def _left(self, now: Snapshot) -> Ints:
        free = {name: node.gpus for name, node in now.nodes.items()}
        asking = {ask.job.id for ask in self.asks}
        for job in now.jobs:
            # A job that no longer fits anywhere keeps nothing.
            if job.goal and job.ready and (job.id in asking or fixed(job)):
                for node, gpus in job.goal.items():
                    free[node] -= gpus
        self.there = free
        found = np.zeros(len(self.holes.stays), dtype=np.int64)
        of = self.holes.of
        for node, gpus in free.items():
            found[of[node]] += gpus
        return found

    def _ranked(self, stays: Floats, stalled: Floats) -> Ints:
        """Rank classes by the value of one of their GPUs, in descending order.

        The value grows with the time that it stays, and with the number of GPUs that share the cost
        of the stall when the class leaves.
        """
        usual = max(1.0, (self.has.sum() + self.free.sum()) / len(self.has))
        of_each = stays - stalled * usual / np.clip(self.free, 1.0, usual)
        return np.argsort(-of_each, kind="stable")

    def parts(self, kept: Ints) -> PoolPart:
        """Return the first `kept` GPUs of each job, shape (k, j)."""
        alive, calm = self._rows
        ends = self._begins + kept
        return PoolPart(
            alive[:, ends] - alive[:, self._begins], calm[:, ends] - calm[:, self._begins]
        )

    def values(self, free: Ints) -> Floats:
        """Return the value of each size of each job, shape (m,).

        A job has the best of its own GPUs, then `free` ones of each class, then GPUs like the
        average one that jobs have.
        """
        curves, has = self.curves, self.has[self.curves.job]
        kept = np.minimum(curves.sizes, has)
        others = curves.sizes - kept
        run = run_of(self.holes, self.order, free[self.order], int(others.max(initial=0)))
        new = np.minimum(others, run.alive.shape[1] - 1)
        begins = self._begins[curves.job]
        usual = self._rows.alive[:, -1] / max(1, int(self.has.sum()))
        alive = self._rows.alive[:, begins + kept] - self._rows.alive[:, begins]
        alive += run.alive[:, new] + usual[:, None] * (others - new)
        calm = self._rows.calm[:, begins + kept] - self._rows.calm[:, begins] + run.calm[:, new]
        stall_s = np.where(curves.sizes < has, self.down_s[curves.job], self.up_s[curves.job])
        stall_s = np.where(curves.sizes == has, self._same_s[curves.job], stall_s)
        return self._summed(self._working(curves.rates(curves.job, alive), calm), stall_s)

    def tables(self, values: Floats) -> list[ValueTable]:
        """Return a table for each job."""
        bounds = itertools.pairwise(self.curves.starts.tolist())
        return [
            ValueTable(sizes, values[begin:end])
            for sizes, (begin, end) in zip(self.curves.each, bounds, strict=True)
        ]

    def bounds(self, values: Floats) -> Floats:
        """Return upper bounds on the values of all sizes, shape (m,).

        They assume the best of all nodes in each piece of time and no stall but that of the change,
        or the present allocation.
        """
        curves, has = self.curves, self.has[self.curves.job]
        counts = self.free.copy()
        for classes in self.own:
            for at, gpus in classes.items():
                counts[at] += gpus
        most = int(curves.most.max())
        alive = np.zeros((len(self._seconds), most + 1))
        for piece, stays in enumerate(self.holes.stays.T):
            rank = np.argsort(-stays)
            row = np.cumsum(np.repeat(stays[rank], counts[rank])[:most])
            alive[piece, 1 : len(row) + 1] = row
            alive[piece, len(row) + 1 :] = row[-1] if len(row) else 0.0
        up_s, down_s = self.up_s[curves.job], self.down_s[curves.job]
        stall_s = np.where(curves.sizes < has, np.minimum(up_s, down_s), up_s)
        rates = curves.rising(curves.job, alive[:, curves.sizes])
        most_ = self._summed(rates * (1.0 - self._span.beyond[:, None]), stall_s)
        same = curves.sizes == has
        most_[same] = np.maximum(most_[same], values[same])
        return most_

    def upper_gains(self, has: Sequence[Holding], pool: Pool, price: float, limits: Ints) -> Floats:
        """Return the gain of each job by some free GPUs, less their price.

        Parameters
        ----------
        has : sequence of Holding
        pool : Pool
        price : float
            Price of a GPU.
        limits : array of int, shape (j,)
            Largest number of GPUs of each job in all.

        Returns
        -------
        array of float, shape (j,)
            -inf for jobs that can have no more. For jobs that have GPUs of a class with free ones
            it is an upper bound, as if these caused no further stall; :meth:`answer` is exact.
        """
        curves = self.curves
        gpus = np.array([each.gpus for each in has])
        more = curves.sizes - gpus[curves.job]
        fits = (more > 0) & (more <= pool.left) & (curves.sizes <= limits[curves.job])
        found = np.full(len(has), -math.inf)
        if not fits.any():
            return found
        job, more = curves.job[fits], more[fits]
        alive, calm = pool.first(more)
        calm[:, np.array([pool.holds(each.classes) for each in has])[job]] = 0.0
        alive += np.array([each.part.alive for each in has]).T[:, job]
        calm += np.array([each.part.calm for each in has]).T[:, job]
        worked = self._working(curves.rates(job, alive), calm)
        gains = np.einsum("km,mk->m", worked, self._after_up[job]) - price * more
        np.maximum.at(found, job, gains)
        return np.asarray(found - [each.value for each in has])

    def answer(self, job: int, has: Holding, pool: Pool, price: float, most: int) -> Demand:
        """Return the number of free GPUs that a job wants in addition to its own.

        Parameters
        ----------
        job : int
        has : Holding
            GPUs of the job, fewer than its largest size.
        pool : Pool
        price : float
            Price of a GPU.
        most : int
            Largest number of GPUs of the job in all.
        """
        more = self.curves.each[job] - has.gpus
        more = more[(more > 0) & (more <= min(most - has.gpus, pool.left))]
        if not len(more):
            return Demand(-math.inf, 0, has.value, has.part)
        alive, calm = pool.first(more, has.classes)
        alive += has.part.alive[:, None]
        calm += has.part.calm[:, None]
        values = self._after_up[job] @ self._working(self.curves.of(job, alive), calm)
        gains = values - price * more
        at = int(gains.argmax())
        part = PoolPart(alive[:, at], calm[:, at])
        return Demand(float(gains[at]) - has.value, int(more[at]), float(values[at]), part)

    def _held(self) -> tuple[PoolPart, Ints]:
        """Return the GPUs of all jobs, one job after the other, and where those of each begin."""
        rank = np.array([at for each in self.own for at in each], dtype=np.int64)
        counts = np.array([gpus for each in self.own for gpus in each.values()], dtype=np.int64)
        rows = run_of(self.holes, rank, counts, int(counts.sum()))
        return rows, np.cumsum(self.has) - self.has

    def _working(self, rates: Floats, calm: Floats) -> Floats:
        """Return the speed in each near piece of time; later, the loss of speed by stalls."""
        beyond = self._span.beyond.reshape(-1, *(1,) * (calm.ndim - 1))
        return np.asarray(rates * (np.exp(calm) - beyond))

    def _summed(self, rates: Floats, stall_s: Floats) -> Floats:
        return np.asarray(np.einsum("km,mk->m", rates, self._span.after(stall_s)))
