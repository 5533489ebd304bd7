"""Runs attempts on this machine: one supervisor process each, watched by its pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcext.core.facts import Ended, Outcome, Rescaled, Started
from hpcext.core.values import Action, Kind, Node, total
from hpcext.executors.attempts import SUPERVISOR_LOG, AttemptFiles
from hpcext.executors.base import Emit
from hpcext.jobfile import JobSpec
from hpcext.launch import supervise, tree
from hpcext.protocol import LAUNCH_FILE, NEWS_SIGNAL, SUSPEND_SIGNAL, Process

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Wait before a process is watched that could not be (too many open files)."""

SWEEP_PAUSE_S = 0.01
SWEEP_PAUSE_MAX_S = 1.0


@dataclasses.dataclass
class _Watch:
    """An attempt that is not known to have ended.

    Attributes
    ----------
    files : AttemptFiles
    gpus : tuple of str
        ``NODE:INDEX``; nobody else's until ``Ended`` is emitted.
    child : subprocess.Popen or None
        The supervisor, if this process started it; to be reaped.
    process : Process or None
        The supervisor.
    pidfd : int or None
    victims : set of Process
        What is to be killed if the supervisor cannot.
    why : str
        Why the attempt is lost, if it is.
    """

    files: AttemptFiles
    gpus: tuple[str, ...]
    child: subprocess.Popen[bytes] | None = None
    process: Process | None = None
    pidfd: int | None = None
    victims: set[Process] = dataclasses.field(default_factory=set)
    why: str = ""


