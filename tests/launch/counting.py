"""A program that saves nothing: what it prints at its end depends on each of its steps.

``counting.py [WORD]...``; it counts until there is a file ``stop``. ``child``: another process of
it waits for it; ``open``: it has the file ``data`` open; ``gone``: a child of it has left its tree;
``term``: it says that it was told to end, and ends.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WAITS = [sys.executable, "-c", "import time\nwhile True: time.sleep(1)"]


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
    # A copy is kept, so that not all of it is in the code of the library.
    told, step = bytearray(), 0
    sha = hashlib.sha256()
    while not Path("stop").exists():
        sha.update(str(step).encode())
        told += str(step).encode()
        print("step", step, flush=True)
        step += 1
        time.sleep(0.01)
    assert hashlib.sha256(told).digest() == sha.digest()
    print("end", step, sha.hexdigest(), flush=True)
    if child is not None:
        child.kill()
        child.wait()
    if data is not None:
        data.close()


if __name__ == "__main__":
    main()
