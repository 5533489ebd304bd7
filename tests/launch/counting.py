"""A program that saves nothing: what it prints at its end depends on each of its steps.

``counting.py [WORD]...``; it counts until there is a file ``stop``. ``child``: another process of
it waits for it; ``open``: it has the file ``data`` open; ``gone``: a child of it has left its tree;
``term``: it says that it was told to end, and ends; ``pair``: each step is heard by a child of it,
over a TCP connection; ``lock``: each step holds a lock of multiprocessing; ``PORT``: it is
connected to another program; ``ring``: it has an io_uring, if the kernel gives it one.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

WAITS = [sys.executable, "-c", "import time\nwhile True: time.sleep(1)"]


ECHO = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while said := line.recv(100):
    line.sendall(said)
"""

IO_URING_SETUP = 425  # on all machines but Alpha (io_uring_setup(2))


def echo() -> socket.socket:
    """A connection to a child, which says everything again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        subprocess.Popen([sys.executable, "-c", ECHO, str(server.getsockname()[1])])
        return server.accept()[0]


def ring() -> int:
    """An io_uring; -1 if there is none."""
    parameters = ctypes.create_string_buffer(512)
    return ctypes.CDLL(None).syscall(IO_URING_SETUP, 8, parameters)


def digest(steps: int) -> str:
    """What it prints after so many steps."""
    sha = hashlib.sha256()
    for step in range(steps):
        sha.update(str(step).encode())
    return sha.hexdigest()


def main() -> None:
    words = sys.argv[1:]
    child = subprocess.Popen(WAITS) if "child" in words else None
    data = open("data", "a+b") if "open" in words else None  # noqa: SIM115
    if "gone" in words and os.fork() == 0:
        subprocess.Popen(WAITS)
        os._exit(0)
    if "term" in words:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    line = echo() if "pair" in words else None
    # As of workers that are spawned: a file that is open by a name which is gone, but has another.
    lock = multiprocessing.get_context("spawn").Lock() if "lock" in words else None
    ports = [int(word) for word in words if word.isdigit()]
    others = [socket.create_connection(("127.0.0.1", port)) for port in ports]
    if "ring" in words:
        print("ring" if ring() >= 0 else "no ring", flush=True)
    # A copy is kept, so that not all of it is in the code of the library.
    told, step = bytearray(), 0
    sha = hashlib.sha256()
    while not Path("stop").exists():
        sha.update(str(step).encode())
        with lock or contextlib.nullcontext():
            told += str(step).encode()
        if line is not None:
            line.sendall(str(step).encode())
            assert line.recv(100).decode() == str(step)
        print("step", step, flush=True)
        step += 1
        time.sleep(0.01)
    assert hashlib.sha256(told).digest() == sha.digest()
    print("end", step, sha.hexdigest(), flush=True)
    if child is not None:
        child.kill()
        child.wait()
    for each in (data, line, *others):
        if each is not None:
            each.close()


if __name__ == "__main__":
    main()
