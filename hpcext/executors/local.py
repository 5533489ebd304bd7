"""The executor of this machine: attempts with one supervisor process each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from hpcext.core.facts import Ended, Outcome
from hpcext.core.values import Action, Kind, Node, total
from hpcext.executors.attempt import learned
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.processes import RETRY_S, ProcessExecutor, Watch
from hpcext.executors.seats import Shared, of_seat
from hpcext.launch import devices, mps, supervise, sweep, tree
from hpcext.launch.nurseries import Nursery, Preloaded
from hpcext.launch.transparent import residence
from hpcext.launch.transparent.room import host_memory
from hpcext.process import Process
from hpcext.protocol import NEWS_SIGNAL, SUSPEND_SIGNAL
from hpcext.text import are, counted

log = logging.getLogger(__name__)

SPARE_BYTES = 2 << 30
"""With less free memory nothing is imported beforehand that nobody has asked for."""

SWEEP_PAUSE_S = 0.01
SWEEP_PAUSE_MAX_S = 1.0


def _too_few(free: int) -> str:
    return f"only {counted(free, 'GPU')} {are(free)} free"


class LocalExecutor(ProcessExecutor):
    """An executor that carries out actions on this machine.

    Parameters
    ----------
    node : Node
    indices : sequence of int
        The GPUs that may be used; `node.gpus` of them.
    hide_gpus : bool
        Whether the indices are logical slots, and jobs must not see the machine's own GPUs.
    shared : Shared, optional
        A further GPU, which has seats.
    **common
        Parameters of :class:`~hpcext.executors.processes.ProcessExecutor`.
    """

    # Whether supervisors take SIGTERM for a notice of a batch system, at which a session saves
    # itself, and one that cannot goes on. Then the order to end is written down for them.
    _hears_notices = False

    _preloads = True

    _beside = True
    """Whether the manager is still there while a job is suspended."""

    def __init__(
        self,
        *,
        node: Node,
        indices: Sequence[int],
        hide_gpus: bool = False,
        shared: Shared | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._hide_gpus = hide_gpus
        self._nursery = Nursery()
        self._preloaded = Preloaded()
        # Supervisors that stay with the processes of suspended jobs, to be reaped.
        self._keepers: dict[Process, subprocess.Popen[bytes]] = {}
        self._machine, self._shared = node.name, shared
        self._gpus = {node.name: tuple(f"{node.name}:{index}" for index in sorted(indices))}
        if shared is not None:
            self._gpus[shared.as_node(node.name).name] = shared.names(node.name)

    # Starting.

    def _start(self, action: Action) -> None:
        ((node, count),) = action.alloc.items()
        gpus = tuple(self._free(node)[:count])
        if len(gpus) < count:
            self._not_started(AttemptFiles(self._directory, action), _too_few(len(gpus)))
        else:
            self._begin(action, gpus)

    def _where(self, action: Action, gpus: Sequence[str]) -> dict[str, Any]:
        if self._shared is not None and gpus[0] in self._shared.names(self._machine):
            return of_seat(self._directory.parent, self._shared)
        return {"environ": devices.naming(self._devices(gpus)), "beside": self._beside}

    def _argv(self, watch: Watch) -> Sequence[str]:
        return [sys.executable, "-I", "-S", supervise.__file__, str(watch.files.directory)]

    def _process(self, watch: Watch, its_log: BinaryIO) -> int:
        spec = self._spec(watch.files.job)
        if spec.as_is and (keeper := residence.hand_over(watch.files.directory)):
            watch.child = self._keepers.pop(keeper, None)
            return keeper.pid
        nurseries = [self._nursery]
        launch = (watch.files.launch() or {}) if spec.preload or spec.learns else {}
        if launch.get("preload"):
            watch.nursery = self._preloaded.of(launch)
            nurseries.insert(0, watch.nursery)
        for nursery in nurseries:
            pid = nursery.begin(watch.files.directory, its_log.fileno())
            if pid is not None:
                return pid
        return super()._process(watch, its_log)

    def look(self) -> None:
        """Read the reports of all attempts that run, and what is imported for their jobs."""
        super().look()
        self._preloaded.look()
        for watch in list(self._watches.values()):
            if self._stays(watch):
                self._process_ended(watch)
        for keeper, child in list(self._keepers.items()):
            if child.poll() is not None:
                del self._keepers[keeper]
        for watch in self._watches.values():
            if watch.nursery is not None and watch.nursery.failed:
                if self._spec(watch.files.job).preload:
                    self._unpreloaded(watch.files, watch.nursery.failed)
                watch.nursery = None

    def close(self) -> None:
        """Stop watching. What runs goes on running."""
        super().close()
        self._nursery.close()
        self._preloaded.close()
        for child in self._keepers.values():
            child.returncode = child.poll() or 0

    def _recorded(self, watch: Watch) -> Process | None:
        return watch.files.supervisor()

    def _stays(self, watch: Watch) -> bool:
        return self._spec(watch.files.job).as_is and watch.files.ends.stays()

    def _finish(self, watch: Watch, ended: Ended) -> None:
        if watch.child is not None and watch.process is not None and watch.child.poll() is None:
            # It stays, to supervise the next attempt.
            self._keepers[watch.process] = watch.child
        super()._finish(watch, ended)

    # Changing and ending.

    def _tell(self, watch: Watch, process: Process, action: Action) -> None:
        if action.kind is Kind.RESCALE:
            self._rescale(watch, process, action)
        elif action.kind is Kind.SUSPEND:
            if self._spec(watch.files.job).as_is:
                # Who still keeps its processes would take the signal for one of the last attempt.
                self._order(watch.files, "leave" if self._leaves() else "suspend")
            process.send(SUSPEND_SIGNAL)
            self._prepare(watch)
        elif action.kind is Kind.INSPECT:
            if self._inspect(watch):
                process.send(NEWS_SIGNAL)
        elif action.force:
            self._kill(watch, process)
        else:
            self._end(watch, process)

    def _prepare(self, watch: Watch) -> None:
        """Have imported what the next attempt of a job is to find, while this one is suspended."""
        spec, launch = self._spec(watch.files.job), watch.files.launch()
        if not spec.learns or spec.preload or not self._beside or self._leaves():
            return
        left = host_memory(os.getpid())
        more = learned.of_last(watch.files.directory, spec).launch()
        if launch and more and (left is None or left > SPARE_BYTES):
            self._preloaded.prepare({**launch, **more})

    def _leaves(self) -> bool:
        """Return whether what is suspended has to leave this machine for good."""
        return False

    def _end(self, watch: Watch, supervisor: Process) -> None:
        """Have a supervisor end its attempt."""
        if not self._hears_notices:
            supervisor.send(signal.SIGTERM)
            return
        try:
            watch.files.order("end")
        except OSError as error:
            log.warning("job %s could not be ended: %s", watch.files.job, error.strerror)
            supervisor.send(signal.SIGTERM)
        else:
            supervisor.send(NEWS_SIGNAL)

    def _rescale(self, watch: Watch, supervisor: Process, action: Action) -> None:
        """Request another number of GPUs of an attempt; the last ones go, free ones come."""
        sizes = watch.files.sizes
        if sizes.requested() < action.resize:
            had, wanted = sizes.had(), total(action.alloc)
            more = self._free(next(iter(action.alloc)))
            gpus = (*had[:wanted], *more[: max(0, wanted - len(had))])
            try:
                if len(gpus) < wanted:
                    raise OSError(errno.EBUSY, _too_few(len(gpus)))
                sizes.request(action.resize, gpus, self._devices(gpus))
            except OSError as error:
                self._refuse(watch.files, action, had, str(error.strerror))
                return
            watch.gpus = sizes.held()
        supervisor.send(NEWS_SIGNAL)

    def _kill(self, watch: Watch, supervisor: Process) -> None:
        """Kill an attempt whose supervisor does not end it; a sweep ends what is left."""
        watch.why = "it was killed"
        # Its processes are known for certain now only: one may have cleared its environment.
        watch.victims.update(tree.descendants(supervisor.pid))
        self._later(functools.partial(self._kill_off, watch, supervisor))

    async def _kill_off(self, watch: Watch, supervisor: Process) -> None:
        """Kill a supervisor, and its command with it, after taking that off a shared GPU."""
        if (seat := _seat(watch)) is not None:
            await asyncio.to_thread(seat.release, watch.victims)
        supervisor.send(signal.SIGKILL)

    async def _sweep(self, watch: Watch, process: Process | None) -> None:
        """Kill what a dead supervisor left, and wait until all of it is gone."""
        if not watch.files.claimed():
            watch.never_ran = await self._bar(watch)
            if not watch.never_ran:
                self._settle(watch)
                return
        marks = sweep.marks_of(watch.files.directory)
        marks += [f"HPCEXT_NOTIFY={each}" for each in (process, watch.process) if each]
        pause_s = SWEEP_PAUSE_S
        seat = _seat(watch)
        if seat is not None:
            with contextlib.suppress(OSError):
                watch.victims.update(await asyncio.to_thread(tree.marked, marks))
            await asyncio.to_thread(seat.release, watch.victims)
        # In threads, since a node may have thousands of processes to look at.
        await asyncio.to_thread(tree.kill_marked, marks, watch.victims)
        dying = await asyncio.to_thread(sweep.Dying, process)
        while await asyncio.to_thread(tree.kill_marked, marks, watch.victims) or dying.any():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, SWEEP_PAUSE_MAX_S)
        if seat is not None:
            await asyncio.to_thread(seat.leave)
        self._finish(watch, watch.files.ends.ended() or self._lost(watch))

    async def _bar(self, watch: Watch) -> bool:
        """Claim an attempt that no supervisor has; return False if one has by now.

        One that was started by a manager before us may be about to begin. While the disk is full
        neither can.
        """
        while True:
            try:
                return sweep.bar(watch.files.directory)
            except OSError:
                await asyncio.sleep(RETRY_S)

    def _why_lost(self, files: AttemptFiles, process: Process | None) -> str:
        if files.machine_restarted():
            return "the machine was restarted"
        last = "its supervisor was killed" if files.claimed() else "its supervisor did not start"
        return files.ends.supervisor_said() or last

    def _lost(self, watch: Watch) -> Ended:
        # With the machine, or before it began: no fault of its own, however often that happens.
        spared = watch.never_ran or watch.files.machine_restarted()
        outcome = Outcome.EVICTED if spared else Outcome.LOST
        return watch.files.ends.lost(watch.why, outcome, never_ran=watch.never_ran)

    # GPUs.

    def _devices(self, gpus: Sequence[str]) -> str:
        """Return the value that makes these GPUs visible."""
        # No device has index -1, so none is seen.
        indices = ("-1" if self._hide_gpus else gpu.rpartition(":")[2] for gpu in gpus)
        return ",".join(dict.fromkeys(indices))

    def _free(self, node: str) -> list[str]:
        """Return GPUs, or seats, of a node that no attempt holds, in order."""
        held = {gpu for watch in self._watches.values() for gpu in watch.gpus}
        return [gpu for gpu in self._gpus.get(node, ()) if gpu not in held]


def _seat(watch: Watch) -> mps.Seat | None:
    """Return the way to an attempt's seat on a shared GPU, if that is where it runs."""
    where = (watch.files.launch() or {}).get("mps")
    return mps.Seat(where) if where else None
