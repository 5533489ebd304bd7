"""The base of executors whose attempts are steps, on nodes that our signals do not reach.

The process that started a step represents it. Orders are files; subclasses differ in how a
supervisor learns that there is one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpcext import documents
from hpcext.core.facts import Cleared, NodeLost, Registered
from hpcext.core.values import Action, Alloc, Kind
from hpcext.executors.allocation import AllocationExecutor
from hpcext.executors.attempt.directory import AttemptFiles, left_on
from hpcext.executors.processes import Watch
from hpcext.launch import tree
from hpcext.process import Process

STEP = "hpcext.step/1"
STEP_FILE = "step.json"
"""The file that names the process of a step, for the next manager."""

FIRST_PORT, PORTS = 20_000, 12_000
"""The first port and their number, below those that Linux assigns automatically (32768)."""

ASK_PAUSE_S, ASK_PAUSE_MAX_S = 0.5, 30.0
"""The first and longest pause, in seconds, between attempts to find out that a step is gone."""


class StepExecutor(AllocationExecutor):
    """An executor that carries out actions by steps inside one allocation.

    Parameters
    ----------
    addresses : Mapping[str, str]
        Node → how the others reach it, if not by its name.
    orphans : iterable of (str, int, str)
        Job, attempt and node of what may still run where a node was lost.
    **common
        Parameters of :class:`~hpcext.executors.allocation.AllocationExecutor`.
    """

    # The process of a step never unblocks what it inherits blocked: srun of 26.05 does not. It is
    # told something only when its step runs, or when it is to end.
    _holds_signals = False

    # The order to end the step.
    _end_signal = signal.SIGTERM

    def __init__(
        self,
        *,
        addresses: Mapping[str, str],
        orphans: Iterable[tuple[str, int, str]] = (),
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._addresses = dict(addresses)
        self._allocs: dict[int, Alloc] = {}
        self._gone: set[str] = set()
        self._orphans = list(orphans)

    def perform(self, action: Action) -> None:
        """Carry out an action, as the base class does."""
        if action.kind is Kind.START:
            self._allocs[action.op] = action.alloc
        super().perform(action)

    def look(self) -> None:
        """Read reports, and check for processes that are left on lost nodes."""
        super().look()
        for orphan in list(self._orphans):
            job, attempt, node = orphan
            if not left_on(self._directory, job, attempt, node):
                self._orphans.remove(orphan)
                self._emit(Cleared(job, attempt, node))

    def _left(self, job: str) -> Collection[int]:
        return {attempt for name, attempt, _ in self._orphans if name == job}

    def _lose(self, nodes: Iterable[str]) -> None:
        """Report nodes that the allocation no longer has; they do not come back to it."""
        for node in nodes:
            if node not in self._gone:
                self._gone.add(node)
                self._emit(NodeLost(node, gone=True))
                self._orphans += [
                    (watch.files.job, watch.files.attempt, node)
                    for watch in self._watches.values()
                    if node in self._allocs[watch.files.op]
                ]

    def _rendezvous(self, action: Action) -> str:
        """Return where the ranks of several nodes meet; each attempt has a port of its own."""
        if len(action.alloc) == 1:
            return ""
        first = next(iter(action.alloc))
        return f"{self._addresses.get(first, first)}:{FIRST_PORT + action.op % PORTS}"

    def _where(self, action: Action, gpus: Sequence[str]) -> dict[str, Any]:
        rendezvous = self._rendezvous(action)
        return {"notices": True, "rendezvous": rendezvous, "allocation": self._allocation}

    def _launch(self, watch: Watch) -> None:
        super()._launch(watch)
        if watch.process is None:
            return  # it has ended already, as will be seen
        try:
            self._record(watch.files, watch.process)
        except OSError as error:
            # It runs, and the next manager could not find it: it is ended as any other.
            watch.why = f"could not be started: {error.strerror}"
            watch.process.send(self._end_signal)

    def _record(self, files: AttemptFiles, process: Process) -> None:
        document = {
            "schema": STEP,
            "attempt": files.attempt,
            "op": files.op,
            "pid": process.pid,
            "start": process.start,
            "boot_id": tree.boot_id(),
            "at": time.time(),
        }
        documents.write_json(files.directory / STEP_FILE, document)

    def _recorded(self, watch: Watch) -> Process | None:
        return watch.files.process(STEP_FILE, STEP)

    def _settle(self, watch: Watch) -> None:
        # Other nodes write down their ends just before the process here ends.
        watch.files.look_anew()
        super()._settle(watch)

    def _look(self, watch: Watch) -> None:
        for fact in watch.files.news():
            if isinstance(fact, Registered):
                # Whatever the job can do: a step keeps the GPUs that it began with.
                self._emit(msgspec.structs.replace(fact, in_place=False))
            else:
                self._emit(fact)

    def _tell(self, watch: Watch, process: Process, action: Action) -> None:
        files = watch.files
        if action.kind is Kind.RESCALE:
            self._refuse(files, action, watch.gpus, "a step keeps its GPUs")
            return
        if action.kind is Kind.INSPECT:
            if self._inspect(watch):
                self._ordered(watch)
            return
        if action.force:
            watch.why = "it was killed"
            process.send(self._end_signal)
            return
        if self._order(files, "suspend" if action.kind is Kind.SUSPEND else "end"):
            self._ordered(watch)

    def _why_lost(self, files: AttemptFiles, process: Process | None) -> str:
        if files.claimed() and process is None:
            return "its allocation has ended"
        last = "its step was ended" if files.claimed() else "its step did not start"
        return files.ends.supervisor_said() or last

    def _ordered(self, watch: Watch) -> None:
        """Handle that an order was written down."""
