"""Runs attempts as steps of a Slurm job: one ``srun`` each, with a supervisor on the node.

Slurm chooses the GPUs of a step; which ones they are is known when its supervisor says so. Of what
a job needs only the start of its step goes through slurmctld: orders are files, and the news that
there is one goes from ``srun`` straight to the node.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpcext import protocol
from hpcext.batch import runner, slurm
from hpcext.batch.slurm_reads import reads
from hpcext.core.errors import BatchError
from hpcext.core.facts import NodeLost, Registered, Rescaled, Started
from hpcext.core.values import Action, Alloc, Kind
from hpcext.executors.allocation import AllocationExecutor
from hpcext.executors.attempts import AttemptFiles
from hpcext.executors.processes import Watch
from hpcext.launch import supervise, tree
from hpcext.protocol import NEWS_SIGNAL, Process

log = logging.getLogger(__name__)

STEP = "hpcext.step/1"
STEP_FILE = "step.json"
"""The ``srun`` of an attempt, for the manager that comes after this one."""

FIRST_PORT, PORTS = 20_000, 12_000
"""Below those that Linux gives to whoever asks for any (32768 and more)."""

ASK_PAUSE_S, ASK_PAUSE_MAX_S = 0.5, 30.0
"""Between two questions to slurmctld whether a step is gone."""


@dataclasses.dataclass(frozen=True)
class Share:
    """What a node of the allocation has beside its GPUs; a job gets its part by its GPUs.

    Attributes
    ----------
    gpus, cpus : int
    memory_mb : int
        0 where Slurm does not share memory out.
    logical : bool
        The GPUs are slots that nothing stands for in Slurm.
    """

    gpus: int
    cpus: int
    memory_mb: int
    logical: bool = False

    def options(self, gpus: int) -> list[str]:
        """For srun: a step that does not say what it needs waits for the others."""
        words = [f"--cpus-per-task={max(1, self.cpus * gpus // self.gpus)}"]
        if not self.logical:
            words.append(f"--gres=gpu:{gpus}")
        if self.memory_mb:
            words.append(f"--mem={max(1, self.memory_mb * gpus // self.gpus)}")
        return words


class SlurmSteps(AllocationExecutor):
    """Carries out actions inside one allocation.

    Parameters
    ----------
    shares : Mapping[str, Share]
        Of each node.
    addresses : Mapping[str, str]
        How each node is reached by the others.
    **common
        Those of :class:`~hpcext.executors.allocation.AllocationExecutor`.
    """

    # srun of 26.05 never unblocks what it inherits blocked, and would pass nothing on. It is told
    # something only when its step runs, or when it is to end.
    _holds_signals = False

    def __init__(
        self,
        *,
        shares: Mapping[str, Share],
        addresses: Mapping[str, str],
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._shares = dict(shares)
        self._addresses = dict(addresses)
        self._allocs: dict[int, Alloc] = {}
        self._told: set[int] = set()

    def perform(self, action: Action) -> None:
        """As the base class has it."""
        if action.kind is Kind.START:
            self._allocs[action.op] = action.alloc
        super().perform(action)

    def _start(self, action: Action) -> None:
        files = AttemptFiles(self._directory, action)
        watch = Watch(files, ())
        try:
            files.write_launch(
                self._spec(action.job),
                action.alloc,
                manager=self._manager_file,
                notices=True,
                rendezvous=self._rendezvous(action),
                allocation=self._allocation,
            )
            self._spawn(watch)
            assert watch.process is not None
            self._record(files, watch.process)
        except OSError as error:
            self._not_started(files, str(error.strerror))
            return
        self._watches[action.op] = watch
        self._emit(Started(action.job, action.op, ()))

    def _argv(self, watch: Watch) -> Sequence[str]:
        files = watch.files
        alloc = self._allocs[files.op]
        count = str(len(alloc))
        return [
            "srun",
            f"--jobid={self._job_id}",
            f"--job-name={self._name(files)}",
            "--exact",
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(alloc)}",
            *self._share(alloc).options(max(alloc.values())),
            # A rank that is gone on one node is waited for by those on the others.
            "--kill-on-bad-exit=1",
            "--mpi=none",
            "--unbuffered",
            "--quiet",
            sys.executable,
            "-I",
            "-S",
            supervise.__file__,
            str(files.directory),
        ]

    def _rendezvous(self, action: Action) -> str:
        """Where the ranks of several nodes meet; each attempt has a port of its own."""
        if len(action.alloc) == 1:
            return ""
        first = next(iter(action.alloc))
        return f"{self._addresses.get(first, first)}:{FIRST_PORT + action.op % PORTS}"

    def _share(self, nodes: Iterable[str]) -> Share:
        """What each of these nodes has, at least; they have as many GPUs."""
        shares = [self._shares[node] for node in nodes]
        return min(shares, key=lambda share: (share.cpus, share.memory_mb))

    def _environ(self) -> dict[str, str]:
        return protocol.without_slurm()

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
        protocol.write_json(files.directory / STEP_FILE, document)

    def _recorded(self, watch: Watch) -> Process | None:
        return watch.files.process(STEP_FILE, STEP)

    def _look(self, watch: Watch) -> None:
        files = watch.files
        if not watch.gpus and (gpus := files.step_gpus()):
            watch.gpus = gpus
            self._emit(Started(files.job, files.op, gpus))
        for fact in files.news():
            if isinstance(fact, Registered):
                # Whatever the job can do: a step keeps the GPUs that it began with.
                self._emit(msgspec.structs.replace(fact, in_place=False))
            else:
                self._emit(fact)
        if files.op in self._told:
            self._send_news(watch)

    def _tell(self, watch: Watch, process: Process, action: Action) -> None:
        files = watch.files
        if action.kind is Kind.RESCALE:
            why = "a step of Slurm keeps its GPUs"
            had = watch.gpus
            self._emit(Rescaled(files.job, files.op, action.resize, had, ok=False, why=why))
            return
        if action.force:
            watch.why = "it was killed"
            # To srun that is the order to end the step, by SIGKILL.
            process.send(signal.SIGTERM)
            return
        try:
            files.order("suspend" if action.kind is Kind.SUSPEND else "end")
        except OSError as error:
            # The deadline of the suspension comes; ending is done by force then.
            log.warning("job %s could not be told: %s", files.job, error.strerror)
            return
        self._told.add(files.op)
        self._send_news(watch)

    def _send_news(self, watch: Watch) -> None:
        """Have the supervisor look, if it is there; it looks by itself when it begins."""
        if watch.process is not None and watch.files.claimed():
            watch.process.send(NEWS_SIGNAL)
            self._told.discard(watch.files.op)

    async def _look_around(self, watch: Watch, *, noticed: bool = False) -> None:
        """Before anything is started again: is there time, and are the nodes of this one up?"""
        await super()._look_around(watch, noticed=noticed)
        for node in await asyncio.to_thread(self._down, list(self._allocs[watch.files.op])):
            self._emit(NodeLost(node))

    async def _sweep(self, watch: Watch, process: Process | None) -> None:
        """End the step of an ``srun`` that is gone, and wait until Slurm says that it is over."""
        pause_s = ASK_PAUSE_S
        while await asyncio.to_thread(self._end_step, self._name(watch.files)):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_PAUSE_MAX_S)
        await self._look_around(watch)
        self._finish(watch, watch.files.ended() or self._lost(watch))

    @staticmethod
    def _down(nodes: Sequence[str]) -> list[str]:
        """Which of these nodes Slurm has given up; nothing starts there any more."""
        try:
            states = reads().node_states(nodes)
        except BatchError as error:
            log.warning("whether %s is up is not known: %s", ", ".join(nodes), error)
            return []
        return [node for node in nodes if states.get(node) == "down"]

    def _end_step(self, name: str) -> bool:
        """Cancel a step; whether it may still be there."""
        try:
            steps = reads().steps(self._job_id)
            ours = [step for step in steps if step.name == name]
            for step in ours:
                runner.run(slurm.cancel_command(step.id))
        except BatchError as error:
            log.warning("whether %s is over is not known: %s", name, error)
            return True
        return bool(ours)

    def _why_lost(self, files: AttemptFiles, process: Process | None) -> str:
        if files.claimed() and process is None:
            return "its allocation is over"
        last = "its step was ended" if files.claimed() else "its step did not begin"
        return files.supervisor_said() or last

    def _name(self, files: AttemptFiles) -> str:
        return f"hpcext-{files.job}-{files.attempt}"
