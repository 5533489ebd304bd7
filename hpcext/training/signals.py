"""Requests for suspension: signals that this process has received.

A supervisor starts the job with the signal *blocked and ignored*: Linux keeps a blocked signal
pending even when it is ignored (signal(7)), both settings survive ``exec``, and every thread
inherits the mask. So a signal that arrives during imports is kept, shells and data-loader workers
are not disturbed, and a check costs one system call and needs no handler.

Without a supervisor that does not hold: threads that libraries made before (OpenBLAS makes some
when NumPy is imported) do not block the signal, so the kernel delivers it to one of them, and an
ignored signal is lost there. Only in that case a handler sets a flag.

A batch system that needs its node back sends SIGTERM to every process of a job (Slurm when the
grace time of a preemption begins), or SIGINT before that (LSF's bkill, brequeue and bmig). The
supervisor turns it into a suspension, and the processes that must save themselves have to survive
it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from types import FrameType

from hpcext.protocol import NEWS_SIGNAL, STACKS_SIGNAL, SUSPEND_SIGNAL


class SuspendRequest:
    """The requests for suspension that this process receives as signals.

    Parameters
    ----------
    watch : bool
        If False, this process cannot be suspended; the signal keeps its meaning (Ctrl-Z), and
        :meth:`suspend_requested` is always False.
    supervised : bool
        Whether to survive the SIGUSR1 that tells supervisors of news. A supervisor starts its
        children with it ignored, but launchers of MPI pass it on to ranks with default signals.
    notices : bool
        Whether to survive SIGTERM and SIGINT of the batch system, which are notices and not orders
        to end.

    Raises
    ------
    ValueError
        This is not the main thread, and no supervisor has blocked the signal.
    """

    def __init__(
        self, *, watch: bool = True, supervised: bool = False, notices: bool = False
    ) -> None:
        self._watch = watch
        self._flag = False
        self._ignores_until_s = 0.0
        if watch and supervised:
            _ignore_unless_handled(NEWS_SIGNAL)
        if watch and notices:
            _outlive_notices()
        if watch and SUSPEND_SIGNAL not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            self._catch()

    def suspend_requested(self) -> bool:
        """Return whether a suspension is requested; it remains so until :meth:`decline`."""
        if not self._watch:
            return False
        if self._ignores_until_s:
            if time.monotonic() < self._ignores_until_s:
                return False
            # A signal during the pause may be the same request, which a supervisor repeats.
            self._ignores_until_s = 0.0
            self._take()
        return self._flag or SUSPEND_SIGNAL in signal.sigpending()

    def decline(self, pause_s: float) -> None:
        """Drop the request and go on; ignore requests during a pause.

        Parameters
        ----------
        pause_s : float
            Seconds; 0 if requests are not repeated.
        """
        if self._watch:
            self._take()
            self._ignores_until_s = time.monotonic() + pause_s if pause_s else 0.0

    def _take(self) -> None:
        self._flag = False
        while SUSPEND_SIGNAL in signal.sigpending():
            signal.sigtimedwait((SUSPEND_SIGNAL,), 0)

    def _catch(self) -> None:
        signal.signal(SUSPEND_SIGNAL, self._note)
        # Programs and workers that this process starts inherit the mask and are not stopped.
        signal.pthread_sigmask(signal.SIG_BLOCK, (SUSPEND_SIGNAL,))
        os.register_at_fork(after_in_child=_ignore)

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self._flag = True


def write_stacks_when_told() -> None:
    """Make this process write the stacks of its threads to standard error on the news signal.

    The handler is one in C, which runs even if the interpreter hangs in a library. A handler of the
    script is kept.
    """
    if signal.getsignal(STACKS_SIGNAL) in {signal.SIG_DFL, signal.SIG_IGN}:
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)


class News:
    """News from the launcher of this rank: SIGUSR1, blocked and polled."""

    def __init__(self) -> None:
        # The launcher has done both; a shell between it and this process may have undone the first.
        signal.signal(NEWS_SIGNAL, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (NEWS_SIGNAL,))

    def came(self) -> bool:
        """Return whether news has come since the last call."""
        return NEWS_SIGNAL in signal.sigpending() and bool(signal.sigtimedwait((NEWS_SIGNAL,), 0))


def _outlive_notices() -> None:
    """Make this process, and the workers that it starts, survive SIGTERM and SIGINT.

    SIGTERM is blocked because a DataLoader's workers install a handler of their own, which would
    end them, and ignored because threads that libraries made before do not block it. SIGINT, for
    which no handler is installed in workers, is ignored by a supervisor's children; a launcher that
    catches it starts its ranks with the default.
    """
    for signum in (signal.SIGTERM, signal.SIGINT):
        _ignore_unless_handled(signum)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def _ignore_unless_handled(signum: signal.Signals) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    # Python's own handler of SIGINT is its default.
    if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}:
        signal.signal(signum, signal.SIG_IGN)


def _ignore() -> None:
    signal.signal(SUSPEND_SIGNAL, signal.SIG_IGN)
