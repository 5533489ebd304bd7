"""The workers of one job as a TensorFlow cluster, formed in the rendezvous of ``hpcext launch``."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcext.documents import write_file
from hpcext.protocol import environ
from hpcext.training.ranks import Ranks
from hpcext.training.star import Launched, StarRanks, launched

_PAUSE_S = 0.01


class MultiWorkerStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """TensorFlow's strategy, with a ``reduce`` that accepts what ``fit`` of Keras 3 passes.

    Keras 3.15 reduces a whole batch (a tuple, for the shapes in it), and scalars along axis 0.
    TensorFlow 2.21 refuses both, so that ``fit`` does not work with its own class.
    """

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Reduce as TensorFlow does; for a batch, return this worker's part."""
        here = self.experimental_local_results
        if isinstance(value, tuple | list | dict):
            return tf.nest.map_structure(lambda part: here(part)[0], value)
        if axis is not None and all(part.shape.rank == 0 for part in here(value)):
            axis = None
        return super().reduce(reduce_op, value, axis)


@functools.cache
def strategy() -> tf.distribute.Strategy:
    """Return the strategy for model and optimizer: all workers of the job, or this process.

    Call it before anything else of TensorFlow. Under ``hpcext launch`` with several ranks it sets
    ``TF_CONFIG``, gives each worker a GPU of its own if there are enough, and returns a
    ``MultiWorkerMirroredStrategy``; otherwise it returns the default strategy.

    Raises
    ------
    RuntimeError
        There are several workers, and ``hpcext launch`` did not start them.
    SystemExit
        This process was started to join running workers, which TensorFlow does not support.
    """
    here = _launched()
    if here is None:
        return tf.distribute.get_strategy()
    directory, rank, size = here.place.directory, here.rank, here.size
    _choose_gpu(rank, size)
    with socket.socket() as holder:
        # The port is reserved until all know it, and released just before TensorFlow listens on it.
        holder.bind(("127.0.0.1", 0))
        host, port = holder.getsockname()
        write_file(directory / f"worker-{rank}", f"{host}:{port}".encode(), durable=False)
        workers = [_read(directory / f"worker-{peer}") for peer in range(size)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    )
    return MultiWorkerStrategy()


def join() -> Ranks:
    """Join the ranks of this job, for a session.

    Raises
    ------
    RuntimeError
        There are several workers, and :func:`strategy` was not called, or ``hpcext launch`` did
        not start them.
    """
    here = _launched()
    if here is None:
        return Ranks()
    if strategy.cache_info().currsize == 0:
        raise RuntimeError(
            f"{here.size} workers, each training on its own: make model and optimizer in "
            "`with hpcext.training.tensorflow.strategy().scope():`, before the session"
        )
    return StarRanks(here)


def _launched() -> Launched | None:
    """Return how this worker was started; None if it is alone."""
    listed = json.loads(environ().get("TF_CONFIG") or "{}").get("cluster", {}).get("worker", [])
    here = launched("TensorFlow", len(listed))
    if here is not None and here.size > here.local_size:
        raise SystemExit(
            "hpcext: the workers of TensorFlow are on several nodes, where their servers would run "
            "whatever anybody sends them: give the job one node"
        )
    return here


def _choose_gpu(rank: int, size: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= size:
        tf.config.set_visible_devices(gpus[rank], "GPU")


def _read(path: Path) -> str:
    # Without a time limit, because the launcher ends all ranks when one fails.
    while not path.exists():
        time.sleep(_PAUSE_S)
    return path.read_text(encoding="ascii")
