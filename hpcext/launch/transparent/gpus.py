"""The GPUs of this machine, and which processes have memory on them, as NVML tells.

https://docs.nvidia.com/deploy/nvml-api/. It is called through ctypes and in a process of its own,
as for :mod:`hpcext.launch.gpu_faults`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcext.launch import apart
from hpcext.numerals import whole

LOOK_S = 20.0
"""Seconds that a look may take: without persistence mode a driver is slow to wake."""

_LIBRARY = "libnvidia-ml.so.1"
_INSUFFICIENT_SIZE = 7
_UNKNOWN_BYTES = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE."""

_NAME_BYTES = 96
_MOST_PROCESSES = 1 << 16


class GpusError(OSError):
    """The error that NVML tells nothing."""


class Gpu(NamedTuple):
    """A GPU that this process may see.

    Attributes
    ----------
    uuid : str
        ``GPU-`` and 32 hexadecimal digits.
    model : str
    total, free : int
        Bytes of memory.
    mig : bool
        Whether it is divided into instances.
    used : dict
        The bytes of each process with a context on it, by pid.
    mps : list of int
        The pids of processes that share it by MPS.
    """

    uuid: str
    model: str
    total: int
    free: int
    mig: bool
    used: dict[int, int]
    mps: list[int]


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class _Process(ctypes.Structure):
    """``nvmlProcessInfo_t``, version 2, as functions whose names end with ``_v3`` give it."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def look(limit_s: float = LOOK_S) -> list[Gpu]:
    """Return all GPUs, in the order of NVML.

    Parameters
    ----------
    limit_s : float

    Raises
    ------
    GpusError
        NVML tells nothing, or not in time.
    """
    try:
        found = apart.answer(_look, limit_s)
    except OSError as error:
        raise GpusError(f"NVML: {error}") from None
    if isinstance(found, str):
        raise GpusError(f"NVML: {found}")
    return [Gpu._make([*facts, dict(used), mps]) for *facts, used, mps in found]


def visible(gpus: Sequence[Gpu], devices: str | None) -> list[Gpu]:
    """Return the GPUs that a process sees.

    Parameters
    ----------
    gpus : sequence of Gpu
        All of them.
    devices : str or None
        As in ``CUDA_VISIBLE_DEVICES``; None for all.
    """
    if devices is None:
        return list(gpus)
    found: list[Gpu] = []
    for name in filter(None, (each.strip() for each in devices.split(","))):
        index = whole(name)
        if index is not None:
            found += gpus[index : index + 1]
        else:
            found += [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return found


def size(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


# Below: in a process of its own, which answers in JSON.


def _look() -> list[list[Any]] | str:
    """Return a row for each GPU, or why there is none."""
    try:
        nvml = ctypes.CDLL(_LIBRARY)
        _asked(nvml, "nvmlInit_v2")
        return [_facts(nvml, gpu) for gpu in _handles(nvml)]
    except OSError as error:
        return str(error)


def _asked(nvml: ctypes.CDLL, question: str, *about: Any) -> None:
    """Ask what every driver since 570 knows.

    Raises
    ------
    OSError
        It has no answer.
    """
    asked = getattr(nvml, question, None)
    if asked is None:
        raise OSError(f"the driver is too old: it has no {question}")
    if code := asked(*about):
        raise OSError(f"{question} gives error {code}")


def _handles(nvml: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
    count = ctypes.c_uint()
    _asked(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    for index in range(count.value):
        gpu = ctypes.c_void_p()
        _asked(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(gpu))
        yield gpu


def _facts(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> list[Any]:
    memory = _Memory()
    _asked(nvml, "nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
    used = {
        pid: memory.used if bytes_ == _UNKNOWN_BYTES else bytes_
        for pid, bytes_ in _processes(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", gpu)
    }
    mps = [pid for pid, _ in _processes(nvml, "nvmlDeviceGetMPSComputeRunningProcesses_v3", gpu)]
    return [
        _text(nvml, "nvmlDeviceGetUUID", gpu),
        _text(nvml, "nvmlDeviceGetName", gpu),
        memory.total,
        memory.free,
        _is_divided(nvml, gpu),
        list(used.items()),
        mps,
    ]


def _text(nvml: ctypes.CDLL, question: str, gpu: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    _asked(nvml, question, gpu, buffer, ctypes.c_uint(_NAME_BYTES))
    return buffer.value.decode(errors="replace")


def _is_divided(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> bool:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    # Most GPUs do not know the question: they cannot be divided.
    code = nvml.nvmlDeviceGetMigMode(gpu, ctypes.byref(current), ctypes.byref(pending))
    return code == 0 and current.value == 1


def _processes(nvml: ctypes.CDLL, question: str, gpu: ctypes.c_void_p) -> Iterator[tuple[int, int]]:
    """Yield pid and bytes of each process."""
    room = 64
    while room <= _MOST_PROCESSES:
        count, found = ctypes.c_uint(room), (_Process * room)()
        try:
            _asked(nvml, question, gpu, ctypes.byref(count), found)
        except OSError:
            if count.value <= room:
                raise
            # It says how many there are, and more may have come since.
            room = 2 * count.value
            continue
        yield from ((each.pid, each.bytes) for each in found[: count.value])
        return
    raise OSError("too many processes")
