"""The standard error of our own programs, which may be a file on a full disk."""

from __future__ import annotations

import contextlib
import sys


def say(what: object) -> None:
    """Write a line, or nothing where that fails: there is more to do than to say why.

    Parameters
    ----------
    what : object
        An error, or a sentence without its full stop.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"hpcext: {what}\n")
    flush()


def flush() -> None:
    """Write what has been kept back, if it can be written."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
