"""A return that cannot be tried at this moment, since somebody else has what it needs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

FREE_S = 10.0
"""Seconds that are waited for what somebody else has."""

_PAUSE_S = 0.05


class PutOffError(OSError):
    """The error that it cannot be tried at this moment, and nothing is lost by that."""


def wait_until_free(taken: Callable[[], str]) -> None:
    """Wait until nobody else has something.

    All signals are blocked, as in a supervisor.

    Parameters
    ----------
    taken : callable
        Returns what somebody else has, in words; empty if nobody has it.

    Raises
    ------
    PutOffError
        Somebody keeps it, or this process has been told to end.
    """
    until_s = time.monotonic() + FREE_S
    while why := taken():
        if time.monotonic() > until_s:
            raise PutOffError(why)
        if signal.sigtimedwait({signal.SIGTERM}, _PAUSE_S):
            # It is to be heard again where it is expected.
            os.kill(os.getpid(), signal.SIGTERM)
            raise PutOffError("told to end")
