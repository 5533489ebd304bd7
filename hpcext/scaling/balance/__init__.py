"""Batch sizing of LB-BSP (SoCC 2020): divide a step so that all workers finish together.

Every rule is a pure function of what all workers know alike, in plain arithmetic, so that each of
them computes the same sizes without a server. Sums are kept exactly.

:class:`Speeds` is Algorithm 1, for workers whose time is proportional to their samples.
:class:`LeaderStraggler` is Algorithm 2, which has no model of the workers: it moves some samples
at a time from the slowest to the fastest one. Our own rules are :mod:`hpcext.scaling.balance.lines`
and :mod:`hpcext.scaling.balance.best`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Sizes = tuple[int, ...]

FULL = 0.95
"""Share of its memory in use beyond which a worker gets no larger batch (section 3.3.2)."""

STEP, WINDOW = 5, 5
"""Fast approach of Algorithm 2: samples to move, and iterations to consider."""

FINE_STEP, FINE_WINDOW = 1, 20
"""Fine-tuning of Algorithm 2: samples to move, and iterations to consider."""

STRAGGLES = 1.05
"""Factor by which a worker with its fewest samples must be slower than others to be removable."""


class Line(NamedTuple):
    """Seconds of a worker by its number of samples: ``constant_s + per_sample_s * samples``."""

    constant_s: float
    per_sample_s: float

    def at(self, samples: float) -> float:
        """Return the seconds for `samples` samples."""
        return self.constant_s + self.per_sample_s * samples


def even(total: int, workers: int) -> Sizes:
    """Divide a total as evenly as possible, the larger parts first.

    Parameters
    ----------
    total, workers : int
    """
    full, more = divmod(total, workers)
    return tuple(full + (worker < more) for worker in range(workers))


def level(lines: Sequence[Line], total: int, least: Sequence[int], most: Sequence[int]) -> Sizes:
    """Divide a step exactly so that its slowest worker is as fast as possible (eq. 3).

    Parameters
    ----------
    lines : sequence of Line
        Time by batch size of each worker; slopes are positive.
    total : int
        Sum of the sizes.
    least, most : sequence of int
        Bounds on the samples of each worker.

    Returns
    -------
    tuple of int

    Raises
    ------
    ValueError
        The bounds allow no such division.
    """
    if not sum(least) <= total <= sum(most):
        raise ValueError(
            f"{total} samples cannot be divided: the workers take {sum(least)} to {sum(most)}"
        )
    limit_s = _limit_s(lines, total, least, most)
    sizes = [
        min(high, max(low, math.floor((limit_s - line.constant_s) / line.per_sample_s)))
        for line, low, high in zip(lines, least, most, strict=True)
    ]
    _settle(sizes, lines, total, least, most)
    return tuple(sizes)


def _limit_s(lines: Sequence[Line], total: int, least: Sequence[int], most: Sequence[int]) -> float:
    """Return the time when workers would finish all samples if samples were divisible."""
    changes = []
    for line, low, high in zip(lines, least, most, strict=True):
        if low < high:
            changes.append((line.at(low), 1.0 / line.per_sample_s))
            changes.append((line.at(high), -1.0 / line.per_sample_s))
    changes.sort()
    made, rate, now_s = float(sum(least)), 0.0, changes[0][0] if changes else 0.0
    for then_s, change in changes:
        if rate > 0 and made + rate * (then_s - now_s) >= total:
            return now_s + (total - made) / rate
        made += rate * (then_s - now_s)
        rate, now_s = rate + change, then_s
    return now_s


def _settle(
    sizes: list[int], lines: Sequence[Line], total: int, least: Sequence[int], most: Sequence[int]
) -> None:
    """Give remaining samples to the workers that finish them first, or take excess ones back."""
    left = total - sum(sizes)
    if left >= 0:
        heap = [(line.at(sizes[at] + 1), at) for at, line in enumerate(lines)]
        heap = [each for each in heap if sizes[each[1]] < most[each[1]]]
        heapq.heapify(heap)
        for _ in range(left):
            _, at = heap[0]
            sizes[at] += 1
            if sizes[at] < most[at]:
                heapq.heapreplace(heap, (lines[at].at(sizes[at] + 1), at))
            else:
                heapq.heappop(heap)
        return
    for _ in range(-left):
        able = [at for at in range(len(sizes)) if sizes[at] > least[at]]
        sizes[max(able, key=lambda at: lines[at].at(sizes[at]))] -= 1


class IterationRecord(NamedTuple):
    """The facts that all workers know about one iteration.

    Attributes
    ----------
    batches : tuple of int
        Samples of each worker.
    times_s : tuple of float
        Seconds that each worker took, without waiting for others.
    memory : tuple of float
        Share of its memory that each worker has used.
    speeds : tuple of float
        Samples per second that each worker expects of itself in the next iteration.
    """

    batches: Sizes
    times_s: tuple[float, ...]
    memory: tuple[float, ...]
    speeds: tuple[float, ...]


class Rule(Protocol):
    """A rule that chooses the samples of each worker.

    Attributes
    ----------
    sizes : tuple of int
        Samples of each worker in the next iteration.
    """

    sizes: Sizes

    def see(self, seen: IterationRecord) -> Sizes:
        """Process the record of an iteration; return the sizes of the next one."""

    def resize(self, total: int) -> Sizes:
        """Set the number of samples in a step from now on; return the new sizes."""

    def state(self) -> list[Any]:
        """Return the knowledge about each worker, as JSON values."""


class WorkerBounds(NamedTuple):
    """The smallest and largest number of samples of a worker; None: no bound but its memory."""

    least: int = 1
    most: int | None = None

    def fitted(self, total: int, workers: int) -> WorkerBounds:
        """Return these bounds, widened as far as a step of `total` samples needs.

        Parameters
        ----------
        total, workers : int
        """
        least = min(self.least, total // workers)
        most = self.most if self.most is None else max(self.most, -(-total // workers))
        return WorkerBounds(least, most)

    def of(self, sizes: Sizes, total: int, memory: Sequence[float]) -> tuple[list[int], list[int]]:
        """Return the bounds of each worker; a full one gets no more if the others have room.

        Parameters
        ----------
        sizes : tuple of int
            Present samples of each worker.
        total : int
            Samples in a step.
        memory : sequence of float
            Share of its memory that each worker has used.
        """
        top = total if self.most is None else min(self.most, total)
        most = [
            min(size, top) if used > FULL else top for size, used in zip(sizes, memory, strict=True)
        ]
        if sum(most) < total:
            most = [top] * len(sizes)
        return [self.least] * len(sizes), most


FREE = WorkerBounds()
"""The bounds of workers without limits."""


class Speeds:
    """Algorithm 1: sizes in proportion to the speeds expected in the next iteration.

    Parameters
    ----------
    sizes : sequence of int
        Initial sizes.
    bounds : WorkerBounds
    known : sequence
        The :meth:`state` of each worker; None where nothing is known.
    """

    def __init__(
        self, sizes: Sequence[int], bounds: WorkerBounds = FREE, known: Sequence[Any] = ()
    ) -> None:
        self.sizes: Sizes = tuple(sizes)
        self._bounds = bounds
        self._memory: tuple[float, ...] = (0.0,) * len(self.sizes)
        speeds = [float(each) for each in known if each is not None]
        usual = math.fsum(speeds) / len(speeds) if speeds else 1.0
        self._speeds: tuple[float, ...] = tuple(
            usual if each is None else float(each) for each in known
        )
        if speeds:
            self.resize(sum(self.sizes))

    def see(self, seen: IterationRecord) -> Sizes:
        """Process the record of an iteration; return the sizes of the next one."""
        if all(math.isfinite(speed) and speed > 0 for speed in seen.speeds):
            self._speeds, self._memory = seen.speeds, seen.memory
            return self.resize(sum(self.sizes))
        return self.sizes

    def resize(self, total: int) -> Sizes:
        """Set the number of samples in a step from now on; return the new sizes."""
        if not self._speeds:
            self.sizes = even(total, len(self.sizes))
            return self.sizes
        lines = [Line(0.0, 1.0 / speed) for speed in self._speeds]
        self.sizes = level(lines, total, *self._bounds.of(self.sizes, total, self._memory))
        return self.sizes

    def state(self) -> list[Any]:
        """Return the speed of each worker, as JSON values."""
        return list(self._speeds) or [None] * len(self.sizes)


class LeaderStraggler:
    """Algorithm 2 as published, line by line.

    Parameters
    ----------
    sizes : sequence of int
        Initial sizes.
    bounds : WorkerBounds
    known : sequence
        The :meth:`state` of each worker; it is used only if it is known for all.
    step, window : int
        Samples to move, and iterations to consider, in the fast approach.

    Attributes
    ----------
    fine : bool
        Whether it fine-tunes, because a leader was once slower than its straggler.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        bounds: WorkerBounds = FREE,
        known: Sequence[Any] = (),
        *,
        step: int = STEP,
        window: int = WINDOW,
    ) -> None:
        self.sizes: Sizes = tuple(sizes)
        self.fine = False
        self._bounds = bounds
        self._step, self._window = step, window
        self._last: deque[tuple[float, ...]] = deque(maxlen=max(window, FINE_WINDOW))
        # Whether this worker was ever slower than that one: the only history that line 9 needs.
        self._slower = [bytearray(len(self.sizes)) for _ in self.sizes]
        if known and all(known):
            total, self.sizes = sum(self.sizes), tuple(known)
            self.resize(total)

    def see(self, seen: IterationRecord) -> Sizes:
        """Process the record of an iteration; return the sizes of the next one."""
        times = seen.times_s
        self._last.append(times)
        for row, mine in zip(self._slower, times, strict=True):
            for at, other in enumerate(times):
                if mine > other:
                    row[at] = 1
        if seen.batches != self.sizes:
            # The iteration began before the last change of sizes.
            return self.sizes
        top = sum(self.sizes) if self._bounds.most is None else self._bounds.most
        may_lead = [
            at
            for at, used in enumerate(seen.memory)
            if used <= FULL and self.sizes[at] + self._step <= top
        ]
        if not may_lead:
            return self.sizes
        leader = min(may_lead, key=lambda at: times[at])
        straggler = max(range(len(times)), key=lambda at: times[at])
        if self.sizes[straggler] - self._step < self._bounds.least:
            return self.sizes
        recent = list(self._last)[-self._window :]
        if len(recent) == self._window and all(t[leader] < t[straggler] for t in recent):
            sizes = list(self.sizes)
            sizes[leader] += self._step
            sizes[straggler] -= self._step
            self.sizes = tuple(sizes)
        elif self._slower[leader][straggler]:
            self.fine, self._step, self._window = True, FINE_STEP, FINE_WINDOW
        return self.sizes

    def resize(self, total: int) -> Sizes:
        """Set the number of samples in a step, in the present proportions; return the sizes."""
        lines = [Line(0.0, 1.0 / max(1, size)) for size in self.sizes]
        bounds = self._bounds.of(self.sizes, total, [0.0] * len(self.sizes))
        self.sizes = level(lines, total, *bounds)
        self._last.clear()
        return self.sizes

    def state(self) -> list[Any]:
        """Return the size of each worker, as JSON values."""
        return list(self.sizes)


def removable(seen: IterationRecord, bounds: WorkerBounds) -> int | None:
    """Return a worker without which a step would be faster, or None.

    That is the slowest one, if it is by far the slowest although it has its fewest samples.

    Parameters
    ----------
    seen : IterationRecord
    bounds : WorkerBounds
    """
    slowest = max(range(len(seen.times_s)), key=lambda at: seen.times_s[at])
    others = [time_s for at, time_s in enumerate(seen.times_s) if at != slowest]
    at_floor = seen.batches[slowest] <= bounds.least
    if at_floor and others and seen.times_s[slowest] > STRAGGLES * max(others):
        return slowest
    return None
