"""Data for ``model.fit`` that begins at the place of the training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from hpcext.training.data.sampler import Indices, ResumableSampler

Load = Callable[[Indices], Any]


class Order(ResumableSampler):
    """A sampler for one process, with its order in memory, since threads read parts of it.

    Attributes
    ----------
    rows : numpy.ndarray of int64
        Remaining indices of the present epoch.
    """

    rows: Indices

    def place(self, epoch: int, consumed: int = 0) -> None:
        """Begin the next iteration in this epoch, after `consumed` samples."""
        super().place(epoch, consumed)
        self.rows = self.order()[consumed:]


class Data(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches in an order that resumes in mid-epoch.

    A batch is that of all workers together, and ``tf.distribute`` gives each worker its part. So
    the place in an epoch does not depend on the number of workers.

    Parameters
    ----------
    sampler : Order
    batch_size : int
        Samples in a batch of all workers; the last batch may be smaller.
    load : callable
        Given indices of samples, shape (batch,), int64, returns the batch.
    parts : int
        Number of workers that share a batch; a last batch with fewer samples is left out.
    threads : int
        Number of threads that load batches ahead.
    """

    def __init__(
        self, sampler: Order, batch_size: int, load: Load, *, parts: int = 1, threads: int = 1
    ) -> None:
        super().__init__(workers=threads)
        if batch_size < parts:
            raise ValueError(f"batch_size={batch_size}: at least {parts}, one for each worker")
        self.sampler = sampler
        self.batch_size = batch_size
        self._load = load
        self._parts = parts

    def __len__(self) -> int:
        """Return the number of remaining batches of the sampler's epoch."""
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + (rest >= self._parts)

    def __getitem__(self, index: int) -> Any:
        first = index * self.batch_size
        return self._load(self.sampler.rows[first : first + self.batch_size])

    def example(self) -> Any:
        """Return a batch of one sample, for its shapes and types."""
        batch = self._load(np.zeros(1, dtype=np.int64))
        return batch if isinstance(batch, tuple) else (batch,)

    def __iter__(self) -> Iterator[Any]:
        # For the session, which counts the batches; Keras gets them by index.
        return itertools.repeat(None)


def gather(arrays: Any) -> tuple[int, Load]:
    """Return the number of samples in arrays, and a function that takes some of them.

    Parameters
    ----------
    arrays : nested tuple, list or dict of arrays
        Each of shape (samples, ...).

    Raises
    ------
    ValueError
        Their lengths differ.
    TypeError
        A part is not an array.
    """
    lengths = set()
    for array in keras.tree.flatten(arrays):
        if not hasattr(array, "shape") or not hasattr(array, "__getitem__"):
            raise TypeError(
                f"fit(x): a {type(array).__name__} cannot be resumed in mid-epoch; valid: arrays, "
                "or a number of samples and load=, indices to batch"
            )
        lengths.add(int(array.shape[0]))
    if len(lengths) != 1:
        raise ValueError(f"arrays of lengths {sorted(lengths)}: must be equal")
    return lengths.pop(), lambda rows: keras.tree.map_structure(lambda each: each[rows], arrays)
