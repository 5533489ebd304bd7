"""Servers of the command line, which answer in threads until they are told to end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

STOP = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def until_ended() -> Iterator[None]:
    """Wait at the end of the context for a signal to end; threads that serve begin inside it.

    The signals are blocked first, so that no thread takes them. Blocked signals also arrive if a
    shell has started us in the background, where Ctrl-C is ignored.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    yield
    signal.sigwait(STOP)
