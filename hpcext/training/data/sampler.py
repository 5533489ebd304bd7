"""The order of samples, resumable in mid-epoch at any number of ranks.

No framework is needed: an instance serves as ``sampler=`` of a PyTorch ``DataLoader`` and as a
plain iterable of indices. :mod:`hpcext.training.batching` divides the same order into whole
batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class Walk:
    """One rank's traversal of a common order of samples, determined by the seed and the epoch.

    Parameters
    ----------
    length : int
        Number of samples in the data set.
    rank, world_size : int
    seed : int
    shuffle : bool

    Attributes
    ----------
    begun : int
        Number of iterations of which a sample was drawn.
    """

    def __init__(
        self, length: int, *, rank: int, world_size: int, seed: int, shuffle: bool
    ) -> None:
        if length < 0:
            raise ValueError(f"length={length}: must not be negative")
        self._length = length
        self._seed = seed
        self._shuffle = shuffle
        self.begun = 0
        self._set_ranks(rank, world_size)

    def begin(self, epoch: int) -> None:
        """Begin the next iteration at the beginning of this epoch, of which nothing is carried."""
        raise NotImplementedError

    def resize(self, rank: int, world_size: int) -> None:
        """Set the rank and the number of ranks from the next ``place()`` on.

        The present iteration, and positions in it, keep the previous ranks.

        Parameters
        ----------
        rank, world_size : int
        """
        self._set_ranks(rank, world_size)

    def _set_ranks(self, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}: must be 0 to {world_size - 1} (world_size - 1)")
        self._rank = rank
        self._world_size = world_size

    def _order_of(self, epoch: int) -> Indices:
        """Return the order of a whole epoch for all ranks, of shape (length,)."""
        if not self._shuffle:
            return np.arange(self._length, dtype=np.int64)
        # A seed sequence mixes both numbers, so that (1, 0) and (0, 1) give unrelated orders.
        generator = np.random.default_rng((self._seed, epoch))
        return generator.permutation(self._length).astype(np.int64, copy=False)


def share(piece: Indices, rank: int, world_size: int) -> Indices:
    """Return one rank's share of a piece of the order; shares differ by at most one sample.

    Parameters
    ----------
    piece : array of int
        Indices of samples.
    rank, world_size : int
    """
    return piece[rank::world_size]


def check_position(consumed: int, samples: int) -> None:
    """Raise ValueError if an epoch of `samples` samples has no such position."""
    if not 0 <= consumed <= samples:
        raise ValueError(
            f"position {consumed} in a data set of {samples} samples: "
            "the data set has changed since the checkpoint"
        )


class ResumableSampler(Walk):
    """A sampler of this rank's indices, in an order drawn from the seed and the epoch alone.

    All ranks walk one common order. With `world_size` ranks, rank ``r`` takes the samples
    ``r, r + world_size, ...`` of the remaining ones, so that the batches of one step together are a
    contiguous piece of that order for any number of ranks. A position is the length of the piece
    that all ranks have consumed. An epoch can go on from there at another number of ranks, with
    each sample still used once.

    Every rank gets the same number of samples, so fewer than `world_size` samples at the end of an
    epoch are left out (other ones in each epoch, if shuffled).

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
        super().__init__(length, rank=rank, world_size=world_size, seed=seed, shuffle=shuffle)
        self.place(0)

    def begin(self, epoch: int) -> None:
        """Begin the next iteration at the beginning of this epoch."""
        self.place(epoch)

    def place(self, epoch: int, consumed: int = 0) -> None:
        """Begin the next iteration in this epoch, after `consumed` samples of all ranks.

        Parameters
        ----------
        epoch : int
        consumed : int
        """
        check_position(consumed, self._length)
        self._epoch = epoch
        self._start = consumed
        # Kept separately, since positions of this iteration are also needed after a resize.
        self._ranks = (self._rank, self._world_size)

    def consumed(self, batches: int, batch_size: int) -> int:
        """Return the position after `batches` batches of this iteration.

        Parameters
        ----------
        batches : int
            Batches that each rank has consumed since :meth:`place`.
        batch_size : int
            Samples in a batch of one rank; the last batch may be smaller.
        """
        return self._start + self._ranks[1] * min(batches * batch_size, len(self))

    def batched(self, batch_size: int) -> IndexBatches:
        """Return the indices in batches, for training without a data loader."""
        return IndexBatches(self, batch_size)

    def order(self) -> Indices:
        """Return the order of the whole epoch for all ranks, of shape (length,)."""
        return self._order_of(self._epoch)

    def __len__(self) -> int:
        """Return this rank's number of samples in the iteration that :meth:`place` set up."""
        return (self._length - self._start) // self._ranks[1]

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        left = self.order()[self._start :]
        yield from share(left, *self._ranks)[: len(self)].tolist()


class IndexBatches:
    """Batches of indices with the interface of a loader: `sampler`, `batch_size`, ``len``.

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

    def __iter__(self) -> Iterator[Indices]:
        indices = np.fromiter(self.sampler, dtype=np.int64, count=len(self.sampler))
        for first in range(0, len(indices), self.batch_size):
            yield indices[first : first + self.batch_size]
