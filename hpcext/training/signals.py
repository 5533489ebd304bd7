"""Whether this process was asked to suspend itself.

A supervisor starts the job with the signal *blocked and ignored*: Linux keeps a blocked signal
pending even when it is ignored (signal(7)), both survive ``exec``, and every thread inherits the
mask. So a signal that comes during imports is kept, shells and data-loader workers are not
disturbed, and asking costs one system call and no handler.

Without a supervisor that does not hold: threads which libraries made before (OpenBLAS makes some
when NumPy is imported) do not block the signal, so the kernel gives it to one of them, and an
ignored signal is lost there. Then, and only then, a handler sets a flag.

A batch system that wants its node back sends SIGTERM to every process of a job (Slurm when the
grace of a preemption begins), or SIGINT before that (LSF's bkill, brequeue and bmig). The
supervisor makes a suspension of it; the processes that are to save themselves have to outlive it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

from hpcext.protocol import NEWS_SIGNAL, SUSPEND_SIGNAL


class SuspendRequest:
    """Looks for the suspend signal of this process.

    Parameters
    ----------
    watch : bool
        False: this process cannot be suspended; the signal keeps its meaning (Ctrl-Z), and
        :meth:`asked` is always False.
    notices : bool
        Outlive SIGTERM and SIGINT of the batch system, which are no order to end.

    Raises
    ------
    ValueError
        Not in the main thread, and no supervisor has blocked the signal.
    """

    def __init__(self, *, watch: bool = True, notices: bool = False) -> None:
        self._watch = watch
        self._flag = False
        self._deaf_until_s = 0.0
        if watch and notices:
            _outlive_notices()
        if watch and SUSPEND_SIGNAL not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            self._catch()

    def asked(self) -> bool:
        """Whether the signal came; it stays so until :meth:`decline` takes the signal away."""
        if not self._watch:
            return False
        if self._deaf_until_s:
            if time.monotonic() < self._deaf_until_s:
                return False
            # What came meanwhile may be the same request, which a supervisor repeats.
            self._deaf_until_s = 0.0
            self._take()
        return self._flag or SUSPEND_SIGNAL in signal.sigpending()

    def decline(self, pause_s: float) -> None:
        """Go on all the same; what comes within a pause is not heard.

        Parameters
        ----------
        pause_s : float
            0 where nobody repeats a request that counts.
        """
        if self._watch:
            self._take()
            self._deaf_until_s = time.monotonic() + pause_s if pause_s else 0.0

    def _take(self) -> None:
        self._flag = False
        while SUSPEND_SIGNAL in signal.sigpending():
            signal.sigtimedwait((SUSPEND_SIGNAL,), 0)

    def _catch(self) -> None:
        signal.signal(SUSPEND_SIGNAL, self._note)
        # Programs and workers that this process starts inherit the mask: they are not stopped.
        signal.pthread_sigmask(signal.SIG_BLOCK, (SUSPEND_SIGNAL,))
        os.register_at_fork(after_in_child=_ignore)

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self._flag = True


class News:
    """Whether the launcher of this rank has something to say: SIGUSR1, blocked and looked for."""

    def __init__(self) -> None:
        # The launcher has done both; a shell between it and us may have undone the first.
        signal.signal(NEWS_SIGNAL, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (NEWS_SIGNAL,))

    def came(self) -> bool:
        """Whether it came since the last time."""
        return NEWS_SIGNAL in signal.sigpending() and bool(signal.sigtimedwait((NEWS_SIGNAL,), 0))


def _outlive_notices() -> None:
    """Neither this process nor the workers that it starts die of SIGTERM or SIGINT.

    Blocked: a DataLoader's workers set a handler of their own, which ends them. Ignored: threads
    that libraries made before do not block it. SIGINT, which nobody sets a handler for in workers,
    a supervisor has had ignored; a launcher that catches it starts its ranks with the default.
    """
    if threading.current_thread() is threading.main_thread():
        defaults = {signal.SIG_DFL, signal.default_int_handler}
        for signum in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(signum) in defaults:
                signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def _ignore() -> None:
    signal.signal(SUSPEND_SIGNAL, signal.SIG_IGN)
