"""Servers of the command line: they answer in threads until somebody ends them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

STOP = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def until_ended() -> Iterator[None]:
    """Begin threads that serve in its body; at its end the one that ends the command is waited for.

    The signals are blocked before, so that no thread takes them; blocked ones come also where a
    shell has begun us in the background, which ignores Ctrl-C.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    yield
    signal.sigwait(STOP)