class LocalExecutor:
    """Carries out actions on this machine.

    Parameters
    ----------
    directory : pathlib.Path
        Where jobs have their directories.
    node : Node
    indices : sequence of int
        The GPUs that may be used; each ``node.gpus`` of them.
    spec : callable
        Job id → what the job is.
    emit : Emit
    loop : asyncio.AbstractEventLoop
        That of the driver; everything here happens in its thread.
    manager_file : pathlib.Path, optional
        ``manager.json`` of who is to be signalled when there is news.
    hide_gpus : bool
        The indices are logical slots, and jobs must not see the machine's own GPUs.
    """

    def __init__(
        self,
        *,
        directory: Path,
        node: Node,
        indices: Sequence[int],
        spec: Callable[[str], JobSpec],
        emit: Emit,
        loop: asyncio.AbstractEventLoop,
        manager_file: Path | None = None,
        hide_gpus: bool = False,
    ) -> None:
        self._directory = directory.absolute()
        self._node = node
        self._indices = tuple(sorted(indices))
        self._spec = spec
        self._emit = emit
        self._loop = loop
        self._manager_file = manager_file.absolute() if manager_file else None
        self._hide_gpus = hide_gpus
        self._watches: dict[int, _Watch] = {}
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
                # It outlives us on purpose; do not let Popen complain of that.
                watch.child.returncode = watch.child.poll() or 0
        self._watches.clear()

    def _look(self, watch: _Watch) -> None:
        for fact in watch.files.news():
            if isinstance(fact, Rescaled):
                # What it gave back is free from here on; others hear of it right after.
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
        if watch is None or watch.process is None:
            return  # It has ended; the fact is on its way, or was heard.
        if action.kind is Kind.RESCALE:
            self._rescale(watch, watch.process, action)
        elif action.kind is Kind.SUSPEND:
            watch.process.send(SUSPEND_SIGNAL)
        elif action.force:
            self._kill(watch, watch.process)
        else:
            watch.process.send(signal.SIGTERM)

    # Starting.

    def _start(self, action: Action) -> None:
        """Start an attempt of which there is nothing yet."""
        files = AttemptFiles(self._directory, action)
        indices = self._free()[: total(action.alloc)]
        if len(indices) < total(action.alloc):
            self._not_started(files, f"only {len(indices)} GPUs are free")
            return
        gpus = tuple(self._name(index) for index in indices)
        environ = {
            # Indices are those of the driver (nvidia-smi), whose order is not CUDA's by default.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": self._devices(gpus),
        }
        watch = _Watch(files, gpus)
        try:
            files.write_launch(
                self._spec(action.job),
                action.alloc,
                gpus=gpus,
                environ=environ,
                manager=self._manager_file,
            )
            self._spawn(watch)
        except OSError as error:
            self._not_started(files, str(error.strerror))
            return
        self._watches[action.op] = watch
        self._emit(Started(action.job, action.op, gpus))

    def _rescale(self, watch: _Watch, supervisor: Process, action: Action) -> None:
        """Ask an attempt to change its number of GPUs; the last ones go, free ones come."""
        sizes = watch.files.sizes
        if sizes.asked() < action.resize:
            had, wanted = sizes.had(), total(action.alloc)
            more = [self._name(index) for index in self._free()]
            gpus = (*had[:wanted], *more[: max(0, wanted - len(had))])
            try:
                if len(gpus) < wanted:
                    raise OSError(errno.EBUSY, f"only {len(gpus)} GPUs are free")
                sizes.ask(action.resize, gpus, self._devices(gpus))
            except OSError as error:
                why = str(error.strerror)
                self._emit(Rescaled(action.job, action.op, action.resize, had, ok=False, why=why))
                return
            watch.gpus = sizes.held()
        supervisor.send(NEWS_SIGNAL)

    def _devices(self, gpus: Sequence[str]) -> str:
        """What ``CUDA_VISIBLE_DEVICES`` is to be for these GPUs."""
        # No device has index -1, so CUDA sees none.
        indices = ("-1" if self._hide_gpus else gpu.rpartition(":")[2] for gpu in gpus)
        return ",".join(dict.fromkeys(indices))

    def _free(self) -> list[int]:
        """Indices of GPUs that no attempt holds, ascending."""
        held = {gpu for watch in self._watches.values() for gpu in watch.gpus}
        return [index for index in self._indices if self._name(index) not in held]

    def _name(self, index: int) -> str:
        return f"{self._node.name}:{index}"

    def _spawn(self, watch: _Watch) -> None:
        """Start a supervisor and watch it.

        Raises
        ------
        OSError
            There is none.
        """
        directory = watch.files.directory
        argv = [sys.executable, "-I", "-S", supervise.__file__, str(directory)]
        with open(directory / SUPERVISOR_LOG, "ab") as its_log, _signals_held():
            watch.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=its_log,
                stderr=its_log,
                cwd="/",
                start_new_session=True,
            )
        # Known from now on, so that an action that follows at once reaches it.
        watch.process = Process.of(watch.child.pid)
        # Later, so that Started comes before Ended however fast it is.
        self._loop.call_soon(self._settle, watch)

    def _not_started(self, files: AttemptFiles, why: str) -> None:
        self._emit(Ended(files.job, files.op, Outcome.LOST, why=f"could not be started: {why}"))

    def _adopt(self, action: Action) -> bool:
        """Take over an attempt that was launched before; False if it was not."""
        watch = self._watches.get(action.op)
        if watch is not None:
            self._emit(Started(action.job, action.op, watch.gpus))
            return True
        files = AttemptFiles(self._directory, action)
        if not os.path.exists(files.directory / LAUNCH_FILE):
            return False
        watch = self._watches[action.op] = _Watch(files, files.sizes.held())
        self._emit(Started(action.job, action.op, watch.gpus))
        if files.claimed() or files.ended() is not None:
            self._settle(watch)
            return True
        # The last manager died before a supervisor began. If one is on its way all the same, only
        # one of the two takes the attempt, and _settle finds out which.
        try:
            self._spawn(watch)
        except OSError as error:
            del self._watches[action.op]
            self._not_started(files, str(error.strerror))
        return True

    # Watching.

    def _settle(self, watch: _Watch) -> None:
        """Find out how things stand with an attempt, and go on from there."""
        if self._closed:
            return
        if not _can_open_files():
            # What cannot be looked at is not to be taken for dead.
            self._loop.call_later(RETRY_S, self._settle, watch)
            return
        if watch.child is not None and watch.child.poll() is not None:
            watch.child = None
        owner = watch.files.supervisor()
        if owner is None and watch.child is not None:
            owner = Process.of(watch.child.pid)  # It has not taken the attempt yet.
        if owner is not None and owner.alive():
            self._watch(watch, owner)
        # In this order: it writes down its end before it ends.
        elif ended := watch.files.ended():
            self._finish(watch, ended)
        else:
            watch.why = watch.why or self._why_lost(watch.files, owner)
            task = self._loop.create_task(self._sweep(watch, owner))
            self._sweeps.add(task)
            task.add_done_callback(self._sweeps.discard)

    def _watch(self, watch: _Watch, process: Process) -> None:
        """Wait for the end of a supervisor."""
        watch.process = process
        watch.pidfd = process.open()
        if watch.pidfd is not None:
            self._loop.add_reader(watch.pidfd, self._supervisor_ended, watch)
        elif process.alive():
            self._loop.call_later(RETRY_S, self._settle, watch)
        else:
            self._loop.call_soon(self._settle, watch)

    def _supervisor_ended(self, watch: _Watch) -> None:
        self._forget_pidfd(watch)
        self._settle(watch)

    def _forget_pidfd(self, watch: _Watch) -> None:
        if watch.pidfd is not None:
            self._loop.remove_reader(watch.pidfd)
            os.close(watch.pidfd)
            watch.pidfd = None

    @staticmethod
    def _why_lost(files: AttemptFiles, owner: Process | None) -> str:
        if files.claimed() and owner is None:
            return "the machine was restarted"
        last = "its supervisor was killed" if files.claimed() else "its supervisor did not begin"
        return files.supervisor_said() or last

    # Ending.

    def _kill(self, watch: _Watch, supervisor: Process) -> None:
        """Kill an attempt whose supervisor does not end it; what is left is swept."""
        watch.why = "it was killed"
        # Its processes are known for certain now only: one may have cleared its environment.
        watch.victims.update(tree.descendants(supervisor.pid))
        supervisor.send(signal.SIGKILL)

    async def _sweep(self, watch: _Watch, owner: Process | None) -> None:
        """Kill what a dead supervisor left, and wait until all of it is gone."""
        marks = [f"HPCEXT_REPORT_DIR={watch.files.directory}"]
        marks += [f"HPCEXT_NOTIFY={process}" for process in (owner, watch.process) if process]
        pause_s = SWEEP_PAUSE_S
        # In a thread, since a node may have thousands of processes to look at.
        while await asyncio.to_thread(_kill_marked, marks, watch.victims):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, SWEEP_PAUSE_MAX_S)
        self._finish(watch, watch.files.ended() or watch.files.lost(watch.why))

    def _finish(self, watch: _Watch, ended: Ended) -> None:
        self._look(watch)
        self._emit(ended)
        del self._watches[watch.files.op]


def _kill_marked(marks: Sequence[str], victims: set[Process]) -> bool:
    """Kill what carries a mark and what was chosen before; whether some of it is still there."""
    try:
        found = tree.marked(marks)
    except OSError:
        return True  # Not all of them could be looked at.
    victims.update(found)
    for process in victims:
        tree.send(process, signal.SIGKILL)
    # Once more if anything was found, which may have forked meanwhile; and a process that is
    # dying has no environment any more, but may still hold its GPU.
    return bool(found) or any(process.alive() for process in victims)


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
