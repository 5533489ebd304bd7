"""The checkpoints of NVIDIA's driver: a process's GPU memory is moved to host memory, and back.

The functions ``cuCheckpointProcess...`` of libcuda.so.1, since driver 570 (CUDA 12.8):
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html. They act on another
process by a thread that the driver runs in it, which therefore must not be stopped. The library is
never loaded into a supervisor: each question is asked in a process of its own, which may hang.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

from hpcext.launch import apart

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
STATES = ("RUNNING", "LOCKED", "CHECKPOINTED", "FAILED")

OLDEST, REMAPS = 12080, 13000
"""The versions of CUDA of the first drivers that have these functions (570), and that can restore
onto other GPUs (580)."""

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NOT_READY = 1, 2, 3, 600

LOOK_S = 20.0
"""Seconds for a look at the driver: without persistence mode it is slow to wake."""

_LIBRARY = "libcuda.so.1"
_UUID = re.compile(r"GPU-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})")


class DriverError(OSError):
    """The error that the driver has not done what it was asked.

    Attributes
    ----------
    code : int
        ``CUresult``; 0 if it gave no answer.
    """

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


class _LockArgs(ctypes.Structure):
    """``CUcheckpointLockArgs``."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class _Pair(ctypes.Structure):
    """``CUcheckpointGpuPair``."""

    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class _RestoreArgs(ctypes.Structure):
    """``CUcheckpointRestoreArgs``; all of it is reserved before driver 580."""

    _fields_ = (
        ("pairs", ctypes.POINTER(_Pair)),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_ubyte * 52),
    )


class Driver:
    """The library of the driver, in this process.

    Raises
    ------
    DriverError
        It is not there, or too old.
    """

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise DriverError(0, str(error)) from None
        if (version := self.version()) < OLDEST:
            supported = f"{version // 1000}.{version % 1000 // 10}"
            what = f"driver 570 or later is needed, and this one supports CUDA {supported} only"
            raise DriverError(0, what)

    def version(self) -> int:
        """Return the version of CUDA that it supports: 1000 times the major number and so on."""
        found = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(found))
        return found.value

    def begin(self) -> None:
        """Have the driver find its GPUs."""
        self._call("cuInit", 0)

    def state(self, pid: int) -> int:
        """Return the state of a process; its thread must run."""
        found = ctypes.c_int()
        self._call("cuCheckpointProcessGetState", pid, ctypes.byref(found))
        return found.value

    def thread(self, pid: int) -> int:
        """Return the id of the driver's thread in a process."""
        found = ctypes.c_int()
        self._call("cuCheckpointProcessGetRestoreThreadId", pid, ctypes.byref(found))
        return found.value

    def lock(self, pid: int, limit_s: float) -> int:
        """Have a process begin no work on GPUs, and wait until it has none; return its state.

        Parameters
        ----------
        pid : int
        limit_s : float
            Seconds after which it runs on, and that fails.
        """
        args = _LockArgs(timeout_ms=max(1, round(1000 * limit_s)))
        self._call("cuCheckpointProcessLock", pid, ctypes.byref(args))
        return self.state(pid)

    def checkpoint(self, pid: int) -> int:
        """Move the GPU memory of a locked process to host memory; return its state."""
        self._call("cuCheckpointProcessCheckpoint", pid, ctypes.create_string_buffer(64))
        return self.state(pid)

    def restore(self, pid: int, pairs: Sequence[Sequence[str]] = ()) -> int:
        """Move it back; return the state of the process.

        Parameters
        ----------
        pid : int
        pairs : sequence of pairs of str
            UUIDs: each GPU, and that which takes its place; none if they are the same.
        """
        # Without persistence mode it must have been called in the calling process.
        self.begin()
        found = (_Pair * len(pairs))(*(_Pair(_bytes(old), _bytes(new)) for old, new in pairs))
        args = _RestoreArgs()
        if pairs:
            args.pairs, args.count = found, len(pairs)
        self._call("cuCheckpointProcessRestore", pid, ctypes.byref(args))
        return self.state(pid)

    def unlock(self, pid: int) -> int:
        """Let a locked process use GPUs again; return its state."""
        self._call("cuCheckpointProcessUnlock", pid, ctypes.create_string_buffer(64))
        return self.state(pid)

    def _call(self, name: str, *about: Any) -> None:
        asked = getattr(self._cuda, name, None)
        if asked is None:
            raise DriverError(0, f"the driver has no {name}: 570 or later is needed")
        if code := int(asked(*about)):
            raise DriverError(code, f"{name}: {self._name(code)}")

    def _name(self, code: int) -> str:
        name = ctypes.c_char_p()
        if self._cuda.cuGetErrorName(code, ctypes.byref(name)) or name.value is None:
            return f"error {code}"
        return name.value.decode(errors="replace")


def ask(question: Callable[[Driver], Any], limit_s: float) -> Any:
    """Return the answer of the driver, asked in a process of its own.

    Parameters
    ----------
    question : callable
        Called there with the driver; what it returns JSON must be able to hold.
    limit_s : float

    Raises
    ------
    DriverError
        It has not done what it was asked, or not in time.
    """

    def told() -> list[Any]:
        try:
            return [question(Driver()), None]
        except DriverError as error:
            return [error.code, str(error)]

    try:
        found, why = apart.answer(told, limit_s)
    except OSError as error:
        raise DriverError(0, f"NVIDIA's driver: {error}") from None
    if why is not None:
        raise DriverError(found, why)
    return found


def installed() -> bool:
    """Return whether this machine has a driver of NVIDIA, of whatever release."""

    def loads() -> bool:
        try:
            ctypes.CDLL(_LIBRARY)
        except OSError:
            return False
        return True

    try:
        return bool(apart.answer(loads, LOOK_S))
    except OSError:
        return True


def said(state: int) -> str:
    """Return the name of a state."""
    return STATES[state] if 0 <= state < len(STATES) else f"in the unknown state {state}"


def _bytes(uuid: str) -> Any:
    """Return a UUID as ``CUuuid``.

    Raises
    ------
    DriverError
        It is none of a whole GPU.
    """
    found = _UUID.fullmatch(uuid)
    if found is None:
        raise DriverError(0, f"{uuid!r} is no UUID of a GPU")
    return (ctypes.c_ubyte * 16)(*bytes.fromhex("".join(found.groups())))
