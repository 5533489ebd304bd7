"""Runs attempts on this machine: one supervisor process each."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from collections.abc import Sequence
from typing import Any

from hpcext.core.facts import Rescaled, Started
from hpcext.core.values import Action, Kind, Node, total
from hpcext.executors.attempts import AttemptFiles
from hpcext.executors.processes import ProcessExecutor, Watch
from hpcext.launch import devices, supervise, tree
from hpcext.protocol import NEWS_SIGNAL, SUSPEND_SIGNAL, Process
from hpcext.text import are, counted

SWEEP_PAUSE_S = 0.01
SWEEP_PAUSE_MAX_S = 1.0


def _too_few(free: int) -> str:
    return f"only {counted(free, 'GPU')} {are(free)} free"


class LocalExecutor(ProcessExecutor):
    """Carries out actions on this machine.

    Parameters
    ----------
    node : Node
    indices : sequence of int
        The GPUs that may be used; each ``node.gpus`` of them.
    hide_gpus : bool
        The indices are logical slots, and jobs must not see the machine's own GPUs.
    **common
        Those of :class:`~hpcext.executors.processes.ProcessExecutor`.
    """

    def __init__(
        self, *, node: Node, indices: Sequence[int], hide_gpus: bool = False, **common: Any
    ) -> None:
        super().__init__(**common)
        self._node = node
        self._indices = tuple(sorted(indices))
        self._hide_gpus = hide_gpus

    # Starting.

    def _start(self, action: Action) -> None:
        files = AttemptFiles(self._directory, action)
        indices = self._free()[: total(action.alloc)]
        if len(indices) < total(action.alloc):
            self._not_started(files, _too_few(len(indices)))
            return
        gpus = tuple(self._name(index) for index in indices)
        watch = Watch(files, gpus)
        try:
            files.write_launch(
                self._spec(action.job),
                action.alloc,
                gpus=gpus,
                manager=self._manager_file,
                **self._more(gpus),
            )
            self._spawn(watch)
        except OSError as error:
            self._not_started(files, str(error.strerror))
            return
        self._watches[action.op] = watch
        self._emit(Started(action.job, action.op, gpus))

    def _more(self, gpus: Sequence[str]) -> dict[str, Any]:
        """What else :meth:`AttemptFiles.write_launch` is to know."""
        return {"environ": devices.naming(self._devices(gpus))}

    def _argv(self, watch: Watch) -> Sequence[str]:
        return [sys.executable, "-I", "-S", supervise.__file__, str(watch.files.directory)]

    def _recorded(self, watch: Watch) -> Process | None:
        return watch.files.supervisor()

    # Changing and ending.

    def _tell(self, watch: Watch, process: Process, action: Action) -> None:
        if action.kind is Kind.RESCALE:
            self._rescale(watch, process, action)
        elif action.kind is Kind.SUSPEND:
            process.send(SUSPEND_SIGNAL)
        elif action.force:
            self._kill(watch, process)
        else:
            process.send(signal.SIGTERM)

    def _rescale(self, watch: Watch, supervisor: Process, action: Action) -> None:
        """Ask an attempt to change its number of GPUs; the last ones go, free ones come."""
        sizes = watch.files.sizes
        if sizes.asked() < action.resize:
            had, wanted = sizes.had(), total(action.alloc)
            more = [self._name(index) for index in self._free()]
            gpus = (*had[:wanted], *more[: max(0, wanted - len(had))])
            try:
                if len(gpus) < wanted:
                    raise OSError(errno.EBUSY, _too_few(len(gpus)))
                sizes.ask(action.resize, gpus, self._devices(gpus))
            except OSError as error:
                why = str(error.strerror)
                self._emit(Rescaled(action.job, action.op, action.resize, had, ok=False, why=why))
                return
            watch.gpus = sizes.held()
        supervisor.send(NEWS_SIGNAL)

    def _kill(self, watch: Watch, supervisor: Process) -> None:
        """Kill an attempt whose supervisor does not end it; what is left is swept."""
        watch.why = "it was killed"
        # Its processes are known for certain now only: one may have cleared its environment.
        watch.victims.update(tree.descendants(supervisor.pid))
        supervisor.send(signal.SIGKILL)

    async def _sweep(self, watch: Watch, process: Process | None) -> None:
        """Kill what a dead supervisor left, and wait until all of it is gone."""
        marks = [f"HPCEXT_REPORT_DIR={watch.files.directory}"]
        marks += [f"HPCEXT_NOTIFY={each}" for each in (process, watch.process) if each]
        pause_s = SWEEP_PAUSE_S
        # In a thread, since a node may have thousands of processes to look at.
        while await asyncio.to_thread(tree.kill_marked, marks, watch.victims):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, SWEEP_PAUSE_MAX_S)
        self._finish(watch, watch.files.ended() or self._lost(watch))

    def _why_lost(self, files: AttemptFiles, process: Process | None) -> str:
        if files.claimed() and process is None:
            return "the machine was restarted"
        last = "its supervisor was killed" if files.claimed() else "its supervisor did not begin"
        return files.supervisor_said() or last

    # GPUs.

    def _devices(self, gpus: Sequence[str]) -> str:
        """What is said to be visible of these GPUs."""
        # No device has index -1, so none is seen.
        indices = ("-1" if self._hide_gpus else gpu.rpartition(":")[2] for gpu in gpus)
        return ",".join(dict.fromkeys(indices))

    def _free(self) -> list[int]:
        """Indices of GPUs that no attempt holds, ascending."""
        held = {gpu for watch in self._watches.values() for gpu in watch.gpus}
        return [index for index in self._indices if self._name(index) not in held]

    def _name(self, index: int) -> str:
        return f"{self._node.name}:{index}"
