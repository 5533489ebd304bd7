"""The rule that keeps several rules in mind, and follows the one that has been best of late.

What an iteration would have taken by another rule's division is arithmetic: each worker's time is
moved along its line, to the samples that it would have had. So no rule has to be tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcext.scaling.balance import (
    FREE,
    IterationRecord,
    Line,
    Sizes,
    Speeds,
    WorkerBounds,
    even,
    level,
)
from hpcext.scaling.balance.lines import GROWS, Affine

NEWEST = 0.4
"""Weight of the newest iteration in a mean that follows changes, and still halves noise."""

MEMORY = 0.95
"""By so much less each iteration counts than the next one, where rules are compared."""

BETTER = 0.005
"""Share of an iteration by which another rule must have been better before it is followed."""


class MeanSpeeds:
    """Algorithm 1 with the mean of a worker's speeds, of which the newest counts most.

    Parameters
    ----------
    sizes, bounds, known
        As for :class:`~hpcext.scaling.balance.Speeds`.
    """

    def __init__(
        self, sizes: Sequence[int], bounds: WorkerBounds = FREE, known: Sequence[Any] = ()
    ) -> None:
        self.sizes: Sizes = tuple(sizes)
        self._bounds = bounds
        self._memory: tuple[float, ...] = (0.0,) * len(self.sizes)
        # Seconds for a sample.
        self._slopes: list[float | None] = [None] * len(self.sizes)
        there = [float(each) for each in known if each is not None]
        if there:
            usual = math.fsum(there) / len(there)
            self._slopes = [usual if each is None else float(each) for each in known]
            self.resize(sum(self.sizes))

    def see(self, seen: IterationRecord) -> Sizes:
        """Process the record of an iteration; return the sizes of the next one."""
        for at, (samples, time_s) in enumerate(zip(seen.batches, seen.times_s, strict=True)):
            if samples > 0 and math.isfinite(time_s) and time_s > 0:
                before, now = self._slopes[at], time_s / samples
                self._slopes[at] = now if before is None else before + NEWEST * (now - before)
        self._memory = seen.memory
        return self.resize(sum(self.sizes))

    def resize(self, total: int) -> Sizes:
        """Set the number of samples in a step from now on; return the new sizes."""
        lines = [Line(0.0, slope) for slope in self._slopes if slope is not None]
        if len(lines) < len(self.sizes):
            self.sizes = even(total, len(self.sizes))
        else:
            self.sizes = level(lines, total, *self._bounds.of(self.sizes, total, self._memory))
        return self.sizes

    def state(self) -> list[Any]:
        """Return the seconds for a sample of each worker, as JSON values."""
        return list(self._slopes)


class Best:
    """The rule that follows :class:`~hpcext.scaling.balance.Speeds`, ``MeanSpeeds`` or ``Affine``.

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
        self._tried = list(self.sizes)
        told = known or [None] * len(self.sizes)
        # The first is followed until another one has been better.
        kinds: tuple[type[Speeds | MeanSpeeds | Affine], ...] = (Speeds, MeanSpeeds, Affine)
        self._rules = tuple(
            make(sizes, bounds, [None if each is None else each[at] for each in told])
            for at, make in enumerate(kinds)
        )
        self._losses = [0.0] * len(self._rules)
        self._followed = 0
        if any(each is not None for each in told):
            self.resize(sum(self.sizes))

    def see(self, seen: IterationRecord) -> Sizes:
        """Process the record of an iteration; return the sizes of the next one."""
        self._compare(seen)
        self._tried = [max(each) for each in zip(self._tried, seen.batches, strict=True)]
        for at, rule in enumerate(self._rules):
            if at != self._followed and sum(seen.batches) == sum(rule.sizes):
                # It goes on from the division that there was.
                rule.sizes = seen.batches
            rule.see(seen)
        best = min(range(len(self._rules)), key=self._losses.__getitem__)
        if self._losses[best] < self._losses[self._followed] * (1.0 - BETTER):
            self._followed = best
        return self._take(self._rules[self._followed].sizes, seen.memory)

    def resize(self, total: int) -> Sizes:
        """Set the number of samples in a step from now on; return the new sizes."""
        for rule in self._rules:
            rule.resize(total)
        self.sizes = self._rules[self._followed].sizes
        return self.sizes

    def state(self) -> list[Any]:
        """Return what the rules know of each worker, as JSON values."""
        states = zip(*(rule.state() for rule in self._rules), strict=True)
        return [list(each) if any(part is not None for part in each) else None for each in states]

    def _compare(self, seen: IterationRecord) -> None:
        """Add what the iteration would have taken by each rule's division."""
        took_s = max(seen.times_s)
        lines = self._lines(seen)
        if lines is None:
            return
        for at, rule in enumerate(self._rules):
            would_s = max(line.at(size) for line, size in zip(lines, rule.sizes, strict=True))
            self._losses[at] += (1.0 - MEMORY) * (would_s / took_s - self._losses[at])

    def _lines(self, seen: IterationRecord) -> list[Line] | None:
        """Return a line through each worker's time in an iteration; None if one was not timed."""
        found = []
        affine = self._rules[-1]
        # In a fitted line the same part of the time is constant.
        for (constant_s, per_sample_s), samples, time_s in zip(
            _parts(affine.state()), seen.batches, seen.times_s, strict=True
        ):
            if not (math.isfinite(time_s) and time_s > 0 and samples > 0):
                return None
            fitted_s = constant_s + per_sample_s * samples
            slope = per_sample_s * time_s / fitted_s if fitted_s > 0 else time_s / samples
            found.append(Line(time_s - slope * samples, slope))
        return found

    def _take(self, sizes: Sizes, memory: Sequence[float]) -> Sizes:
        """Take a division, as far as it is known to fit into the workers' memory."""
        total = sum(sizes)
        least, most = self._bounds.of(self.sizes, total, memory)
        most = [min(top, max(GROWS * tried, low)) for top, tried, low in
                zip(most, self._tried, least, strict=True)]  # fmt: skip
        if any(size > top for size, top in zip(sizes, most, strict=True)) and sum(most) >= total:
            sizes = level([Line(0.0, 1.0 / max(1, size)) for size in sizes], total, least, most)
        self.sizes = sizes
        return self.sizes


def _parts(lines: Sequence[Any]) -> list[tuple[float, float]]:
    """Return constant and slope of each line; of an unknown one, zeros."""
    return [(0.0, 0.0) if line is None else (line[0], line[1]) for line in lines]
