"""Runs a script as a client of MPS: what CUDA's library does where there is a daemon.

``python client.py SCRIPT ARGUMENT...``. Its GPU has work until it ends in good order. What the
script's environment says of GPUs goes into ``$CLIENT_LOG``, a line for each time that it is run.
"""

from __future__ import annotations

import atexit
import os
import runpy
import socket
import sys

NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)

server: socket.socket | None = None


def synchronized() -> None:
    """No work is left on the GPU."""
    if server is not None:
        server.sendall(b"idle\n")


if pipes := os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{pipes}/control")
    server.sendall(f"client {os.getpid()}\n".encode())
with open(os.environ["CLIENT_LOG"], "a") as log:
    log.write(" ".join(os.environ.get(name, "-") for name in NAMES) + "\n")
atexit.register(synchronized)
leave = os._exit


def leave_in_order(code: int) -> None:
    """A session leaves so when its checkpoint is written, which it copied from an idle GPU."""
    synchronized()
    leave(code)


os._exit = leave_in_order  # type: ignore[assignment]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
