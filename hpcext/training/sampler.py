"""The order of samples, resumable in mid-epoch at any number of ranks.

No framework is needed: an instance serves as ``sampler=`` of a PyTorch ``DataLoader`` and as a
plain iterable of indices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


class ResumableSampler:
    """Indices of this rank's samples, in an order drawn from the seed and the epoch alone.

    All ranks walk one common order. With `world_size` ranks, rank ``r`` takes the samples
    ``r, r + world_size, ...`` of what is left, so that the batches of one step together are a
    contiguous piece of that order whatever the number of ranks. A position is the length of the
    piece that all ranks have consumed; an epoch goes on from there at another number of ranks
    with each sample still used once.

    Every rank gets the same number of samples, so fewer than `world_size` samples at the end of
    an epoch are left out (other ones in each epoch, when shuffled).

    Parameters
    ----------
    length : int
        Number of samples in the data set.
    rank, world_size : int
    seed : int
    shuffle : bool
    """

    def __init__(
        self,
        length: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}: must be 0 to {world_size - 1} (world_size - 1)")
        if length < 0:
            raise ValueError(f"length={length}: must not be negative")
        self._length = length
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = 0
        self._start = 0

    def place(self, epoch: int, consumed: int = 0) -> None:
        """Begin the next iteration in this epoch, after so many samples (of all ranks)."""
        if not 0 <= consumed <= self._length:
            raise ValueError(
                f"position {consumed} in a data set of {self._length} samples: "
                "the data set has changed since the checkpoint"
            )
        self._epoch = epoch
        self._start = consumed

    def consumed(self, batches: int, batch_size: int) -> int:
        """The position after so many batches of this iteration.

        Parameters
        ----------
        batches : int
            Batches that each rank has consumed since :meth:`place`.
        batch_size : int
            Samples in a batch of one rank; the last batch may be smaller.
        """
        return self._start + self._world_size * min(batches * batch_size, len(self))

    def batched(self, batch_size: int) -> IndexBatches:
        """The indices in batches, for training without a data loader."""
        return IndexBatches(self, batch_size)

    def order(self) -> npt.NDArray[np.int64]:
        """The order of the whole epoch, for all ranks: shape (length,)."""
        if not self._shuffle:
            return np.arange(self._length, dtype=np.int64)
        # A seed sequence mixes both numbers: (1, 0) and (0, 1) are unrelated orders.
        generator = np.random.default_rng((self._seed, self._epoch))
        return generator.permutation(self._length).astype(np.int64, copy=False)

    def __len__(self) -> int:
        """Samples of this rank in the iteration that :meth:`place` set up."""
        return (self._length - self._start) // self._world_size

    def __iter__(self) -> Iterator[int]:
        left = self.order()[self._start :]
        mine = left[self._rank :: self._world_size][: len(self)]
        yield from mine.tolist()


class IndexBatches:
    """Arrays of indices, shaped as a data loader: `sampler`, `batch_size`, ``len``, iteration.

    Parameters
    ----------
    sampler : ResumableSampler
    batch_size : int
        Samples in a batch of one rank; the last batch may be smaller.
    """

    def __init__(self, sampler: ResumableSampler, batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: at least 1")
        self.sampler = sampler
        self.batch_size = batch_size

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + (rest > 0)

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        indices = np.fromiter(self.sampler, dtype=np.int64, count=len(self.sampler))
        for first in range(0, len(indices), self.batch_size):
            yield indices[first : first + self.batch_size]
