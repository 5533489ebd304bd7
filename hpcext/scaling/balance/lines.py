"""Batch sizing by a line through each worker's times, in addition to LB-BSP's published rules.

Above saturation, a worker's time is affine in its samples. So a line is fitted to each worker, and
the sizes are those at which all workers finish together by their lines, as far as each line can be
trusted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from hpcext.scaling.balance import (
    FREE,
    IterationRecord,
    Line,
    Sizes,
    WorkerBounds,
    even,
    level,
)

GROWS, SHRINKS = 2, 4
"""A line is trusted up to `GROWS` times the largest batch tried, which is known to fit in memory,
and down to the present one divided by `SHRINKS`."""

GAIN = 0.01
"""Share of an iteration's time that a change must be predicted to save."""

SURE = 1.0
"""Standard errors of an iteration's time that a change must be predicted to save, beyond those by
which the slowest of as many equal workers seems slower than it is."""

LEAST_SEEN = 2
"""Fewest iterations with one division before the next one: a single one does not show the noise."""

MOVED = 0.05
"""A worker's speed has changed if its time differs by more than this share twice in a row..."""

SURELY_MOVED = 4.0
"""...and by more than this many standard deviations."""

KEPT, POINTS = 100, 6
"""Number of times that a mean covers, and of batch sizes that a line is fitted to."""

RECENT = 8
"""Number of newest times; if their mean differs, the worker's speed has changed."""

SPREAD = 20
"""Number of times that a standard deviation covers."""

RESTS = 5
"""Iterations between two reviews of a division, after as many iterations with it."""

SHRINK = 0.05
"""Weight of the prior slope: that of batches whose sizes differ by this share."""

BELIEVED = 0.15
"""Relative uncertainty of the prior slope: where times are noisier than this, they say less about
the slope than the prior does."""

FLAT = 0.02
"""Lower limit of a line's slope, relative to the time per sample: no sample is free."""


class _Fit:
    """The times of one worker, and the line through them."""

    def __init__(self, prior: Line | None) -> None:
        self.prior = prior
        # By samples: how often seen (at most KEPT), and mean seconds; the newest come last.
        self.points: dict[int, tuple[float, float]] = {}
        self.tried = 0
        self._outliers: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._variance, self._deviations = 0.0, 0

    def add(self, samples: int, time_s: float) -> None:
        self.tried = max(self.tried, samples)
        if samples != self._present:
            self._outliers = []
            self._recent.clear()
            # The times of other sizes are outdated as well.
            self.points = {x: (n / 2, t) for x, (n, t) in self.points.items()}
        count, mean_s = self.points.pop(samples, (0.0, 0.0))
        if count >= 1:
            off = time_s / mean_s - 1.0
            odd = max(MOVED, SURELY_MOVED * self.deviation)
            if count >= LEAST_SEEN and abs(off) > odd:
                self.points[samples] = count, mean_s
                self._record_outlier(samples, time_s, mean_s)
                return
            for _ in self._outliers:
                # It was an outlier, which counts as noise.
                self._record_deviation(odd)
        if self._recent:
            # From one time to the next, because a shift of the mean is not noise.
            self._record_deviation((time_s - self._recent[-1]) / mean_s / math.sqrt(2.0))
        self._outliers = []
        self._recent.append(time_s)
        count = min(count + 1, KEPT)
        self.points[samples] = count, mean_s + (time_s - mean_s) / count
        if len(self.points) > POINTS:
            del self.points[next(iter(self.points))]
        self._follow(samples)

    def _record_outlier(self, samples: int, time_s: float, mean_s: float) -> None:
        """Record a time that does not fit; the first may be an accident, the second is a change."""
        if self._outliers and (self._outliers[0] > mean_s) != (time_s > mean_s):
            self._outliers = []
        self._outliers.append(time_s)
        if len(self._outliers) >= LEAST_SEEN:
            self._restart(samples, self._outliers)

    def _follow(self, samples: int) -> None:
        """Follow a change that only the mean of several times shows, because of noise."""
        count, mean_s = self.points[samples]
        if count < 2 * RECENT or len(self._recent) < RECENT:
            return
        now_s = math.fsum(self._recent) / RECENT
        if abs(now_s / mean_s - 1.0) > max(MOVED, SURELY_MOVED * self.deviation / RECENT**0.5):
            self._restart(samples, list(self._recent))

    def _restart(self, samples: int, times: Sequence[float]) -> None:
        """Restart from these times, because the worker's speed has changed."""
        now_s = math.fsum(times) / len(times)
        # The slowdown may be constant or proportional. The latter is assumed, because it makes a
        # change too small rather than too large, and the next times correct it.
        line, ratio = self.line(), now_s / self.points[samples][1]
        if line is not None:
            self.prior = Line(line.constant_s * ratio, line.per_sample_s * ratio)
        self.points = {samples: (float(len(times)), now_s)}
        self._outliers = []
        self._recent.clear()

    def _record_deviation(self, off: float) -> None:
        self._deviations = min(self._deviations + 1, SPREAD)
        self._variance += (off * off - self._variance) / self._deviations

    @property
    def _present(self) -> int | None:
        return next(reversed(self.points)) if self.points else None

    @property
    def seen(self) -> float:
        """The number of iterations with the present batch."""
        return self.points[self._present][0] if self._present is not None else 0.0

    @property
    def deviation(self) -> float:
        """The relative standard deviation of the worker's times."""
        return math.sqrt(self._variance)

    @property
    def time_s(self) -> float:
        """The mean seconds of the worker's times with the present batch."""
        return self.points[self._present][1] if self._present is not None else 0.0

    def line(self) -> Line | None:
        """Return the line through the mean at the present batch, with the slope of all points."""
        here = self._present
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
        trust = (weight * SHRINK**2 + (self.deviation / BELIEVED) ** 2) * mean_x**2
        slope = (both + trust * believed) / (spread + trust)
        slope = min(max(slope, FLAT * steepest), steepest)
        return Line(time_s - slope * here, slope)


