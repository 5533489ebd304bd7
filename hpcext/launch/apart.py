"""Questions to a driver, each in a process of its own: a call of a broken one may never return."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from hpcext.launch import command

REAP_S = 1.0
"""Seconds in which a process that was killed has ended, unless it hangs in the driver."""

_PAUSE_S = 0.005


def answer(question: Callable[[], Any], limit_s: float) -> Any:
    """Return the answer to a question, which must be something that JSON can hold.

    Parameters
    ----------
    question : callable
        Called in a child, which has all that this process has and ends with it.
    limit_s : float
        Seconds after which no answer is waited for any more.

    Raises
    ------
    TimeoutError
        None was given in time; the child was killed.
    OSError
        None was given: no process can be made, or the child has died.
    """
    reading, writing = os.pipe()

    def child() -> NoReturn:
        try:
            command.hear_of_parent(signal.SIGKILL)
            os.write(writing, json.dumps(question()).encode())
        finally:
            os._exit(0)

    try:
        pid = command.fork(child)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with open(reading, "rb") as file:
        in_time = bool(select.select([file], [], [], max(0.0, limit_s))[0])
        said = file.read() if in_time else b""
    _end(pid)
    if not in_time:
        raise TimeoutError(f"no answer within {limit_s:.0f} s")
    try:
        return json.loads(said)
    except ValueError:
        raise OSError("no answer: the process that asked has died") from None


def _end(pid: int) -> None:
    """Kill a child, and reap it; one that hangs in the driver is left to whoever reaps orphans."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + REAP_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)
