"""The GPUs that this machine has and this process may use."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcext import protocol
from hpcext.launch import devices
from hpcext.numerals import whole

AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def find_gpus(nvml: Any = None, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """Return GPU indices, in the driver's order (as ``nvidia-smi`` counts).

    Parameters
    ----------
    nvml : module, optional
        Stands in for ``pynvml``.
    environ : Mapping[str, str], optional
        Stands in for the environment, whose variable that names GPUs is respected.

    Returns
    -------
    tuple of int
        In the order of that variable if it is set; empty without GPU or driver.
    """
    chosen = devices.said(protocol.environ() if environ is None else environ)
    if devices.name() == devices.ROCR:
        identities = [gpu.identity for gpu in amd_gpus()]
    else:
        identities = _nvidias(nvml)
    if chosen is None:
        return tuple(range(len(identities)))
    return _chosen(chosen, identities)


def uuid_of(index: int, nvml: Any = None) -> str:
    """Return the UUID of an NVIDIA GPU, by which CUDA knows it however many GPUs it sees.

    Raises
    ------
    OSError
        The driver has no such GPU.
    """
    identities = _nvidias(nvml)
    if index >= len(identities):
        raise OSError(errno.ENODEV, f"the driver has no GPU {index}")
    return identities[index]


class AmdGpu(NamedTuple):
    """A GPU as AMD's driver in the kernel lists it.

    Attributes
    ----------
    kfd_id : int
        The driver's number for it.
    identity : str
        A name for it in ``ROCR_VISIBLE_DEVICES``.
    """

    kfd_id: int
    identity: str


def amd_gpus(nodes: Path = AMD_NODES) -> list[AmdGpu]:
    """Return AMD's GPUs, in the order in which ROCm counts them.

    A node of the driver is a processor or a GPU (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c);
    an MI250X is two GPUs.
    """
    found = []
    for node in sorted(nodes.glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            # 0: a processor. Unreadable: a GPU that cgroups keep from us.
            kfd_id = int((node / "gpu_id").read_text())
            facts = dict(line.split() for line in (node / "properties").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if kfd_id:
            # As rocminfo writes it.
            found.append(AmdGpu(kfd_id, f"GPU-{int(facts.get('unique_id', 0)):016x}"))
    return found


def _nvidias(nvml: Any) -> list[str]:
    """Return the UUID of each NVIDIA GPU."""
    library = importlib.import_module("pynvml") if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return []
    try:
        return _identities(library)
    except library.NVMLError:
        return []
    finally:
        library.nvmlShutdown()


def _identities(nvml: Any) -> list[str]:
    """Return the UUID of each GPU, by index."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        # Before version 11.5 nvidia-ml-py gave bytes.
        found.append(uuid.decode() if isinstance(uuid, bytes) else str(uuid))
    return found


def _chosen(text: str, identities: list[str]) -> tuple[int, ...]:
    """Read a variable that names GPUs as CUDA and ROCm do: nothing after an invalid entry counts.

    CUDA C++ Programming Guide, "CUDA Environment Variables". An entry is an index or a UUID, of
    which the beginning is enough if only one GPU has it.
    """
    indices: list[int] = []
    for entry in (part.strip() for part in text.split(",")):
        if (number := whole(entry)) is not None:
            matching = [number] if number < len(identities) else []
        else:
            matching = [
                index
                for index, uuid in enumerate(identities)
                if entry.startswith("GPU-") and uuid.startswith(entry)
            ]
        if len(matching) != 1 or matching[0] in indices:
            break
        indices.append(matching[0])
    return tuple(indices)
