"""The processes of one job as those of ``jax.distributed``, joined by ``hpcext launch``."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import sys
from typing import Any

import jax

from hpcext.protocol import environ
from hpcext.training.jax.coordinator import Coordinator, coordinator, let_gloo_listen_on
from hpcext.training.leave import leave
from hpcext.training.ranks import Ranks
from hpcext.training.star import Launched, StarRanks, launched

HEARTBEAT_S = 300
"""Seconds without a heartbeat after which JAX takes a process of several nodes for lost."""

_joined: list[Coordinator] = []
"""The way to the coordinator, while this process has one."""

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
    way = coordinator(here)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would handle the batch system's SIGTERM, which the supervisor turns into a suspension.
    with contextlib.suppress(AttributeError):
        # The setting is missing in JAX 0.6.
        jax.config.update("jax_enable_preemption_service", False)
    gpus = environ().get("CUDA_VISIBLE_DEVICES")
    try:
        jax.distributed.initialize(
            way.address,
            here.size,
            here.rank,
            # It has no effect without GPUs.
            local_device_ids=[here.local_rank]
            if gpus is None or len(gpus.split(",")) >= here.local_size
            else None,
            cluster_detection_method="deactivate",
            coordinator_bind_address=way.address,
            **_patience(here),
        )
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise RuntimeError(f"JAX was used before its {here.size} processes met: {_FIRST}") from None
    way.connected()
    _joined.append(way)
    let_gloo_listen_on(way.node)
    atexit.register(_end)


def _patience(here: Launched) -> dict[str, Any]:
    """Return options by which JAX waits longer for processes of other nodes.

    Their heartbeats are handed on by threads of Python (:mod:`hpcext.training.door`), which wait
    while a call of the script into C, such as reading a large pickle, lets no other thread run.
    """
    known = inspect.signature(jax.distributed.initialize).parameters
    far = here.place.host and "heartbeat_timeout_seconds" in known  # not in JAX 0.6
    return {"heartbeat_timeout_seconds": HEARTBEAT_S} if far else {}


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
    return StarRanks(here), StarRanks(here, "beside")


def part() -> None:
    """Leave the other processes, all together.

    If one process ended alone, JAX would abort the others.
    """
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    for way in _joined:
        way.finish()
    _joined.clear()


def _end() -> None:
    """End at once if an error ends this process; otherwise with the other processes.

    JAX would wait at exit for the other processes, which may wait for this one, and the launcher
    would not learn of the error.
    """
    if getattr(sys, "last_value", None) is not None:
        leave(1)
    part()
