"""A program that counts in the memory of a GPU; ``python -I -S gpu_count.py``.

It calls the driver through ctypes, so that nothing else has to be installed.
"""

from __future__ import annotations

import ctypes
import sys
import time

PAUSE_S = 0.01

_BYTES = ctypes.c_size_t(8)


def count() -> None:
    """Print one number after the other, each from the GPU, where the next one is put."""
    device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    number = ctypes.c_uint64()
    _call("cuInit", 0)
    _call("cuDeviceGet", ctypes.byref(device), 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call("cuCtxSetCurrent", context)
    _call("cuMemAlloc_v2", ctypes.byref(at), _BYTES)
    _call("cuMemcpyHtoD_v2", at, ctypes.byref(number), _BYTES)
    while True:
        _call("cuMemcpyDtoH_v2", ctypes.byref(number), at, _BYTES)
        sys.stdout.write(f"{number.value}\n")
        sys.stdout.flush()
        number.value += 1
        _call("cuMemcpyHtoD_v2", at, ctypes.byref(number), _BYTES)
        time.sleep(PAUSE_S)


def _call(name: str, *about: object) -> None:
    if code := getattr(_cuda, name)(*about):
        sys.exit(f"hpcext: {name}: error {code}")


if __name__ == "__main__":
    _cuda = ctypes.CDLL("libcuda.so.1")
    count()
