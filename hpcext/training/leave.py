"""The immediate end of a training process, with the necessary clean-up."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

EXIT_NOT_SAVED = 74
"""Exit status of a session that gave up its final checkpoint, or is fenced off (EX_IOERR)."""

FLUSH_S = 10.0
"""Longest time for what files still keep; a pipe that nobody reads takes nothing for ever."""

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

_forks: list[bool] = []
"""Not empty in a process that was forked from one that had imported this module."""

os.register_at_fork(after_in_child=lambda: _forks.append(True))


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
    _flush_files()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def at_most(limit_s: float, calls: Iterable[Callable[[], object]]) -> None:
    """Make calls, each in a thread of its own, and wait no longer than this for them.

    Their errors are ignored: the state is saved, and they must not undo that.

    Parameters
    ----------
    limit_s : float
        In seconds, for all together.
    calls : iterable of callables
    """
    threads = []
    for call in calls:
        thread = threading.Thread(target=_quietly, args=(call,), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread begins any more once the interpreter ends.
            _quietly(call)
        else:
            threads.append(thread)
    until_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))


def _quietly(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        call()


def _flush_files() -> None:
    """Write what the script has written to files of its own, and what C libraries have.

    The steps are not made again, so what is lost here is lost for good.
    """
    if _forks:
        # A forked process has copies of what its parent has not written yet, and would write that
        # a second time.
        return
    # Of the type itself, since an attribute of a stranger's object may do anything.
    files = [each for each in gc.get_objects() if issubclass(type(each), _BUFFERED)]
    at_most(FLUSH_S, [*(each.flush for each in files), _flush_c])


def _flush_c() -> None:
    ctypes.CDLL(None).fflush(None)


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
