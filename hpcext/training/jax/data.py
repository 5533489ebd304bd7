"""Data for JAX's loops: batches of all processes, at any number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding

from hpcext.training.batching import ElasticBatches

Load = Callable[[Any], Any]


class Batches:
    """Batches in an order that the seed and the epoch determine, placed on the devices.

    Parameters
    ----------
    batches : ElasticBatches
        This process's samples of each batch.
    load : callable
        Given indices, an int64 array of shape (samples,), returns a pytree of NumPy arrays.
    sharding : jax.sharding.Sharding or None
        How a batch of all processes is divided; None: it is on the default device.
    """

    def __init__(self, batches: ElasticBatches, load: Load, sharding: Sharding | None) -> None:
        self.batch_sampler = batches
        self._load = load
        self._sharding = sharding

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        for rows in self.batch_sampler:
            loaded = self._load(np.asarray(rows, dtype=np.int64))
            yield jax.tree_util.tree_map(self._placed, loaded)

    def _placed(self, array: Any) -> jax.Array:
        if self._sharding is None:
            return jax.device_put(array)
        found: jax.Array = jax.make_array_from_process_local_data(
            self._sharding, np.asarray(array)
        )
        return found


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
    """Raise ValueError unless a batch can be divided among processes and devices."""
    where = f"session.dataset(global_batch={global_batch})"
    if not 1 <= global_batch <= length:
        raise ValueError(f"{where}: must be 1 to {length}, the number of samples")
    if sharding is None and processes > 1:
        raise ValueError(
            f"{where}: {processes} processes need sharding=, so that a batch is one of all of "
            "them; for example NamedSharding(mesh, PartitionSpec('data')), of a mesh of "
            "jax.devices()"
        )
    parts = max(processes, _parts(sharding))
    if global_batch % parts:
        raise ValueError(f"{where}: must be a multiple of {parts}, the devices that share it")


def _parts(sharding: Sharding | None) -> int:
    """Return the number of parts into which a sharding divides the samples, if it is known."""
    names = sharding.spec[0] if isinstance(sharding, NamedSharding) and sharding.spec else None
    if names is None or not isinstance(sharding, NamedSharding):
        return 1
    axes = names if isinstance(names, tuple) else (names,)
    return int(np.prod([sharding.mesh.shape[name] for name in axes]))
