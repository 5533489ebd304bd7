"""The present use of this machine's GPUs, and whether they are divided or shared.

NVIDIA divides them by MIG, and shares them by MPS; AMD divides them into compute partitions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import psutil

from hpcext.executors import gpus
from hpcext.launch import devices

T = TypeVar("T")

_MPS = "nvidia-cuda-mps"
"""The beginning of the names of MPS's two programs, -control and -server.

It is all that a kernel keeps of them (TASK_COMM_LEN).
"""

_DIVIDED = frozenset({"DPX", "TPX", "QPX", "CPX"})
"""AMD's modes of compute partition, except SPX, in which a GPU is whole."""


class GpuFacts(msgspec.Struct, frozen=True):
    """A GPU as NVML or AMD SMI describes it; None stands for what they do not say.

    Attributes
    ----------
    index : int
        In the driver's order, as ``nvidia-smi`` or ROCm counts.
    name : str
    used : float or None
        Share of the last sample in which a kernel ran; of AMD, in which its graphics engine was
        busy. There is none in MIG mode.
    memory_bytes, memory_used_bytes : int or None
    mig : bool
        Whether it is in MIG mode: divided into instances.
    instances : int
        The number of these.
    mps_clients : int
        Processes that share it through MPS.
    processes : int
        Processes that compute on it directly.
    partition : str
        The mode in which AMD's driver divides a GPU of which this one is a part; empty: whole.
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
    partition: str = ""


def gpu_facts(library: Any = None) -> tuple[GpuFacts, ...]:
    """Return the facts of all GPUs; none without GPU, driver or library.

    Parameters
    ----------
    library : module, optional
        Stands in for ``pynvml``, or for ``amdsmi`` if GPUs are AMD's.
    """
    if devices.name() == devices.ROCR:
        smi = amdsmi() if library is None else library
        if smi is None:
            return ()
        return _read(_amds(smi), smi.amdsmi_init, smi.amdsmi_shut_down, smi.AmdSmiException)
    nvml = importlib.import_module("pynvml") if library is None else library
    return _read(_nvidias(nvml), nvml.nvmlInit, nvml.nvmlShutdown, nvml.NVMLError)


@functools.cache
def amdsmi() -> Any:
    """Return AMD's library, a part of ROCm; None if none can be used.

    Before ROCm 6.3 it does not say which of the driver's GPUs is which.
    """
    try:
        # If its shared library is missing it prints that, and fails with a consequential error: a
        # KeyError (7.0).
        with contextlib.redirect_stdout(io.StringIO()):
            library = importlib.import_module("amdsmi")
    except Exception:
        return None
    return library if hasattr(library, "amdsmi_get_gpu_kfd_info") else None


def _read(
    facts: Iterator[GpuFacts],
    begin: Callable[[], object],
    end: Callable[[], object],
    error: type[Exception],
) -> tuple[GpuFacts, ...]:
    """Return the facts that a library gives between its initialisation and its shutdown."""
    try:
        begin()
    except error:
        return ()
    found = []
    try:
        for gpu in facts:
            found.append(gpu)
    except error:
        pass  # one left while we looked: what the others say is still true
    finally:
        with contextlib.suppress(error):
            end()
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def _said(error: type[Exception], ask: Callable[..., T], *about: Any) -> T | None:
    """Return an answer; each of the questions is unsupported by some GPU or driver."""
    try:
        return ask(*about)
    except error:
        return None


def _nvidias(nvml: Any) -> Iterator[GpuFacts]:
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        said = functools.partial(_said, nvml.NVMLError)
        use = said(nvml.nvmlDeviceGetUtilizationRates, gpu)
        memory = said(nvml.nvmlDeviceGetMemoryInfo, gpu)
        mode = said(nvml.nvmlDeviceGetMigMode, gpu)  # now, and after the next reset
        mig = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
        places = said(nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0 if mig else 0
        instances = [
            said(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, at) for at in range(places)
        ]
        yield GpuFacts(
            index,
            text(nvml.nvmlDeviceGetName(gpu)),
            None if use is None else use.gpu / 100,
            None if memory is None else int(memory.total),
            None if memory is None else int(memory.used),
            mig,
            sum(each is not None for each in instances),
            len(said(nvml.nvmlDeviceGetMPSComputeRunningProcesses, gpu) or ()),
            len(said(nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ()),
        )


def _amds(smi: Any) -> Iterator[GpuFacts]:
    """Yield the facts of AMD's GPUs, by its Python API: https://rocm.docs.amd.com/projects/amdsmi/.

    A value that is not available is an exception or, in a dictionary, ``"N/A"``.
    """
    said = functools.partial(_said, smi.AmdSmiException)
    vram = smi.AmdSmiMemoryType.VRAM
    # It goes by places on the bus, ROCm by the driver's list.
    places = {gpu.kfd_id: index for index, gpu in enumerate(gpus.amd_gpus())}
    for gpu in smi.amdsmi_get_processor_handles():
        index = places.get((said(smi.amdsmi_get_gpu_kfd_info, gpu) or {}).get("kfd_id", 0))
        if index is None:
            continue  # cgroups keep it from us
        chip = smi.amdsmi_get_gpu_asic_info(gpu)
        name = chip["market_name"]
        busy = (said(smi.amdsmi_get_gpu_activity, gpu) or {}).get("gfx_activity")
        mode = said(smi.amdsmi_get_gpu_compute_partition, gpu)
        yield GpuFacts(
            index,
            chip["target_graphics_version"] if name == "N/A" else name,
            busy / 100 if isinstance(busy, int) else None,
            said(smi.amdsmi_get_gpu_memory_total, gpu, vram),
            said(smi.amdsmi_get_gpu_memory_usage, gpu, vram),
            processes=len(said(smi.amdsmi_get_gpu_process_list, gpu) or ()),
            partition=mode if mode in _DIVIDED else "",
        )


def text(said: str | bytes) -> str:
    """Return NVML's text; before version 11.5 nvidia-ml-py gave bytes."""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def mps_runs() -> bool:
    """Return whether the daemon of MPS runs on this machine, whoever started it.

    https://docs.nvidia.com/deploy/mps/: a client finds it by a pipe in ``CUDA_MPS_PIPE_DIRECTORY``.
    """
    return any(
        (process.info["name"] or "").startswith(_MPS) for process in psutil.process_iter(["name"])
    )


def sharing(found: tuple[GpuFacts, ...]) -> str:
    """Return how GPUs are divided or shared, in words; empty if they are not."""
    words = []
    for gpu in found:
        if gpu.mig:
            words.append(f"GPU {gpu.index} is in MIG mode, {gpu.instances} instances")
        if gpu.mps_clients:
            words.append(f"GPU {gpu.index} is shared by {gpu.mps_clients} processes through MPS")
    modes = sorted({gpu.partition for gpu in found} - {""})
    for mode in modes:
        parts = [gpu.index for gpu in found if gpu.partition == mode]
        # Counted: a node of eight may be 64 parts.
        many = len(parts) > 1
        which = f"{len(parts)} GPUs are" if many else f"GPU {parts[0]} is"
        words.append(f"{which} {'compute partitions' if many else 'a compute partition'} ({mode})")
    return "; ".join(words)
