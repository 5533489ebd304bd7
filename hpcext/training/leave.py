"""The immediate end of a training process, with the necessary clean-up."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn

EXIT_NOT_SAVED = 74
"""Exit status of a session that gave up its final checkpoint, or is fenced off (EX_IOERR)."""


def leave(code: int, callbacks: Iterable[Callable[[], object]] = ()) -> NoReturn:
    """Run callbacks, flush, and end this process without the interpreter's own clean-up.

    A normal exit takes 0.3 to 1 s with a deep-learning framework loaded, during which the next job
    has to wait for the GPUs.

    Parameters
    ----------
    code : int
        Exit status.
    callbacks : iterable of callables
    """
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # The state is saved, and an error in a callback must not undo that.
            traceback.print_exc()
    _remove_generated()
    _end_workers()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def _end_workers() -> None:
    """End data-loader workers, as a normal exit would.

    By themselves they check for their parent only every five seconds (``MP_STATUS_CHECK_INTERVAL``
    of torch).
    """
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    with contextlib.suppress(ValueError):
        # PyTorch's handler would raise here when a worker is killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def _remove_generated() -> None:
    """Remove the modules that TensorFlow's AutoGraph has written, as a normal exit would."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file"):
            with contextlib.suppress(OSError, TypeError):
                os.unlink(getattr(module, "__file__", None) or "")
