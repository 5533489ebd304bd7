"""A program that saves nothing and keeps what it has in the memory of a GPU.

``counting_gpu.py [WORD]...``; it counts until there is a file ``stop``, and its memory depends on
each of its steps. ``child``: another process of it waits for it; ``fork``: one that was forked once
the GPU was in use, and so has it open; ``mib=N``: it has N more MiB there; ``idle``: it has a GPU
open, and its memory is its own; ``hidden``: it removes the driver's library, which it has loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WAITS = [sys.executable, "-c", "import time\nwhile True: time.sleep(1)"]
START = b"0" * 32


def follows(state: bytes, step: int) -> bytes:
    """What is in its memory after a step."""
    return hashlib.sha256(state + str(step).encode()).digest()


def digest(steps: int) -> str:
    """What it prints after so many steps."""
    state = START
    for step in range(steps):
        state = follows(state, step)
    return state.hex()


class Memory:
    """Memory of the first GPU."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._at = self.take(32) if "idle" not in sys.argv else ctypes.c_uint64()
        self._own = START
        if "hidden" in sys.argv:
            os.unlink(f"{os.environ['LD_LIBRARY_PATH']}/libcuda.so.1")

    def take(self, size: int) -> ctypes.c_uint64:
        at = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def read(self) -> bytes:
        if not self._at:
            return self._own
        found = ctypes.create_string_buffer(32)
        self._call("cuMemcpyDtoH_v2", found, self._at, ctypes.c_size_t(32))
        return found.raw

    def write(self, state: bytes) -> None:
        if self._at:
            self._call("cuMemcpyHtoD_v2", self._at, state, ctypes.c_size_t(32))
        self._own = state

    def _call(self, name: str, *about: object) -> None:
        if code := getattr(self._cuda, name)(*about):
            sys.exit(f"{name}: error {code}")


def main() -> None:
    words = sys.argv[1:]
    child = subprocess.Popen(WAITS) if "child" in words else None
    memory = Memory()
    for word in words:
        if word.startswith("mib="):
            memory.take(int(word[4:]) << 20)
    forked = os.fork() if "fork" in words else None
    while forked == 0:
        time.sleep(1)
    memory.write(START)
    step = 0
    while not Path("stop").exists():
        memory.write(follows(memory.read(), step))
        print("step", step, flush=True)
        step += 1
        time.sleep(0.01)
    print("end", step, memory.read().hex(), flush=True)
    if forked is not None:
        os.kill(forked, signal.SIGKILL)
    if child is not None:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
