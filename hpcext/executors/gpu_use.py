"""How busy the GPUs of this machine are, as their driver says."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class GpuUse(NamedTuple):
    """Of one GPU.

    Attributes
    ----------
    busy : float or None
        Share of the last second or less in which something ran on it; None where the driver does
        not say, as of a GPU that is divided by MIG.
    used_bytes, all_bytes : int
        Of its memory.
    """

    busy: float | None
    used_bytes: int
    all_bytes: int


def gpu_use(nvml: Any = None) -> dict[str, GpuUse]:
    """Each GPU by its index, in the driver's order; empty without GPU or driver.

    Parameters
    ----------
    nvml : module, optional
        Stands in for ``pynvml``.
    """
    library = importlib.import_module("pynvml") if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return {}
    found = {}
    try:
        for index in range(library.nvmlDeviceGetCount()):
            device = library.nvmlDeviceGetHandleByIndex(index)
            memory = library.nvmlDeviceGetMemoryInfo(device)
            found[str(index)] = GpuUse(_busy(library, device), int(memory.used), int(memory.total))
    except library.NVMLError:
        # One fell off the bus: what the others say is still true.
        return found
    finally:
        library.nvmlShutdown()
    return found


def _busy(library: Any, device: Any) -> float | None:
    try:
        return float(library.nvmlDeviceGetUtilizationRates(device).gpu) / 100
    except library.NVMLError:
        return None
