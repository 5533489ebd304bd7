"""Which GPUs this machine has and this process may use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from hpcext import protocol


def find_gpus(nvml: Any = None, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """GPU indices, in the driver's order (as ``nvidia-smi`` counts).

    Parameters
    ----------
    nvml : module, optional
        Stands in for ``pynvml``.
    environ : Mapping[str, str], optional
        Stands in for the environment, of which ``CUDA_VISIBLE_DEVICES`` is respected.

    Returns
    -------
    tuple of int
        In the order of ``CUDA_VISIBLE_DEVICES`` if that is set; empty without GPU or driver.
    """
    library = importlib.import_module("pynvml") if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return ()
    try:
        identities = _identities(library)
    except library.NVMLError:
        return ()
    finally:
        library.nvmlShutdown()
    chosen = (protocol.environ() if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(range(len(identities)))
    return _chosen(chosen, identities)


def _identities(nvml: Any) -> list[str]:
    """The UUID of each GPU, by index."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        # Before version 11.5 nvidia-ml-py gave bytes.
        found.append(uuid.decode() if isinstance(uuid, bytes) else str(uuid))
    return found


def _chosen(text: str, identities: list[str]) -> tuple[int, ...]:
    """Read ``CUDA_VISIBLE_DEVICES`` as CUDA does: what follows an invalid entry is not seen.

    CUDA C++ Programming Guide, "CUDA Environment Variables". An entry is an index or a UUID, of
    which the beginning is enough if only one GPU has it.
    """
    indices: list[int] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdecimal() and len(entry) < 6:
            matching = [int(entry)] if int(entry) < len(identities) else []
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
