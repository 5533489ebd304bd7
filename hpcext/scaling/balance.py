"""Batch sizing of LB-BSP (SoCC 2020): the samples of a step, so that all workers finish together.

Every rule here is a pure function of what all workers were told alike, in plain arithmetic: each of
them computes the same sizes, without a server. Sums are kept exactly.

Three rules
-----------
:class:`Speeds` is Algorithm 1, for workers whose time is proportional to their samples.
:class:`LeaderStraggler` is Algorithm 2, which knows nothing of the workers: some samples at a time
go from the slowest to the fastest one. :class:`Affine` knows that a worker's time is affine in its
samples (above saturation): it fits a line to each, and goes to where the lines say that all finish
together, as far as each line may be trusted.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

Sizes = tuple[int, ...]

FULL = 0.95
"""A worker that has used so much of its memory gets no larger batch (section 3.3.2)."""

STEP, WINDOW = 5, 5
"""Algorithm 2, fast approach: samples that are moved, and iterations that are looked at."""

FINE_STEP, FINE_WINDOW = 1, 20
"""Algorithm 2, fine-tune."""

GROWS, SHRINKS = 2, 4
"""A line is trusted up to twice the largest batch that was tried, whose memory has room, and down
to a quarter of the present one."""

GAIN = 0.01
"""Share of an iteration that a change must promise."""

SURE = 1.0
"""Standard errors of an iteration's time that a change must promise, beyond those by which the
slowest of so many equal workers seems slower than it is."""

LEAST_SEEN = 2
"""Iterations of one division that are seen before the next one: a single one says no noise."""

MOVED = 0.05
"""A worker is another one if its time has changed by more than this share, twice in a row..."""

SURELY_MOVED = 4.0
"""...and by more than so many standard deviations."""

KEPT, POINTS = 10, 6
"""Times that a mean remembers, and batch sizes that a line is fitted to."""

RESTS = 5
"""Iterations from one look to the next, once a mean remembers all that it can."""

SHRINK = 0.05
"""What is believed of a slope beforehand counts as batches that differ by this share."""

FLAT = 0.02
"""Least slope of a line, as a share of time per sample: no batch is free."""

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


class _Fit:
    """What is known of one worker: its times, and the line through them."""

    def __init__(self, prior: Line | None) -> None:
        self.prior = prior
        # Samples → how often seen (at most KEPT), mean seconds; the newest last.
        self.points: dict[int, tuple[float, float]] = {}
        self.tried = 0
        self._odd: list[float] = []
        self._variance, self._deviations = 0.0, 0

    def add(self, samples: int, time_s: float) -> None:
        self.tried = max(self.tried, samples)
        if samples != self._here:
            self._odd = []
            # What was seen of other sizes is of other times, too.
            self.points = {x: (n / 2, t) for x, (n, t) in self.points.items()}
        count, mean_s = self.points.pop(samples, (0.0, 0.0))
        if count >= 1:
            odd = max(MOVED, SURELY_MOVED * self.deviation)
            off = time_s / mean_s - 1.0
            self._deviate(min(abs(off), odd) * math.sqrt(count / (count + 1)))
            if count >= LEAST_SEEN and abs(off) > odd:
                self.points[samples] = count, mean_s
                self._be_odd(samples, time_s, mean_s)
                return
        self._odd = []
        count = min(count + 1, KEPT)
        self.points[samples] = count, mean_s + (time_s - mean_s) / count
        if len(self.points) > POINTS:
            del self.points[next(iter(self.points))]

    def _be_odd(self, samples: int, time_s: float, mean_s: float) -> None:
        """A time that does not fit: the first one may be an accident, the second one is none."""
        if self._odd and (self._odd[0] > mean_s) != (time_s > mean_s):
            self._odd = []
        self._odd.append(time_s)
        if len(self._odd) < LEAST_SEEN:
            return
        now_s = math.fsum(self._odd) / len(self._odd)
        # Slower by a constant or in proportion: taken for the latter, a change is too small
        # rather than too large, and the next two times tell.
        line, ratio = self.line(), now_s / mean_s
        if line is not None:
            self.prior = Line(line.constant_s * ratio, line.per_sample_s * ratio)
        self.points = {samples: (float(len(self._odd)), now_s)}
        self._odd = []

    def _deviate(self, off: float) -> None:
        self._deviations = min(self._deviations + 1, 2 * KEPT)
        self._variance += (off * off - self._variance) / self._deviations

    @property
    def _here(self) -> int | None:
        return next(reversed(self.points)) if self.points else None

    @property
    def seen(self) -> float:
        """Iterations with the present batch."""
        return self.points[self._here][0] if self._here is not None else 0.0

    @property
    def deviation(self) -> float:
        """Of its times, as a share of them."""
        return math.sqrt(self._variance)

    @property
    def time_s(self) -> float:
        """Mean of its times with the present batch."""
        return self.points[self._here][1] if self._here is not None else 0.0

    def line(self) -> Line | None:
        """Through its mean with the present batch, as steep as all points say."""
        here = self._here
        if here is None:
            return self.prior
        weight = math.fsum(n for n, _ in self.points.values())
        mean_x = math.fsum(n * x for x, (n, _) in self.points.items()) / weight
        mean_s = math.fsum(n * t for n, t in self.points.values()) / weight
        spread = math.fsum(n * (x - mean_x) ** 2 for x, (n, _) in self.points.items())
        both = math.fsum(n * (x - mean_x) * (t - mean_s) for x, (n, t) in self.points.items())
        time_s = self.points[here][1]
        steepest = time_s / here
        believed = self.prior.per_sample_s if self.prior is not None else steepest
        trust = weight * (SHRINK * mean_x) ** 2
        slope = (both + trust * believed) / (spread + trust)
        slope = min(max(slope, FLAT * steepest), steepest)
        return Line(time_s - slope * here, slope)


class Affine:
    """Fits a line to each worker's times, and goes to where all are level.

    A change must promise more than noise explains, so that sizes rest when there is nothing to
    gain. A line goes through the worker's newest times, whatever it was fitted to: so where sizes
    rest, all are level by measurement and not by the model.

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
        told = known or [None] * len(self.sizes)
        lines = [None if each is None else Line(*each) for each in told]
        usual = _usual([line for line in lines if line is not None])
        self._fits = [_Fit(line or usual) for line in lines]
        self._rested = 0
        if usual is not None:
            self.resize(sum(self.sizes))

    def see(self, seen: Seen) -> Sizes:
        """As :class:`Rule` has it."""
        for fit, samples, time_s in zip(self._fits, seen.batches, seen.times_s, strict=True):
            if math.isfinite(time_s) and time_s > 0 and samples > 0:
                fit.add(samples, time_s)
        self._memory = seen.memory
        count = min(fit.seen for fit in self._fits)
        self._rested += 1
        # Where nothing is new a look at every iteration would be for nothing.
        rests = count == KEPT and self._rested < RESTS
        if seen.batches != self.sizes or count < LEAST_SEEN or rests:
            return self.sizes
        self._rested = 0
        lines = [line for fit in self._fits if (line := fit.line()) is not None]
        total = sum(self.sizes)
        least, most = self._bounds.of(self.sizes, total, self._memory)
        for at, (fit, size) in enumerate(zip(self._fits, self.sizes, strict=True)):
            least[at] = max(least[at], -(-size // SHRINKS))
            most[at] = min(most[at], max(GROWS * fit.tried, least[at]))
        sizes = level(lines, total, least, most)
        slowest = max(self._fits, key=lambda fit: fit.time_s)
        promised_s = max(line.at(size) for line, size in zip(lines, sizes, strict=True))
        sure = SURE + math.sqrt(2.0 * math.log(len(sizes)))
        noise = sure * slowest.deviation / math.sqrt(slowest.seen)
        if promised_s < slowest.time_s * (1.0 - max(GAIN, noise)):
            self.sizes = sizes
        return self.sizes

    def resize(self, total: int) -> Sizes:
        """As :class:`Rule` has it."""
        lines = [fit.line() for fit in self._fits]
        least, most = self._bounds.of(self.sizes, total, self._memory)
        if all(lines):
            self.sizes = level([line for line in lines if line is not None], total, least, most)
        else:
            self.sizes = even(total, len(self.sizes))
        return self.sizes

    def state(self) -> list[Any]:
        """As :class:`Rule` has it."""
        return [None if (line := fit.line()) is None else list(line) for fit in self._fits]


def _usual(lines: Sequence[Line]) -> Line | None:
    """What is believed of a worker that is not known: the mean of those that are."""
    if not lines:
        return None
    return Line(*(math.fsum(column) / len(lines) for column in zip(*lines, strict=True)))


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


RULES: dict[str, Callable[[Sequence[int], Bounds, Sequence[Any]], Rule]] = {
    "affine": Affine,
    "speeds": Speeds,
    "leader": LeaderStraggler,
}
"""By name: ours, Algorithm 1 and Algorithm 2."""
