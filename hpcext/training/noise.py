"""The gradient noise scale, from squared norms of gradients: Pollux, section 3.1.

The gradient of a step is the mean of those of *pieces*: the passes of all ranks, of one sample or
more each. Their squared norms are larger than that of their mean by what the samples differ. With
pieces of b_1 ... b_n samples, of gradients g_i, B samples in all, and G the gradient of the step,

    E sum_i (b_i / B) |g_i|^2 = |g|^2 + n tr(Sigma) / B        E |G|^2 = |g|^2 + tr(Sigma) / B

for the true gradient g and the covariance Sigma of the gradients of single samples. So two sums
give both, without bias, whatever the sizes of the pieces (McCandlish et al., appendix A.1, has
two sizes and one piece of each).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

FOLLOWS = 0.5
"""Share of the newest measurement in what gradients are measured by. With all of it estimates of
few parameters would be biased; with none one huge gradient would outweigh all that come after."""

MEMORY, YOUNG = 30.0, 10.0
"""Measurements that an average goes back: old gradients are those of another model. It is half of
them in a young training, which changes fastest, but so many at least."""

LEAST = 5
"""Measurements before there is a noise scale: fewer say nothing of how far they scatter."""

SURE = 1.0
"""Standard errors that a squared gradient is told from 0 by; what is less bounds the scale. By two
of them small batches were believed to be large enough too long, in the study of examples/."""


class Squares(NamedTuple):
    """Sums over the pieces of a step.

    Attributes
    ----------
    pieces : float
        How many there are, n.
    samples : float
        B, of all pieces together.
    spread : float
        Sum of (b_i / B) |g_i|^2.
    mean : float
        |G|^2.
    """

    pieces: float
    samples: float
    spread: float
    mean: float

    def estimates(self) -> tuple[float, float] | None:
        """Of |g|^2 and of tr(Sigma), without bias; None where these sums tell nothing.

        Either may be negative: only averages of many are not.
        """
        if not (self.pieces >= 2 and self.samples > 0):
            return None
        noise = self.samples * (self.spread - self.mean) / (self.pieces - 1)
        signal = self.mean - noise / self.samples
        # A loss that overflowed, or a step that a gradient scaler skips.
        return (signal, noise) if math.isfinite(signal) and math.isfinite(noise) else None


@dataclasses.dataclass
class NoiseScale:
    """What the measurements so far say; a state of plain numbers, the same on all ranks.

    Averages of |g|^2 and of tr(Sigma) are kept apart and divided at the end, since the mean of
    quotients is not the quotient of means. Each measurement is by the size of gradients at its
    time: they may shrink a hundredfold while a noise scale stays, and old ones would outweigh all
    others. The averages begin without bias at the first measurement.

    Attributes
    ----------
    count : int
        Measurements.
    size : float
        The squared norm of the gradients of pieces, of late.
    scatter, pairs, last : float
        Of |g|^2: half of the squared differences from one measurement to the next, how many, and
        the last one. A variance of all would take it for an error that gradients or batches change.
    """

    count: int = 0
    size: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    scatter: float = 0.0
    pairs: float = 0.0
    last: float = 0.0

    def add(self, squares: Squares) -> bool:
        """Take a measurement in; False if it tells nothing."""
        found = squares.estimates()
        if found is None:
            return False
        newest = FOLLOWS if self.count else 1.0
        self.size += newest * (squares.spread - self.size)
        signal, noise = (each / self.size if self.size > 0 else 0.0 for each in found)
        self.count += 1
        keep = 1.0 - 1.0 / min(MEMORY, max(YOUNG, self.count / 2))
        self.weight = keep * self.weight + 1.0
        self.weight_squared = keep**2 * self.weight_squared + 1.0
        self.signal = keep * self.signal + signal
        self.noise = keep * self.noise + noise
        if self.count > 1:
            self.scatter = keep * self.scatter + (signal - self.last) ** 2 / 2
            self.pairs = keep * self.pairs + 1.0
        self.last = signal
        return True

    def averages(self) -> tuple[float, float]:
        """Of |g|^2 and of tr(Sigma), by the size of gradients."""
        return self.signal / self.weight, self.noise / self.weight

    def phi(self) -> float | None:
        """The noise scale, in samples; None until enough is measured.

        Where |g|^2 cannot be told from 0 it is what it would be if |g|^2 were as large as its
        measurements leave possible: a noise scale is not believed to be larger than could be seen.
        """
        if self.count < LEAST:
            return None
        signal, noise = self.averages()
        counted = self.weight**2 / self.weight_squared
        error = math.sqrt(self.scatter / self.pairs / counted)
        if noise <= 0.0:
            return 0.0
        seen = max(signal, SURE * error)
        return noise / seen if seen > 0.0 else math.inf

    def gain(self, samples: float, initial_batch: float) -> float:
        """Steps of the initial batch that one of so many samples is worth (AdaScale's r).

        By eq. 6 a sample in it makes (phi + M0) / (phi + M) of the progress that one in the
        initial batch makes. Before phi is known the two are taken to be worth the same.
        """
        phi = self.phi()
        if phi is None:
            return min(1.0, samples / initial_batch)
        share = samples / initial_batch
        if math.isinf(phi):
            return share
        return share * (phi + initial_batch) / (phi + samples)

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> NoiseScale:
        """What :meth:`state` gave."""
        return cls(**saved)
