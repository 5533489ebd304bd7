"""Checkpoints of GPU memory by CUDA's driver, as functions and as a program.

CUDA Driver API, "Checkpointing" (12.8 and later). ``python driver.py PID lock checkpoint`` does
these things to a process, and prints what each took, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

LOCK_MS = 20_000
STATES = ("running", "locked", "checkpointed", "failed")
MOVES = ("lock", "checkpoint", "restore", "unlock")


class _LockArgs(ctypes.Structure):
    """``CUcheckpointLockArgs``."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class DriverError(Exception):
    """A call of the driver that failed; the message is its name for that."""


class Driver:
    """The driver's library.

    Raises
    ------
    OSError
        There is none.
    DriverError
        It is older than 12.8, or finds no GPU.
    """

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise DriverError("it has no checkpoints (they came with CUDA 12.8)")
        self._check(self._cuda.cuInit(0))

    def state(self, pid: int) -> str:
        """Return the state of a process, of ``STATES``."""
        found = ctypes.c_uint()
        self._check(self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(found)))
        return STATES[found.value] if found.value < len(STATES) else str(found.value)

    def move(self, what: str, pid: int) -> float:
        """Do one of ``MOVES`` to a process; return the seconds that it took."""
        args = ctypes.byref(_LockArgs(timeout_ms=LOCK_MS)) if what == "lock" else None
        ask = getattr(self._cuda, f"cuCheckpointProcess{what.capitalize()}")
        began_s = time.perf_counter()
        self._check(ask(pid, args))
        return time.perf_counter() - began_s

    def _check(self, code: int) -> None:
        if code:
            name = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(name))
            raise DriverError((name.value or b"unknown").decode() + f" ({code})")


def resident_bytes(pid: int) -> int:
    """Return the host memory of a process, shared memory too."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def main() -> int:
    """Do it, and print."""
    pid, *moves = sys.argv[1:]
    done: dict[str, float | str] = {}
    try:
        driver = Driver()
        for what in moves:
            done[what] = driver.move(what, int(pid))
    except (OSError, DriverError) as error:
        done["error"] = str(error)
    print(json.dumps(done))
    return int("error" in done)


if __name__ == "__main__":
    sys.exit(main())
