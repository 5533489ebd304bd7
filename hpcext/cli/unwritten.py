"""Output that cannot be written, of commands that go on all the same."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def optional() -> Iterator[None]:
    """Go on if output cannot be written: its reader has left, or its disk is full."""
    with contextlib.suppress(OSError):
        yield


def drop_unwritten() -> None:
    """Give up what could not be written, which the interpreter would try once more at exit.

    If that failed again, the exit status would tell of the output, and not of the command.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            try:
                stream.flush()
            except OSError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
