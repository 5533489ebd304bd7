"""The faults of NVIDIA GPUs, as NVML and the kernel's log tell them once an attempt has failed.

NVML is called through ctypes, in a process of its own, as a GPU that has fallen off its bus can
make a call hang. https://docs.nvidia.com/deploy/nvml-api/; the numbers of XIDs,
https://docs.nvidia.com/deploy/xid-errors/.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from hpcext.launch import apart
from hpcext.numerals import whole

LOOK_S = 5.0
"""Seconds that the look may take; a driver that takes longer says nothing."""

HARDWARE_XIDS = {
    48: "double-bit memory error",
    64: "memory rows cannot be remapped",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many single-bit memory errors",
    95: "uncontained memory error",
    119: "GPU system processor does not answer",
    120: "GPU system processor error",
    140: "unrecovered memory error",
    143: "cannot be initialised",
}
"""XIDs for which a driver, a GPU or a bus is to blame; programs cause most others."""

KERNEL_LOG = "/dev/kmsg"
"""Linux, ABI/testing/dev-kmsg; many sites let only root read it."""

_LIBRARY = "libnvidia-ml.so.1"
_NOT_SUPPORTED, _IS_LOST, _RESET_REQUIRED = 3, 15, 16
_UNCORRECTED, _VOLATILE = 1, 0
_RECOVERY_ACTION = 230
_RECOVERY = {
    1: "needs a reset",
    2: "needs a reboot of its node",
    3: "is to be drained",
    4: "is to be drained and reset",
    6: "needs a reset of its bus",
    7: "needs a reboot of its node",
}
_SLOWED = {0x08: "its hardware", 0x40: "heat", 0x80: "its power supply"}
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,6})")
_MOST_BYTES = 4 << 20


class Faults(NamedTuple):
    """What is wrong with the GPUs of an attempt.

    Attributes
    ----------
    broken : list of str
        Faults for which the program is not to blame, each in words that begin with the GPU.
    noted : list of str
        What may explain a failure and proves nothing: clocks that are held down, errors of memory
        since the driver was loaded, perhaps long ago.
    """

    broken: list[str]
    noted: list[str]


NONE = Faults([], [])


def look(devices: str | None, since_s: float) -> Faults:
    """Return what is wrong with GPUs; nothing without NVML.

    Parameters
    ----------
    devices : str or None
        As in ``CUDA_VISIBLE_DEVICES``; None for all that NVML shows.
    since_s : float
        Only XIDs after that count, by the monotonic clock.
    """
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        return NONE
    try:
        return Faults(*apart.answer(lambda: _look(nvml, devices, since_s), LOOK_S))
    except (OSError, TypeError):
        return NONE


def _look(nvml: ctypes.CDLL, devices: str | None, since_s: float) -> Faults:
    broken: list[str] = []
    noted: list[str] = []
    if _ask(nvml, "nvmlInit_v2") == 0:
        for name, gpu, code in _gpus(nvml, devices):
            broken += [f"{name} {what}" for what in _broken(nvml, gpu, code, since_s)]
            noted += [f"{name} {what}" for what in _noted(nvml, gpu)]
    return Faults(broken, noted)


def _ask(nvml: ctypes.CDLL, question: str, *about: Any) -> int:
    """Return NVML's answer, 0 if it has one; an older driver does not know every question."""
    asked = getattr(nvml, question, None)
    return _NOT_SUPPORTED if asked is None else int(asked(*about))


