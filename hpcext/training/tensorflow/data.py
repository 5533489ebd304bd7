"""Data for TensorFlow's loops that begins at the place of the training."""

from __future__ import annotations

import atexit
import queue
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hpcext.training.batching import ElasticBatches
from hpcext.training.checkpoint import CheckpointError
from hpcext.training.data.sampler import IndexBatches, ResumableSampler

_reading: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


@atexit.register
def _end_reading() -> None:
    """Close iterators that an error left half read.

    Otherwise the threads of ``tf.data`` would later wait for Python, and the interpreter for them.
    """
    for each in list(_reading):
        each.close()


class Batches(IndexBatches):
    """Batches of this rank in the order of a sampler, read by the threads of ``tf.data``.

    Parameters
    ----------
    sampler : ResumableSampler
    batch_size : int
        Samples in a batch of one rank; the last batch may be smaller.
    load : callable
        Given indices, an int64 tensor of shape (batch,), returns the batch; ``tf.data`` makes a
        graph of it.
    """

    def __init__(
        self, sampler: ResumableSampler, batch_size: int, load: Callable[[Any], Any]
    ) -> None:
        super().__init__(sampler, batch_size)
        self._load = load

    def __iter__(self) -> Iterator[Any]:
        indices = np.fromiter(self.sampler, dtype=np.int64, count=len(self.sampler))
        data = tf.data.Dataset.from_tensor_slices(indices).batch(self.batch_size)
        data = data.map(self._load, num_parallel_calls=tf.data.AUTOTUNE)
        return iter(data.prefetch(tf.data.AUTOTUNE))


class DividedBatches:
    """Batches of this rank, whose sizes follow the division at the time their samples are drawn.

    Parameters
    ----------
    batches : ElasticBatches
    load : callable
        As for :class:`Batches`.
    ahead : int
        Number of batches that ``tf.data`` may read ahead in its threads. Their samples are drawn,
        so a new division applies after them.
    """

    def __init__(self, batches: ElasticBatches, load: Callable[[Any], Any], ahead: int) -> None:
        if ahead < 0:
            raise ValueError(f"ahead={ahead}: must not be negative")
        self.batch_sampler = batches
        self._load = load
        self._ahead = ahead

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        reading = self._read()
        _reading.add(reading)
        return reading

    def _read(self) -> Generator[Any, None, None]:
        chosen = iter(self.batch_sampler)
        # This limits how far tf.data reads ahead: only this thread draws the samples.
        rows: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
        data = tf.data.Dataset.from_generator(
            lambda: iter(rows.get, None), output_signature=tf.TensorSpec((None,), tf.int64)
        )
        source = iter(data.map(self._load).prefetch(tf.data.AUTOTUNE))
        try:
            for _ in range(self._ahead):
                rows.put(next(chosen, None))
            for _ in range(len(self)):
                rows.put(next(chosen, None))
                yield next(source)
        finally:
            rows.put(None)
            del source


class Skipped:
    """A data set that begins some batches later, without loading the skipped ones.

    Parameters
    ----------
    data : tf.data.Dataset
    batches : int
        Number of batches to skip.

    Raises
    ------
    CheckpointError
        The data set has fewer batches.
    """

    def __init__(self, data: tf.data.Dataset, batches: int) -> None:
        count = int(data.cardinality())
        # A negative number means infinite, or not known before reading.
        if 0 <= count < batches:
            raise CheckpointError(
                f"the data set ends after {count} batches, but {batches} were consumed",
                do="resume with the data and batch size that the training began with",
            )
        self._data = data
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        # The caller skips up to its place; these batches are not read from the data set.
        yield from (None for _ in range(self._batches))
        yield from self._data.skip(self._batches)


def gather(arrays: Any) -> Callable[[Any], Any]:
    """Return a function that loads a batch from arrays in memory.

    Parameters
    ----------
    arrays : array or nested tuple, list, dict of arrays
        Each of shape (samples, ...).
    """
    tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
    return lambda rows: tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)


def common_length(arrays: Any) -> int:
    """Return the common length of arrays.

    Raises
    ------
    ValueError
        The lengths differ.
    """
    lengths = {len(array) for array in tf.nest.flatten(arrays)}
    if len(lengths) != 1:
        raise ValueError(f"arrays of lengths {sorted(lengths)}: must be equal")
    return lengths.pop()


def reshuffles(data: Any) -> bool:
    """Return whether a data set draws another order each time it is iterated over.

    TensorFlow has no public name for that; if it is not found, the answer is no.
    """
    while data is not None:
        if getattr(data, "_reshuffle_each_iteration", False):
            return True
        data = getattr(data, "_input_dataset", None)
    return False
