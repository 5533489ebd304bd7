"""Batch sizing of LB-BSP (SoCC 2020): the samples of a step, so that all workers finish together.

Every rule here is a pure function of what all workers were told alike, in plain arithmetic: each of
them computes the same sizes, without a server. Sums are kept exactly.

:class:`Speeds` is Algorithm 1, for workers whose time is proportional to their samples.
:class:`LeaderStraggler` is Algorithm 2, which knows nothing of the workers: some samples at a time
go from the slowest to the fastest one. A third rule is :mod:`hpcext.scaling.balance_lines`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Sizes = tuple[int, ...]

FULL = 0.95
"""A worker that has used so much of its memory gets no larger batch (section 3.3.2)."""

STEP, WINDOW = 5, 5
"""Algorithm 2, fast approach: samples that are moved, and iterations that are looked at."""

FINE_STEP, FINE_WINDOW = 1, 20
"""Algorithm 2, fine-tune."""

STRAGGLES = 1.05
"""A worker with its fewest samples is in the way if it takes so many times as long as others."""


class Line(NamedTuple):
    """Seconds of a worker by its samples: ``constant_s + per_sample_s * samples``."""

    constant_s: float
    per_sample_s: float

    def at(self, samples: float) -> float:
        """Seconds for so many samples."""
        return self.constant_s + self.per_sample_s * samples


def even(total: int, workers: int) -> Sizes:
    """As even as can be, the larger ones first."""
    full, more = divmod(total, workers)
    return tuple(full + (worker < more) for worker in range(workers))


def level(lines: Sequence[Line], total: int, least: Sequence[int], most: Sequence[int]) -> Sizes:
    """The division of a step whose slowest worker is as fast as can be (eq. 3), exactly.

    Parameters
    ----------
    lines : sequence of Line
        With slopes above 0.
    total : int
        What the sizes add up to.
    least, most : sequence of int
        Bounds of each worker.

    Raises
    ------
    ValueError
        The bounds leave no such division.
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
    """The time by which the workers have made all samples if samples could be divided."""
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
    sizes: list[int],
    lines: Sequence[Line],
    total: int,
    least: Sequence[int],
    most: Sequence[int],
) -> None:
    """Give what is left to who is first done with one more; what rounding gave too much, back."""
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


class Seen(NamedTuple):
    """What all workers were told of one iteration.

    Attributes
    ----------
    batches : tuple of int
        Samples of each worker.
    times_s : tuple of float
        Seconds that each took, without waiting for others.
    memory : tuple of float
        Share of its memory that each has used.
    speeds : tuple of float
        Samples per second that each expects of itself in the next iteration.
    """

    batches: Sizes
    times_s: tuple[float, ...]
    memory: tuple[float, ...]
    speeds: tuple[float, ...]


class Rule(Protocol):
    """A way to choose sizes.

    Attributes
    ----------
    sizes : tuple of int
        Samples of each worker in the next iteration.
    """

    sizes: Sizes

    def see(self, seen: Seen) -> Sizes:
        """Take an iteration in; the sizes of the next one."""

    def resize(self, total: int) -> Sizes:
        """The step has another number of samples from now on."""

    def state(self) -> list[Any]:
        """What is known of each worker, as JSON values."""


class Bounds(NamedTuple):
    """Fewest and most samples of a worker; None: no bound but its memory."""

    least: int = 1
    most: int | None = None

    def fitted(self, total: int, workers: int) -> Bounds:
        """The same, or as much wider as a step of so many samples needs."""
        least = min(self.least, total // workers)
        most = self.most if self.most is None else max(self.most, -(-total // workers))
        return Bounds(least, most)

    def of(self, sizes: Sizes, total: int, memory: Sequence[float]) -> tuple[list[int], list[int]]:
        """Least and most of each worker; none that is full gets more, if the others have room."""
        top = total if self.most is None else min(self.most, total)
        most = [
            min(size, top) if used > FULL else top for size, used in zip(sizes, memory, strict=True)
        ]
        if sum(most) < total:
            most = [top] * len(sizes)
        return [self.least] * len(sizes), most


FREE = Bounds()
"""Of a worker whose batches are not bounded."""


class Speeds:
    """Algorithm 1: sizes in proportion to the speeds that are expected of the next iteration.

    Parameters
    ----------
    sizes : sequence of int
        To begin with.
    bounds : Bounds
    known : sequence
        What :meth:`state` said of each worker, None where nothing is known.
    """

    def __init__(
        self, sizes: Sequence[int], bounds: Bounds = FREE, known: Sequence[Any] = ()
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

    def see(self, seen: Seen) -> Sizes:
        """As :class:`Rule` has it."""
        if all(math.isfinite(speed) and speed > 0 for speed in seen.speeds):
            self._speeds, self._memory = seen.speeds, seen.memory
            return self.resize(sum(self.sizes))
        return self.sizes

    def resize(self, total: int) -> Sizes:
        """As :class:`Rule` has it."""
        if not self._speeds:
            self.sizes = even(total, len(self.sizes))
            return self.sizes
        lines = [Line(0.0, 1.0 / speed) for speed in self._speeds]
        self.sizes = level(lines, total, *self._bounds.of(self.sizes, total, self._memory))
        return self.sizes

    def state(self) -> list[Any]:
        """As :class:`Rule` has it."""
        return list(self._speeds) or [None] * len(self.sizes)


class LeaderStraggler:
    """Algorithm 2, as published: line by line.

    Parameters
    ----------
    sizes : sequence of int
        To begin with.
    bounds : Bounds
    known : sequence
        What :meth:`state` said of each worker; taken in if it is known of all.
    step, window : int
        Of the fast approach.

    Attributes
    ----------
    fine : bool
        Whether it fine-tunes, because a leader was slower than its straggler before.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        bounds: Bounds = FREE,
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
        # Whether this worker has ever been slower than that one: all that line 9 asks of the past.
        self._slower = [bytearray(len(self.sizes)) for _ in self.sizes]
        if known and all(known):
            total, self.sizes = sum(self.sizes), tuple(known)
            self.resize(total)

    def see(self, seen: Seen) -> Sizes:
        """As :class:`Rule` has it."""
        times = seen.times_s
        self._last.append(times)
        for row, mine in zip(self._slower, times, strict=True):
            for at, other in enumerate(times):
                if mine > other:
                    row[at] = 1
        if seen.batches != self.sizes:
            # Of sizes that were chosen before the last ones.
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
        """As :class:`Rule` has it: in the proportions of now."""
        lines = [Line(0.0, 1.0 / max(1, size)) for size in self.sizes]
        bounds = self._bounds.of(self.sizes, total, [0.0] * len(self.sizes))
        self.sizes = level(lines, total, *bounds)
        self._last.clear()
        return self.sizes

    def state(self) -> list[Any]:
        """As :class:`Rule` has it."""
        return list(self.sizes)


def removable(seen: Seen, bounds: Bounds) -> int | None:
    """A worker without which a step would be faster: slowest by far with its fewest samples.

    Parameters
    ----------
    seen : Seen
    bounds : Bounds
    """
    slowest = max(range(len(seen.times_s)), key=lambda at: seen.times_s[at])
    others = [time_s for at, time_s in enumerate(seen.times_s) if at != slowest]
    at_floor = seen.batches[slowest] <= bounds.least
    if at_floor and others and seen.times_s[slowest] > STRAGGLES * max(others):
        return slowest
    return None
