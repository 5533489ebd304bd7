"""What the GPUs of this machine are doing, and whether they are divided (MIG) or shared (MPS)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import psutil

T = TypeVar("T")

_MPS = "nvidia-cuda-mps"
"""How the names of its two programs, -control and -server, begin: all that a kernel keeps of them,
TASK_COMM_LEN."""


class GpuFacts(msgspec.Struct, frozen=True):
    """A GPU, by NVML; None is what it does not say.

    Attributes
    ----------
    index : int
        In the driver's order, as ``nvidia-smi`` counts.
    name : str
    used : float or None
        Share of the last sample in which a kernel ran. NVML has none in MIG mode.
    memory_bytes, memory_used_bytes : int or None
    mig : bool
        It is in MIG mode: divided into instances.
    instances : int
        How many of these there are.
    mps_clients : int
        Processes that share it through MPS.
    processes : int
        That compute on it by themselves.
    """

    index: int
    name: str
    used: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    mig: bool = False
    instances: int = 0
    mps_clients: int = 0
    processes: int = 0


def gpu_facts(nvml: Any = None) -> tuple[GpuFacts, ...]:
    """Those of all GPUs; empty without GPU or driver.

    Parameters
    ----------
    nvml : module, optional
        Stands in for ``pynvml``.
    """
    library = importlib.import_module("pynvml") if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return ()
    found = []
    try:
        for gpu in _facts(library):
            found.append(gpu)
    except library.NVMLError:
        pass  # one left while we looked: what the others say is still true
    finally:
        library.nvmlShutdown()
    return tuple(found)


def _facts(nvml: Any) -> Iterator[GpuFacts]:
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)

        def said(ask: Callable[..., T], *more: Any, gpu: Any = gpu) -> T | None:
            # Each of them is not supported by some GPU or driver.
            try:
                return ask(gpu, *more)
            except nvml.NVMLError:
                return None

        use: Any = said(nvml.nvmlDeviceGetUtilizationRates)
        memory: Any = said(nvml.nvmlDeviceGetMemoryInfo)
        mode: Any = said(nvml.nvmlDeviceGetMigMode)  # now, and after the next reset
        mig = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
        places = said(nvml.nvmlDeviceGetMaxMigDeviceCount) or 0 if mig else 0
        instances = [said(nvml.nvmlDeviceGetMigDeviceHandleByIndex, at) for at in range(places)]
        yield GpuFacts(
            index,
            text(nvml.nvmlDeviceGetName(gpu)),
            None if use is None else use.gpu / 100,
            None if memory is None else int(memory.total),
            None if memory is None else int(memory.used),
            mig,
            sum(each is not None for each in instances),
            len(said(nvml.nvmlDeviceGetMPSComputeRunningProcesses) or ()),
            len(said(nvml.nvmlDeviceGetComputeRunningProcesses) or ()),
        )


def text(said: str | bytes) -> str:
    """What NVML says; before version 11.5 nvidia-ml-py gave bytes."""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def mps_runs() -> bool:
    """Whether the daemon of MPS is on this machine, whoever started it.

    https://docs.nvidia.com/deploy/mps/: a client finds it by a pipe in ``CUDA_MPS_PIPE_DIRECTORY``.
    """
    return any(
        (process.info["name"] or "").startswith(_MPS) for process in psutil.process_iter(["name"])
    )


def sharing(found: tuple[GpuFacts, ...]) -> str:
    """How GPUs are divided or shared, in words; empty where they are not."""
    words = []
    for gpu in found:
        if gpu.mig:
            words.append(f"GPU {gpu.index} is in MIG mode, {gpu.instances} instances")
        if gpu.mps_clients:
            words.append(f"GPU {gpu.index} is shared by {gpu.mps_clients} processes through MPS")
    return "; ".join(words)
