"""Goodput, the progress of a training per second, and the batch that maximises it.

Pollux, sections 3.1 and 4.3. Goodput is throughput times statistical efficiency (eq. 4): a larger
batch keeps GPUs busier, but its samples teach less. The goodput of a job on given GPUs is that with
its best batch (eq. 13).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcext.scaling.throughput import Floats, Throughput, overlapped

Ints = NDArray[np.int64]

MOST_TIMES = 32
"""Section 3.1: total batches up to this multiple of the initial one work well in most cases."""

CANDIDATES = 256
"""Largest number of per-GPU batches to compare: all of a small range, else this many, evenly spaced
on a logarithmic scale."""


class Choice(NamedTuple):
    """The best batch on given GPUs; arrays in the shape of the arguments.

    Attributes
    ----------
    goodput : array of float
        Samples per second, converted to those of the initial batch; 0 if the job cannot run.
    batch : array of int
        Samples on each GPU in each pass; 0 if the job cannot run. If GPUs times passes do not
        divide the total batch, this is the largest share, for which the others wait.
    accumulation : array of int
        Passes before the one that synchronises.
    """

    goodput: Floats
    batch: Ints
    accumulation: Ints


class Goodput(NamedTuple):
    """The goodput of a job at a moment of its training.

    Attributes
    ----------
    throughput : Throughput
        In samples.
    noise_scale : float
        The gradient noise scale phi (eq. 5) in samples, 0 or more; if it is infinite, no batch is
        too large. For a job of fixed batch see `most_batch`.
    initial_batch : int
        The total batch that the user chose, M0, at least 1. Smaller ones are not considered.
    most_batch : int, optional
        Largest total batch; default 32 times the initial one. With `initial_batch` itself the batch
        is fixed, and statistical efficiency is 1 (section 4.2, "non-adaptive jobs").
    least_per_gpu : int
        Fewest samples on a GPU in a pass: batch normalisation needs some.
    most_per_gpu : int, optional
        Most samples on a GPU in a pass that fit in its memory; unlimited by default.
    accumulates : bool
        Whether the training can add up the gradients of several passes.
    """

    throughput: Throughput
    noise_scale: float
    initial_batch: int
    most_batch: int | None = None
    least_per_gpu: int = 1
    most_per_gpu: int | None = None
    accumulates: bool = True

    def statistical_efficiency(self, total_batch: ArrayLike) -> Floats:
        """Return the progress of a sample in a batch, relative to the initial batch (eq. 6).

        Parameters
        ----------
        total_batch : float or array of float
            At least `initial_batch`.
        """
        total = np.asarray(total_batch, dtype=np.float64)
        if np.isinf(self.noise_scale):
            return np.ones_like(total)
        return np.asarray((self.noise_scale + self.initial_batch) / (self.noise_scale + total))

    def best(self, gpus: ArrayLike, nodes: ArrayLike) -> Choice:
        """Find the per-GPU batch and the passes with the highest goodput (eq. 13).

        A total batch M lies between `initial_batch` and `most_batch`. It is K * m * (s + 1) on K
        GPUs; if that exceeds `most_batch`, the shares of some GPUs are smaller and M is
        `most_batch`, so that a fixed batch is possible on any K. Each GPU has a share, so a job
        with K * `least_per_gpu` > `most_batch` cannot run. Nor can a job whose initial batch does
        not fit into memory and that does not accumulate.

        Section 4.3 tries total batches, with the fewest passes for each. Here per-GPU batches are
        tried, because the best number of passes for each has a closed form. So the result is exact
        over all integers up to `CANDIDATES` samples per GPU, and nearly exact above.

        Parameters
        ----------
        gpus, nodes : int or array of int
            GPUs and nodes of each size, broadcast; 0 GPUs have no goodput.

        Returns
        -------
        Choice

        Raises
        ------
        ValueError
            There are fewer GPUs than nodes, or GPUs on no node; or the job's parameters are not
            valid.
        """
        most = self._checked()
        gpus, nodes = np.broadcast_arrays(np.asarray(gpus), np.asarray(nodes))
        wrong = (gpus < nodes) | ((gpus > 0) & (nodes < 1))
        if wrong.any():
            raise ValueError(f"{gpus[wrong][0]} GPUs on {nodes[wrong][0]} nodes")
        count = np.maximum(gpus.reshape(-1, 1), 1)
        batch = self._batches(count, most)
        gradient_s = self.throughput.gradient_s(batch)
        sync_s = self.throughput.sync_s(count, nodes.reshape(-1, 1))
        last_s = overlapped(gradient_s, sync_s, self.throughput.gamma)
        low, high = self._passes(count, batch, most)
        # (n G + D) (phi + K m n) / n is smallest at sqrt(D phi / (G K m)), for n passes of G
        # seconds and D more for the last one. An infinite phi is replaced by a very large one.
        samples = min(self.noise_scale, 1e30) / (count * batch)
        wanted = np.sqrt((last_s - gradient_s) / gradient_s * samples)
        # This does not hold for `high`, whose last pass may be cut short, so that is tried as well.
        first = np.clip(wanted, low, np.maximum(low, high - 1)).astype(np.int64)
        passes = np.hstack([first, np.minimum(first + 1, np.maximum(high, 1))])
        total = np.minimum(np.tile(count * batch, 2) * passes, most)
        step_s = (passes - 1) * np.tile(gradient_s, 2) + np.tile(last_s, 2)
        goodput = total * self.statistical_efficiency(total) / step_s
        goodput[np.tile((low > high) | (gpus.reshape(-1, 1) < 1), 2)] = 0.0
        row, column = np.arange(len(goodput)), np.argmax(goodput, axis=1)
        runs = goodput[row, column] > 0
        return Choice(
            goodput[row, column].reshape(gpus.shape),
            np.where(runs, np.tile(batch, 2)[row, column], 0).reshape(gpus.shape),
            np.where(runs, passes[row, column] - 1, 0).reshape(gpus.shape),
        )

    def _checked(self) -> int:
        """Check the job's parameters; return the largest total batch."""
        most = MOST_TIMES * self.initial_batch if self.most_batch is None else self.most_batch
        room = self.least_per_gpu if self.most_per_gpu is None else self.most_per_gpu
        if not self.noise_scale >= 0:
            raise ValueError(f"noise_scale={self.noise_scale}: must be 0 or more")
        if not 1 <= self.initial_batch <= most:
            raise ValueError(f"initial_batch={self.initial_batch}: must be in [1, {most}]")
        if not 1 <= self.least_per_gpu <= room:
            raise ValueError(f"least_per_gpu={self.least_per_gpu}: must be in [1, {room}]")
        if not self.throughput.gradient_s(1.0) > 0:
            raise ValueError(f"{self.throughput}: a pass takes no time")
        return most

    def _batches(self, count: Ints, most: int) -> Ints:
        """Return per-GPU batches to try, shape (sizes, c), ascending; some may exceed memory."""
        high = _ceil(most, count)
        if self.most_per_gpu is not None:
            high = np.minimum(high, self.most_per_gpu)
        high = np.maximum(high, self.least_per_gpu)
        every = int(min(high.max() - self.least_per_gpu + 1, CANDIDATES))
        dense = self.least_per_gpu + np.arange(every)
        # With the fewest passes for a total batch, each fills half of the memory, or there is one.
        low = np.minimum(_ceil(self.initial_batch, count), _ceil(high, 2))
        low = np.maximum(low, self.least_per_gpu)
        sparse = np.rint(low * (high / low) ** np.linspace(0.0, 1.0, every))
        chosen: Ints = np.where(high < self.least_per_gpu + every, dense, sparse).astype(np.int64)
        return chosen

    def _passes(self, count: Ints, batch: Ints, most: int) -> tuple[Ints, Ints]:
        """Return the fewest and the most passes; the most are fewer where the job cannot run."""
        low = _ceil(self.initial_batch, count * batch)
        high = _ceil(most, count * batch) if self.accumulates else np.ones_like(low)
        high = np.minimum(high, most // (count * self.least_per_gpu))
        if self.most_per_gpu is not None:
            high[batch > self.most_per_gpu] = 0
        return low, high


def _ceil(above: int | Ints, below: int | Ints) -> Ints:
    quotient: Ints = -(-np.asarray(above, dtype=np.int64) // below)
    return quotient
