"""The processes of one job as those of ``jax.distributed``, joined by ``hpcext launch``."""

from __future__ import annotations

import atexit
import contextlib
import functools
import socket
import sys
import time

import jax

from hpcext.documents import write_file
from hpcext.protocol import environ
from hpcext.training.leave import leave
from hpcext.training.ranks import Ranks
from hpcext.training.star import Launched, StarRanks, launched

_PAUSE_S = 0.01
_PLACE = "jax-coordinator"
_FIRST = (
    "call hpcext.training.jax.initialize() before anything else of JAX: before an array is made, "
    "and before the devices are asked for"
)


@functools.cache
def initialize() -> None:
    """Join the processes of this job, if there are several; call it before anything else of JAX.

    Under ``hpcext launch`` with several ranks it calls ``jax.distributed.initialize``, gives each
    process a GPU of its own if there are enough, and has gloo connect them on the CPU. Otherwise it
    does nothing, and this process has all devices.

    Raises
    ------
    RuntimeError
        JAX has been used before, or there are several processes that ``hpcext launch`` did not
        start.
    SystemExit
        This process was started to join running processes, which JAX does not support.
    """
    here = launched("JAX")
    if here is None:
        return
    address = _meet(here)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would handle the batch system's SIGTERM, which the supervisor turns into a suspension.
    with contextlib.suppress(AttributeError):
        # The setting is missing in JAX 0.6.
        jax.config.update("jax_enable_preemption_service", False)
    gpus = environ().get("CUDA_VISIBLE_DEVICES")
    try:
        jax.distributed.initialize(
            address,
            here.size,
            here.rank,
            # It has no effect without GPUs.
            local_device_ids=[here.rank]
            if gpus is None or len(gpus.split(",")) >= here.size
            else None,
            cluster_detection_method="deactivate",
            # All processes are on this node, so no other node needs to reach it.
            coordinator_bind_address=address,
        )
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise RuntimeError(f"JAX was used before its {here.size} processes met: {_FIRST}") from None
    atexit.register(_end_after_error)


def join() -> tuple[Ranks, Ranks]:
    """Join the processes of this job, for a session.

    Returns
    -------
    ranks, beside : Ranks
        Two groups; a thread may communicate in the second one while the training uses the first.

    Raises
    ------
    RuntimeError
        There are several processes that :func:`initialize` has not joined, or that ``hpcext
        launch`` did not start.
    """
    joined = jax.distributed.is_initialized()
    here = launched("JAX", jax.process_count() if joined else 1)
    if here is None:
        return Ranks(), Ranks()
    if not joined:
        raise RuntimeError(f"{here.size} processes, each training on its own: {_FIRST}")
    if (jax.process_index(), jax.process_count()) != (here.rank, here.size):
        raise RuntimeError(
            f"this is process {jax.process_index()} of {jax.process_count()} to JAX, but rank "
            f"{here.rank} of {here.size} to `hpcext launch`: have "
            "hpcext.training.jax.initialize() join them, not jax.distributed.initialize()"
        )
    return StarRanks(*here), StarRanks(*here, "beside.socket")


def part() -> None:
    """Leave the other processes, all together.

    If one process ended alone, JAX would abort the others.
    """
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _meet(here: Launched) -> str:
    """Return the address at which the processes meet; rank 0 chooses it."""
    path = here.directory / _PLACE
    if here.rank == 0:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            host, port = holder.getsockname()
        write_file(path, f"{host}:{port}".encode(), durable=False)
    # Without a time limit, because the launcher ends all ranks when one fails.
    while not path.exists():
        time.sleep(_PAUSE_S)
    return path.read_text(encoding="ascii")


def _end_after_error() -> None:
    """End at once if an error ends this process.

    JAX would wait at exit for the other processes, which may wait for this one, and the launcher
    would not learn of the error.
    """
    if getattr(sys, "last_value", None) is not None:
        leave(1)
