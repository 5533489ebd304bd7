"""The base of executors whose attempts are each a process on this machine, watched by its pidfd.

Of the local executor that process is the supervisor; of the one for Slurm, the ``srun`` of a step.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, BinaryIO

from hpcext import private
from hpcext.core.facts import Ended, Outcome, Rescaled
from hpcext.core.values import Action, Kind
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.attempt.ends import SUPERVISOR_LOG
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.executors.attempts import AttemptExecutor
from hpcext.launch.nurseries import Nursery
from hpcext.process import Process
from hpcext.protocol import LAUNCH_FILE, SUSPEND_SIGNAL

RETRY_S, RETRY_MAX_S = 1.0, 30.0
"""Seconds before what could not be done (too many open files) is tried again, and the most."""

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Watch:
    """An attempt that is not known to have ended.

    Attributes
    ----------
    files : AttemptFiles
    gpus : tuple of str
        ``NODE:INDEX``, as far as they are known; reserved for it until ``Ended`` is emitted.
    child : subprocess.Popen or None
        The process that stands for it, if this process started it; to be reaped.
    process : Process or None
        The same, whoever started it.
    pidfd : int or None
    victims : set of Process
        Processes to kill if that process cannot do it.
    why : str
        Why the attempt is lost, if it is.
    never_ran : bool
        Whether no supervisor has begun it, nor will.
    nursery : Nursery or None
        What has imported its modules, or is to, for the next attempts of its job.
    """

    files: AttemptFiles
    gpus: tuple[str, ...]
    child: subprocess.Popen[bytes] | None = None
    process: Process | None = None
    pidfd: int | None = None
    victims: set[Process] = dataclasses.field(default_factory=set)
    why: str = ""
    never_ran: bool = False
    nursery: Nursery | None = None


class ProcessExecutor(AttemptExecutor[Watch]):
    """The base of executors whose attempts are processes here.

    Parameters
    ----------
    **common
        Parameters of :class:`~hpcext.executors.attempts.AttemptExecutor`.
    """

    _holds_signals = True
    """Whether the process of an attempt begins with blocked signals, which it must unblock."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._sweeps: set[asyncio.Task[None]] = set()
        self._closed = False

    def perform(self, action: Action) -> None:
        """Carry out an action, as :meth:`hpcext.executors.base.Executor.perform` says."""
        if action.kind is Kind.START and self._adopt(action):
            return
        # Later, in order: after a restart actions come in one go, and every attempt that holds
        # GPUs must be adopted before GPUs are chosen for a new one.
        self._loop.call_soon(self._carry_out, action)

    def look(self) -> None:
        """Read the reports of all attempts that run."""
        for watch in self._watches.values():
            self._look(watch)

    def close(self) -> None:
        """Stop watching. What runs goes on running."""
        self._closed = True
        for task in self._sweeps:
            task.cancel()
        for watch in self._watches.values():
            self._forget_pidfd(watch)
            if watch.child is not None:
                # It outlives us on purpose; keep Popen from complaining about that.
                watch.child.returncode = watch.child.poll() or 0
        self._watches.clear()

    def _left(self, job: str) -> Collection[int]:
        """Return attempts of a job that may still run where nothing reaches them."""
        return ()

    # Methods that each executor of this kind has to define.

    @abc.abstractmethod
    def _where(self, action: Action, gpus: Sequence[str]) -> dict[str, Any]:
        """Return what this kind of executor knows of the place of an attempt: Surroundings."""

    @abc.abstractmethod
    def _argv(self, watch: Watch) -> Sequence[str]:
        """Return the command of the process that stands for an attempt."""

    @abc.abstractmethod
    def _recorded(self, watch: Watch) -> Process | None:
        """Return the process that stands for an attempt, as written down; None if none is."""

    @abc.abstractmethod
    def _tell(self, watch: Watch, process: Process, action: Action) -> None:
        """Suspend, rescale or kill an attempt."""

    @abc.abstractmethod
    async def _sweep(self, watch: Watch, process: Process | None) -> None:
        """End the remaining processes of an attempt whose own process is gone, then finish it."""

    @abc.abstractmethod
    def _why_lost(self, files: AttemptFiles, process: Process | None) -> str:
        """Return why an attempt has no recorded end though its process is gone."""

    # Starting.

    def _begin(self, action: Action, gpus: tuple[str, ...]) -> bool:
        """Launch an attempt on these GPUs; return whether it was."""
        files = AttemptFiles(self._directory, action)
        watch = Watch(files, gpus)
        try:
            more = self._where(action, gpus)
            where = Surroundings(gpus=gpus, manager=self._manager_file, **more)
            spare = self._left(action.job)
            files.write_launch(self._spec(action.job), action.alloc, where, spare=spare)
            self._launch(watch)
        except OSError as error:
            self._not_started(files, str(error.strerror))
            return False
        self._watches[action.op] = watch
        self._began(watch)
        return True

    def _launch(self, watch: Watch) -> None:
        """Start a process for what was written down."""
        self._spawn(watch)

    def _look(self, watch: Watch) -> None:
        for fact in watch.files.news():
            if isinstance(fact, Rescaled):
                # The GPUs that it gave back are free from here on; the engine learns it next.
                watch.gpus = watch.files.sizes.held()
            self._emit(fact)

    def _carry_out(self, action: Action) -> None:
        if self._closed:
            return
        if action.kind is Kind.START:
            if not self._adopt(action):
                self._start(action)
            return
        watch = self._watches.get(action.op)
        # Otherwise it has ended, and the fact is on its way or has arrived.
        if watch is not None and watch.process is not None:
            self._tell(watch, watch.process, action)

    def _launched(self, files: AttemptFiles) -> Watch | None:
        launched = os.path.exists(files.directory / LAUNCH_FILE)
        return Watch(files, files.sizes.held()) if launched else None

    def _take_over(self, watch: Watch) -> None:
        files = watch.files
        if files.claimed() or files.ends.ended() is not None or self._recorded(watch) is not None:
            self._settle(watch)
        else:
            # The last manager died before a supervisor began. If one is on its way all the same,
            # only one of the two takes the attempt, and _settle finds out which.
            self._spawn_again(watch)

    def _spawn_again(self, watch: Watch) -> None:
        """Start what stands for an attempt once more."""
        try:
            self._spawn(watch)
        except OSError as error:
            del self._watches[watch.files.op]
            self._not_started(watch.files, str(error.strerror))

    def _spawn(self, watch: Watch) -> None:
        """Start the process that stands for an attempt, and watch it.

        Raises
        ------
        OSError
            There is none.
        """
        with open(private.open_log(watch.files.directory / SUPERVISOR_LOG), "ab") as its_log:
            # Known from now on, so that an action that follows at once reaches it.
            watch.process = Process.of(self._process(watch, its_log))
        # Later, so that Started comes before Ended however fast it is.
        self._loop.call_soon(self._settle, watch)

    def _process(self, watch: Watch, its_log: BinaryIO) -> int:
        """Start the process itself; return its pid.

        Raises
        ------
        OSError
            There is none.
        """
        with _signals_held() if self._holds_signals else contextlib.nullcontext():
            watch.child = subprocess.Popen(
                self._argv(watch),
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=its_log,
                stderr=its_log,
                cwd="/",
                start_new_session=True,
            )
        return watch.child.pid

    def _environ(self) -> dict[str, str] | None:
        """Return the environment of that process; None for ours."""
        return None

    def _not_started(self, files: AttemptFiles, why: str) -> None:
        self._emit(Ended(files.job, files.op, Outcome.LOST, why=f"could not be started: {why}"))

    # Watching.

    def _settle(self, watch: Watch) -> None:
        """Find out how things stand with an attempt, and go on from there."""
        if self._closed:
            return
        if not _can_open_files():
            # Processes that cannot be examined must not be taken for dead.
            self._loop.call_later(RETRY_S, self._settle, watch)
            return
        if watch.child is not None and watch.child.poll() is not None:
            watch.child = None
        owner = self._recorded(watch)
        if owner is None and watch.process is not None and watch.process.alive():
            owner = watch.process  # It has not taken the attempt yet.
        if owner is not None and owner.alive() and not self._stays(watch):
            self._watch(watch, owner)
        # In this order: it writes down its end before it ends.
        elif ended := watch.files.ends.ended():
            self._over(watch, ended)
        else:
            watch.why = watch.why or self._why_lost(watch.files, owner)
            self._later(functools.partial(self._sweep, watch, owner))

    def _stays(self, watch: Watch) -> bool:
        """Return whether an attempt has ended although its own process has not."""
        return False

    def _over(self, watch: Watch, ended: Ended) -> None:
        """Handle an attempt that has ended by itself and has recorded how."""
        self._finish(watch, ended)

    def _lost(self, watch: Watch) -> Ended:
        """Return the end of an attempt that is gone, and has not said how."""
        return watch.files.ends.lost(watch.why, never_ran=watch.never_ran)

    def _later(self, rest: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the rest beside everything else, for as long as this executor is open."""
        task = self._loop.create_task(_surely(rest))
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    def _watch(self, watch: Watch, process: Process) -> None:
        """Wait for the end of a process."""
        watch.process = process
        watch.pidfd = process.open()
        if watch.pidfd is not None:
            self._loop.add_reader(watch.pidfd, self._process_ended, watch)
        elif process.alive():
            self._loop.call_later(RETRY_S, self._settle, watch)
        else:
            self._loop.call_soon(self._settle, watch)

    async def _readable(self, fd: int) -> None:
        """Wait until a descriptor is readable, as a pidfd is at a process's end; close it."""
        readable = asyncio.Event()
        self._loop.add_reader(fd, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _process_ended(self, watch: Watch) -> None:
        self._forget_pidfd(watch)
        self._settle(watch)

    def _forget_pidfd(self, watch: Watch) -> None:
        if watch.pidfd is not None:
            self._loop.remove_reader(watch.pidfd)
            os.close(watch.pidfd)
            watch.pidfd = None

    def _finish(self, watch: Watch, ended: Ended) -> None:
        self._look(watch)
        self._emit(ended)
        del self._watches[watch.files.op]


async def _surely(rest: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run something, again and again while it fails: else what it is to end would never end."""
    pause_s = RETRY_S
    while True:
        try:
            await rest()
        except Exception:
            # Anything: no thread can be had, for example.
            log.warning("what has failed is tried again in %g s", pause_s, exc_info=True)
        else:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_MAX_S)


def _can_open_files() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let a child begin with signals blocked, so that none stops or kills it before it is ready."""
    held = {SUSPEND_SIGNAL, signal.SIGTERM, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
