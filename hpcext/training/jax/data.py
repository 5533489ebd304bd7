"""Data for JAX's loops: batches of all processes, at any number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from hpcext.training.batching import ElasticBatches

Load = Callable[[Any], Any]


class Batches:
    """Batches in an order that the seed and the epoch determine, placed on the devices.

    The rows of a batch have the same order on any number of devices and processes, and each process
    loads those that its devices need.

    Parameters
    ----------
    batches : ElasticBatches
        All samples of each batch.
    load : callable
        Given indices, an int64 array of shape (samples,), returns a pytree of NumPy arrays.
    sharding : jax.sharding.Sharding or None
        How a batch is divided; None: it is on the default device.
    """

    def __init__(self, batches: ElasticBatches, load: Load, sharding: Sharding | None) -> None:
        self.batch_sampler = batches
        self._load = load
        self._sharding = sharding
        self._here = _rows_here(sharding, batches.global_batch)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        for rows in self.batch_sampler:
            loaded = self._load(np.asarray(rows, dtype=np.int64)[self._here])
            yield jax.tree_util.tree_map(self._placed, loaded)

    def _placed(self, loaded: Any) -> jax.Array:
        if self._sharding is None:
            return jax.device_put(loaded)
        array = np.asarray(loaded)
        # As in JAX, 64 bits only if they are enabled.
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        shape = (self.batch_sampler.global_batch, *array.shape[1:])

        def part(index: tuple[slice, ...]) -> Any:
            first, end, _ = index[0].indices(shape[0])
            at = int(np.searchsorted(self._here, first))
            here = (slice(at, at + end - first), *index[1:])
            return array[here]

        return jax.make_array_from_callback(shape, self._sharding, part)


def _rows_here(sharding: Sharding | None, global_batch: int) -> npt.NDArray[np.int64]:
    """Return the rows of a batch that the devices of this process need, ascending."""
    if sharding is None:
        return np.arange(global_batch)
    if isinstance(sharding, NamedSharding):
        # Only the first axis matters, which is that of the samples.
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
    places = sharding.addressable_devices_indices_map((global_batch,)).values()
    return np.unique([np.arange(global_batch)[index] for index in places if index is not None])


def gather(arrays: Any) -> Load:
    """Return a function that loads a batch from arrays in host memory, of shape (samples, ...)."""
    return lambda rows: jax.tree_util.tree_map(lambda array: np.asarray(array)[rows], arrays)


def common_length(arrays: Any) -> int:
    """Return the common length of arrays.

    Raises
    ------
    ValueError
        They differ, or there are none.
    """
    lengths = {len(array) for array in jax.tree_util.tree_leaves(arrays)}
    if len(lengths) != 1:
        raise ValueError(f"session.dataset(): arrays of lengths {sorted(lengths)}: must be equal")
    return lengths.pop()


def check_batch(global_batch: int, length: int, sharding: Sharding | None, processes: int) -> None:
    """Raise ValueError unless a batch can be divided among processes and devices.

    Parameters
    ----------
    global_batch : int
        Samples of a step, of all processes.
    length : int
        Samples of the data set.
    sharding : jax.sharding.Sharding or None
        How a batch is divided among devices.
    processes : int
    """
    where = f"session.dataset(global_batch={global_batch})"
    if not 1 <= global_batch <= length:
        raise ValueError(f"{where}: must be 1 to {length}, the number of samples")
    if sharding is None and processes > 1:
        raise ValueError(
            f"{where}: {processes} processes need sharding=, so that a batch is one of all of "
            "them; for example NamedSharding(mesh, PartitionSpec('data')), of a mesh of "
            "jax.devices()"
        )
    parts = _parts(sharding)
    if global_batch % parts:
        raise ValueError(f"{where}: must be a multiple of {parts}, the devices that share it")


def _parts(sharding: Sharding | None) -> int:
    """Return the number of parts into which a sharding divides the samples, if it is known."""
    names = sharding.spec[0] if isinstance(sharding, NamedSharding) and sharding.spec else None
    if names is None or not isinstance(sharding, NamedSharding):
        return 1
    axes = names if isinstance(names, tuple) else (names,)
    return int(np.prod([sharding.mesh.shape[name] for name in axes]))