def _gpus(nvml: ctypes.CDLL, devices: str | None) -> Iterator[tuple[str, ctypes.c_void_p, int]]:
    """Yield name, handle and error code of GPUs."""
    count = ctypes.c_uint()
    if _ask(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count)) != 0:
        return
    names = map(str, range(count.value)) if devices is None else devices.split(",")
    for name in filter(None, (each.strip() for each in names)):
        gpu = ctypes.c_void_p()
        index = whole(name)
        if index is not None:
            code = _ask(
                nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(gpu)
            )
        elif name.startswith("GPU-"):
            code = _ask(nvml, "nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(gpu))
        else:
            # An instance of MIG has no faults of its own, and -1 is none.
            continue
        yield (f"GPU {name}" if index is not None else name, gpu, code)


def _broken(nvml: ctypes.CDLL, gpu: ctypes.c_void_p, code: int, since_s: float) -> Iterator[str]:
    """Yield the faults of a GPU in words."""
    if code in {_IS_LOST, _RESET_REQUIRED}:
        yield "is lost" if code == _IS_LOST else "needs a reset"
        return
    if code:
        return
    if action := _recovery(nvml, gpu):
        yield action
    waiting = ctypes.c_uint()
    _ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", gpu, ctypes.byref(waiting))
    if waiting.value:
        yield "has pages of memory that a reset would retire"
    counts = [ctypes.c_uint() for _ in range(4)]
    if _ask(nvml, "nvmlDeviceGetRemappedRows", gpu, *map(ctypes.byref, counts)) == 0:
        _, _, pending, failed = (each.value for each in counts)
        if failed:
            yield "cannot remap rows of its memory"
        elif pending:
            yield "has rows of memory that a reset would remap"
    for xid in xids(_bus(nvml, gpu), since_s):
        yield f"had XID {xid} ({HARDWARE_XIDS[xid]})"


class _FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``."""

    _fields_ = (
        ("field", ctypes.c_uint32),
        ("scope", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latency_us", ctypes.c_int64),
        ("type", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
        ("value", ctypes.c_uint64),
    )


class _Pci(ctypes.Structure):
    """``nvmlPciInfo_t``, version 3."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


def _recovery(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> str:
    """Return what the driver says has to be done to a GPU (since 570); empty for nothing."""
    field = _FieldValue(field=_RECOVERY_ACTION)
    if _ask(nvml, "nvmlDeviceGetFieldValues", gpu, 1, ctypes.byref(field)) or field.result:
        return ""
    return _RECOVERY.get(field.value & 0xFFFFFFFF, "")


def _noted(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> Iterator[str]:
    """Yield what else may explain a failure."""
    if not gpu:
        return
    value = ctypes.c_ulonglong()
    asked = (gpu, _UNCORRECTED, _VOLATILE, ctypes.byref(value))
    if _ask(nvml, "nvmlDeviceGetTotalEccErrors", *asked) == 0 and value.value:
        yield f"has had uncorrected memory errors ({value.value}) since its driver was loaded"
    reasons = (gpu, ctypes.byref(value))
    if _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", *reasons) == 0:
        slowed = [what for bit, what in _SLOWED.items() if value.value & bit]
        if slowed:
            yield f"is slowed down by {' and '.join(slowed)}"


def _bus(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> str:
    """Return where a GPU is on the bus, as the kernel's log names it."""
    pci = _Pci()
    if _ask(nvml, "nvmlDeviceGetPciInfo_v3", gpu, ctypes.byref(pci)):
        return ""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}"


def xids(bus: str, since_s: float) -> list[int]:
    """Return the XIDs of hardware that the kernel has logged of a GPU, if one may read its log.

    Parameters
    ----------
    bus : str
        Where the GPU is, such as ``0000:3b:00``.
    since_s : float
        Earlier ones do not count, by the monotonic clock.
    """
    found: dict[int, None] = {}
    try:
        fd = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        read = 0
        while bus and read < _MOST_BYTES:
            # One record with each call: priority, number, microseconds; then the text.
            record = os.read(fd, 8192)
            if not record:
                break
            read += len(record)
            for line in record.decode(errors="replace").splitlines():
                head, _, text = line.partition(";")
                match = _XID.search(text)
                if match is None or not match[1].lower().startswith(bus) or head.count(",") < 2:
                    continue
                at_us, xid = whole(head.split(",")[2]), int(match[2])
                if at_us is not None and at_us / 1e6 >= since_s and xid in HARDWARE_XIDS:
                    found[xid] = None
    except OSError:
        # There is no more, or what was to be read has been overwritten.
        pass
    finally:
        os.close(fd)
    return list(found)
