"""The gradient noise scale, from squared norms of gradients: Pollux, section 3.1.

The gradient of a step is the mean of those of *pieces*: the passes of all ranks, of one or more
samples each. Their squared norms exceed that of their mean by as much as the samples differ. With
pieces of b_1 ... b_n samples, of gradients g_i, B samples in all, and G the gradient of the step,

    E sum_i (b_i / B) |g_i|^2 = |g|^2 + n tr(Sigma) / B        E |G|^2 = |g|^2 + tr(Sigma) / B

for the true gradient g and the covariance Sigma of the gradients of single samples. So two sums
give both, without bias, whatever the sizes of the pieces (McCandlish et al., appendix A.1, has two
sizes and one piece of each).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

FOLLOWS = 0.5
"""Weight of the newest measurement in the scale by which gradients are normalised. With 1,
estimates for few parameters would be biased; with 0, one huge gradient would outweigh all later
ones."""

MEMORY, YOUNG = 30.0, 10.0
"""Largest and smallest number of measurements in an average, because old gradients are those of
another model. In a young training, which changes fastest, it covers half of them."""

LEAST = 5
"""Fewest measurements for a noise scale; fewer do not show their variance."""

SURE = 1.0
"""Standard errors by which |g|^2 must exceed 0 to be significant; if it does not, this bound is
used instead. With two, small batches were kept for too long in the study of examples/."""


class Squares(NamedTuple):
    """Sums over the pieces of a step.

    Attributes
    ----------
    pieces : float
        The number of pieces, n.
    samples : float
        Samples in all pieces together, B.
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
        """Return unbiased estimates of |g|^2 and tr(Sigma); None if the sums do not determine them.

        Either may be negative; only averages of many are positive.
        """
        if not (self.pieces >= 2 and self.samples > 0):
            return None
        noise = self.samples * (self.spread - self.mean) / (self.pieces - 1)
        signal = self.mean - noise / self.samples
        # Not finite after a loss that overflowed, or in a step that a gradient scaler skips.
        return (signal, noise) if math.isfinite(signal) and math.isfinite(noise) else None


@dataclasses.dataclass
class NoiseScale:
    """The noise scale from all measurements so far, in plain numbers that are equal on all ranks.

    Averages of |g|^2 and of tr(Sigma) are kept separately and divided at the end, because the mean
    of quotients is not the quotient of means. Each measurement is normalised by the size of
    gradients at its time: gradients may shrink a hundredfold while the noise scale stays, and old
    ones would outweigh all others. The averages are unbiased from the first measurement on.

    Attributes
    ----------
    count : int
        Number of measurements.
    size : float
        Running squared norm of the gradients of pieces, by which gradients are normalised.
    scatter, pairs, last : float
        For |g|^2: half of the sum of squared differences between successive measurements, their
        number, and the last measurement. A plain variance would mistake real changes of gradients
        and batches for measurement errors.
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
        """Process a measurement; return False if it determines nothing."""
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
        """Return the averages of |g|^2 and tr(Sigma), normalised by the size of gradients."""
        return self.signal / self.weight, self.noise / self.weight

    def phi(self) -> float | None:
        """Return the noise scale in samples; None until enough is measured.

        If |g|^2 cannot be distinguished from 0, the largest value that the measurements allow is
        used instead, so that the noise scale is not estimated larger than it can be measured.
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
        """Return the number of initial-batch steps that a step is worth (AdaScale's r).

        By eq. 6 a sample in it makes (phi + M0) / (phi + M) of the progress by one in the initial
        batch. Before phi is known, a sample in a smaller batch is assumed to be worth as much, and
        a larger batch no more than the initial one.

        Parameters
        ----------
        samples, initial_batch : float
            Samples in the step, and in the initial batch.
        """
        phi = self.phi()
        if phi is None:
            return min(1.0, samples / initial_batch)
        share = samples / initial_batch
        if math.isinf(phi):
            return share
        return share * (phi + initial_batch) / (phi + samples)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> NoiseScale:
        """Make a noise scale from the result of :meth:`state`."""
        return cls(**saved)
