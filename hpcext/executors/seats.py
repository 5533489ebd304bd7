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
"""The largest number of seats: MPS has up to 48 clients, but many are slower than taking turns."""

SUFFIX = "/mps"
"""The suffix that turns a machine's name into that of its shared GPU."""

VOLTA = 7
"""The compute capability from which on a client can be taken off a GPU without its neighbours."""


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
        """Return the node that it offers."""
        return Node(machine + SUFFIX, self.seats, seats=self.seats)

    def names(self, machine: str) -> tuple[str, ...]:
        """Return its seats: ``MACHINE/mps:3a``, ``MACHINE/mps:3b``, ..."""
        letters = string.ascii_lowercase[: self.seats]
        return tuple(f"{machine}{SUFFIX}:{self.index}{letter}" for letter in letters)


def machine_of(node: str) -> str:
    """Return the machine that a node is, or is a GPU of."""
    return node.removesuffix(SUFFIX)


def of_seat(directory: Path, shared: Shared) -> dict[str, Any]:
    """Return the additions for an attempt on a seat: ``environ``, and ``mps`` for its supervisor.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    shared : Shared

    Raises
    ------
    OSError
        The driver does not say which GPU that is.
    """
    uuid = uuid_of(shared.index)
    where = {"directory": str(directory / f"mps-{shared.index}"), "device": uuid}
    # Named by its UUID, as an index would count among the GPUs that the daemon sees.
    return {"environ": {"CUDA_VISIBLE_DEVICES": uuid, **_limits(shared)}, "mps": where}


def _limits(shared: Shared) -> dict[str, str]:
    """Return an equal share of the memory, and twice that of the processors, as NVIDIA advises."""
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(100, -(-200 // shared.seats)))}
    if (most := memory(shared)) is not None:
        # A client's own first GPU is the only one that it sees.
        limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={most >> 20}M"
    return limits


def memory(shared: Shared | None) -> int | None:
    """Return the bytes of the GPU that a job on a seat has; None if the driver does not say."""
    known = {gpu.index: gpu.memory_bytes for gpu in _facts()} if shared else {}
    if shared is None or not (every := known.get(shared.index)):
        return None
    return every // shared.seats


def _facts() -> tuple[GpuFacts, ...]:
    from hpcext.executors.gpu_facts import gpu_facts  # noqa: PLC0415  (slow, and rarely needed)

    return tuple(gpu_facts())


def check(shared: Shared, where: str) -> None:
    """Refuse a GPU that cannot be shared in this way.

    Raises
    ------
    InputError
        Says why, and what to do.
    """
    if devices.name() != devices.CUDA:
        raise InputError("MPS works with NVIDIA GPUs only, and this machine has none", where=where)
    if shutil.which(mps.CONTROL) is None:
        raise InputError(
            f"{mps.CONTROL} is not in PATH",
            where=where,
            do="install it: it comes with NVIDIA's driver, in Debian as nvidia-cuda-mps",
        )
    found = next((gpu for gpu in _facts() if gpu.index == shared.index), None)
    if found is not None and found.mig:
        raise InputError(
            f"GPU {shared.index} is in MIG mode: jobs are given its instances, and cannot share "
            "the GPU itself",
            where=where,
            do="leave out --mps: each instance counts as a GPU already",
        )
    if (known := _capability(shared.index)) is not None and known < VOLTA:
        raise InputError(
            f"GPU {shared.index} is older than Volta (compute capability {known})",
            where=where,
            valid="a GPU whose MPS can remove one job without disturbing the others",
        )


def _capability(index: int, nvml: Any = None) -> int | None:
    """Return the major number of a GPU's compute capability, if the driver reports it."""
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
