"""A command that uses a module, and ends in one of many ways: ``program.py WAY``."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
from pathlib import Path

import heavy
import numpy as np


class Kept:
    """What can be pickled only if it is known where its class is."""


def seen() -> dict[str, object]:
    """All that a program can see of how it was begun."""
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    kept = ("SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", "Name", "Groups")
    mine = [field for field in status if field.startswith(kept)]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cmdline": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode(),
        "environ": dict(os.environ),
        "shown": sorted(filter(None, Path("/proc/self/environ").read_bytes().decode().split("\0"))),
        "path": sys.path,
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "flags": list(sys.flags),
        "main": {
            name: repr(value) for name, value in vars(sys.modules["__main__"]).items()
            if name.startswith("__") and name != "__builtins__"
        },
        "signals": {number: repr(signal.getsignal(number)) for number in sorted(numbers)},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "status": mine,
        "files": sorted(
            os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{name}")
        ),
        "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
        "unbuffered": sys.stdout.write_through,
        "encoding": sys.stdout.encoding,
        "main_thread": threading.current_thread() is threading.main_thread(),
        "future": sys._getframe().f_code.co_flags,
    }  # fmt: skip


def double(value: int) -> int:
    """What another process computes."""
    return 2 * value


def spawned() -> int:
    """Another process of Python imports this file to know what to do."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return int(pool.map(double, [21])[0])


def broken(*_: object) -> None:
    """Fail where an exception is to be shown."""
    raise ValueError("so is this")


def main(way: str) -> None:
    """End in some way."""
    if way == "seen":
        print("SEEN " + json.dumps(seen()))
    elif way == "rank":
        # Two that print at once would mix their lines.
        place = Path(os.environ["HPCEXT_REPORT_DIR"]) / f"seen-{os.environ['RANK']}"
        place.write_text(json.dumps(seen()), encoding="utf-8")
    elif way == "draw":
        import torch

        drawn = [random.random(), np.random.random(), float(torch.rand(1))]
        print("SEEN " + json.dumps(drawn))
    elif way == "main":
        assert isinstance(pickle.loads(pickle.dumps(Kept())), Kept)
        print("SEEN " + json.dumps([spawned(), heavy.__name__]))
    elif way == "exit":
        atexit.register(print, "registered")
        threading.Thread(target=lambda: time.sleep(0.1) or print("thread")).start()
        sys.exit(7)
    elif way == "message":
        sys.exit("that was it")
    elif way == "raise":
        raise RuntimeError("it went wrong")
    elif way == "hook":
        sys.excepthook = broken
        raise RuntimeError("it went wrong")
    elif way == "interrupt":
        signal.raise_signal(signal.SIGINT)
    elif way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "wait":
        print("waits", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