class Affine:
    """The rule that fits a line to each worker's times, and levels the lines.

    A change must promise more than noise explains, so that sizes stay as they are when there is
    nothing to gain. A line goes through the worker's newest times, whatever it was fitted to. So
    where sizes stay, all workers are level by measurement and not only by the model.

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
        told = known or [None] * len(self.sizes)
        lines = [None if each is None else Line(*each) for each in told]
        usual = _usual([line for line in lines if line is not None])
        self._fits = [_Fit(line or usual) for line in lines]
        self._rested = 0
        if usual is not None:
            self.resize(sum(self.sizes))

    def see(self, seen: IterationRecord) -> Sizes:
        """Process the record of an iteration; return the sizes of the next one."""
        for fit, samples, time_s in zip(self._fits, seen.batches, seen.times_s, strict=True):
            if math.isfinite(time_s) and time_s > 0 and samples > 0:
                fit.add(samples, time_s)
        self._memory = seen.memory
        count = min(fit.seen for fit in self._fits)
        self._rested += 1
        # While nothing changes, a review at every iteration would be wasted.
        rests = count >= RESTS and self._rested < RESTS
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
        """Set the number of samples in a step from now on; return the new sizes."""
        lines = [fit.line() for fit in self._fits]
        least, most = self._bounds.of(self.sizes, total, self._memory)
        if all(lines):
            self.sizes = level([line for line in lines if line is not None], total, least, most)
        else:
            self.sizes = even(total, len(self.sizes))
        return self.sizes

    def state(self) -> list[Any]:
        """Return the line of each worker, as JSON values."""
        return [None if (line := fit.line()) is None else list(line) for fit in self._fits]


def _usual(lines: Sequence[Line]) -> Line | None:
    """Return the prior line of an unknown worker: the mean of the known ones."""
    if not lines:
        return None
    return Line(*(math.fsum(column) / len(lines) for column in zip(*lines, strict=True)))
