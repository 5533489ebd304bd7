"""The GPU of this machine that jobs share through NVIDIA's MPS, as seats."""

from __future__ import annotations

import importlib
import shutil
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpcext.core.errors import InputError
from hpcext.core.values import Node
from hpcext.executors.gpus import uuid_of
from hpcext.launch import devices, mps

if TYPE_CHECKING:
    from hpcext.executors.gpu_facts import GpuFacts

MOST = 16
"""Seats of one GPU. MPS has up to 48 clients on one; more than a few are slower than in turn."""

SUFFIX = "/mps"
"""What the name of a machine is followed by in that of its shared GPU."""

VOLTA = 7
"""Compute capability from which on a client can be taken off the GPU while its neighbours go on."""


class Shared(msgspec.Struct, frozen=True):
    """A shared GPU.

    Attributes
    ----------
    index : int
        In the driver's order.
    seats : int
    """

    index: int
    seats: int

    def as_node(self, machine: str) -> Node:
        """What it offers."""
        return Node(machine + SUFFIX, self.seats, seats=self.seats)

    def names(self, machine: str) -> tuple[str, ...]:
        """Its seats: ``MACHINE/mps:3a``, ``MACHINE/mps:3b``, ..."""
        letters = string.ascii_lowercase[: self.seats]
        return tuple(f"{machine}{SUFFIX}:{self.index}{letter}" for letter in letters)


def machine_of(node: str) -> str:
    """The machine that a node is, or is a GPU of."""
    return node.removesuffix(SUFFIX)


def of_seat(directory: Path, shared: Shared) -> dict[str, Any]:
    """What an attempt on a seat is told: ``environ``, and ``mps`` for its supervisor.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot.
    shared : Shared

    Raises
    ------
    OSError
        The driver does not say which GPU that is.
    """
    uuid = uuid_of(shared.index)
    where = {"directory": str(directory / f"mps-{shared.index}"), "device": uuid}
    # By its UUID: an index would count among the GPUs that the daemon sees.
    return {"environ": {"CUDA_VISIBLE_DEVICES": uuid, **_limits(shared)}, "mps": where}


def _limits(shared: Shared) -> dict[str, str]:
    """An equal part of the memory; of the processors twice that, which NVIDIA's page advises."""
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(100, -(-200 // shared.seats)))}
    if (most := memory(shared)) is not None:
        # A client's own first GPU is the only one that it sees.
        limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={most >> 20}M"
    return limits


def memory(shared: Shared | None) -> int | None:
    """Bytes of the GPU that a job on a seat has; None where the driver does not say it."""
    known = {gpu.index: gpu.memory_bytes for gpu in _facts()} if shared else {}
    if shared is None or not (every := known.get(shared.index)):
        return None
    return every // shared.seats


def _facts() -> tuple[GpuFacts, ...]:
    from hpcext.executors.gpu_facts import gpu_facts  # noqa: PLC0415  (slow, and rarely needed)

    return tuple(gpu_facts())


def check(shared: Shared, where: str) -> None:
    """Refuse what cannot be shared so.

    Raises
    ------
    InputError
        Says why, and what to do.
    """
    if devices.name() != devices.CUDA:
        raise InputError("MPS is NVIDIA's, and this machine's GPUs are not", where=where)
    if shutil.which(mps.CONTROL) is None:
        raise InputError(
            f"{mps.CONTROL} is not in PATH",
            where=where,
            do="install it: it comes with NVIDIA's driver, in Debian as nvidia-cuda-mps",
        )
    found = next((gpu for gpu in _facts() if gpu.index == shared.index), None)
    if found is not None and found.mig:
        raise InputError(
            f"GPU {shared.index} is in MIG mode, where instances are shared and not the GPU",
            where=where,
            do="leave --mps out: each instance is a GPU already",
        )
    if (known := _capability(shared.index)) is not None and known < VOLTA:
        raise InputError(
            f"GPU {shared.index} is older than Volta (compute capability {known})",
            where=where,
            valid="a GPU whose MPS can take off one job and leave the others alone",
        )


def _capability(index: int, nvml: Any = None) -> int | None:
    """The first number of a GPU's compute capability, where the driver says it."""
    library = importlib.import_module("pynvml") if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    try:
        gpu = library.nvmlDeviceGetHandleByIndex(index)
        return int(library.nvmlDeviceGetCudaComputeCapability(gpu)[0])
    except library.NVMLError:
        return None
    finally:
        library.nvmlShutdown()
