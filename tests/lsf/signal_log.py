"""Writes down each signal that three processes of a job hear: the job's own program, a child in its
process group, and a child with a session of its own. As FILE.log, in the form of the recordings."""

from __future__ import annotations

import os
import signal
import sys
import time

HEARD = (1, 2, 3, 10, 12, 13, 14, 15, 18, 20, 21, 22, 24)
BEGAN_S = time.time()


def role(name: str) -> None:
    """Log what this process hears, until it is killed."""
    log = os.open(f"{sys.argv[1]}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def say(what: str) -> None:
        # In one call: a file of Python's cannot be written to while it is being written to.
        os.write(log, f"{time.time() - BEGAN_S:7.1f} {name:8} {what}\n".encode())

    for signum in HEARD:
        signal.signal(signum, lambda number, _: say(signal.Signals(number).name))
    # Who it is comes last: from then on it hears.
    ids = f"ppid {os.getppid()} pgid {os.getpgrp()} sid {os.getsid(0)}"
    say(f"pid {os.getpid()} {ids}")
    last = time.time()
    while True:
        time.sleep(0.2)
        now = time.time()
        if now - last > 2:
            say(f"stood still for {now - last:.1f} s")
        last = now


if os.fork() == 0:
    role("child")
if os.fork() == 0:
    os.setsid()
    role("session")
role("script")
