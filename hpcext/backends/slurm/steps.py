"""The executor of attempts as steps of a Slurm job: one ``srun`` each, and a supervisor per node.

Slurm chooses the GPUs of a step; the supervisor reports which they are. Of what a job needs only
the start of its step goes through slurmctld: orders are files, and the news that there is one goes
from ``srun`` straight to the node.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcext.allocation import without_slurm
from hpcext.batch import runner, slurm
from hpcext.batch.slurm.reads import reads
from hpcext.core.errors import BatchError
from hpcext.core.facts import Ended, Started
from hpcext.core.values import Action
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.processes import Watch
from hpcext.executors.steps import ASK_PAUSE_MAX_S, ASK_PAUSE_S, StepExecutor
from hpcext.launch import supervise
from hpcext.process import Process
from hpcext.protocol import NEWS_SIGNAL

log = logging.getLogger(__name__)

BEGIN_S = 120.0
"""Seconds after which a step that has not begun gives its GPUs back.

Slurm takes them for busy, or a node does not answer. It is long enough for a controller that
restarts.
"""


@dataclasses.dataclass(frozen=True)
class Share:
    """What a node has beside its GPUs; a job gets a share in proportion to its GPUs.

    Attributes
    ----------
    gpus, cpus : int
    memory_mb : int
        0 if Slurm does not share memory out.
    logical : bool
        Whether the GPUs are slots that nothing stands for in Slurm.
    """

    gpus: int
    cpus: int
    memory_mb: int
    logical: bool = False

    def options(self, gpus: int) -> list[str]:
        """Return options for srun: a step that does not say what it needs waits for the others."""
        words = [f"--cpus-per-task={max(1, self.cpus * gpus // self.gpus)}"]
        if not self.logical:
            words.append(f"--gres=gpu:{gpus}")
        if self.memory_mb:
            words.append(f"--mem={max(1, self.memory_mb * gpus // self.gpus)}")
        return words


class SlurmSteps(StepExecutor):
    """An executor that carries out actions inside one allocation.

    Parameters
    ----------
    number : int
        The job's number: srun takes nothing else.
    shares : Mapping[str, Share]
        Of each node.
    **common
        Parameters of :class:`~hpcext.executors.steps.StepExecutor`.
    """

    def __init__(self, *, number: int, shares: Mapping[str, Share], **common: Any) -> None:
        super().__init__(jobs=reads(), **common)
        self._number = number
        self._shares = dict(shares)
        self._told: set[int] = set()

    def _start(self, action: Action) -> None:
        if self._begin(action, ()):
            self._loop.call_later(BEGIN_S, self._late, action.op)

    def _adopt(self, action: Action) -> bool:
        adopted = super()._adopt(action)
        if adopted:
            self._loop.call_later(BEGIN_S, self._late, action.op)
        return adopted

    def _late(self, op: int) -> None:
        """End a step that has not begun; that is no failure of its job."""
        watch = self._watches.get(op)
        if watch is None or watch.process is None or watch.files.begun():
            return
        watch.why = f"its step did not start within {BEGIN_S:g} s"
        log.warning("job %s: %s", watch.files.job, watch.why)
        # The order to end the step.
        watch.process.send(signal.SIGTERM)

    def _argv(self, watch: Watch) -> Sequence[str]:
        files = watch.files
        alloc = self._allocs[files.op]
        count = str(len(alloc))
        return [
            "srun",
            f"--jobid={self._number}",
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

    def _share(self, nodes: Iterable[str]) -> Share:
        """Return what each of these nodes has at least; they have as many GPUs."""
        shares = [self._shares[node] for node in nodes]
        return min(shares, key=lambda share: (share.cpus, share.memory_mb))

    def _environ(self) -> dict[str, str]:
        return without_slurm()

    def _look(self, watch: Watch) -> None:
        files = watch.files
        if not watch.gpus and (gpus := files.step_gpus()):
            watch.gpus = gpus
            self._emit(Started(files.job, files.op, gpus))
        super()._look(watch)
        if files.op in self._told:
            self._send_news(watch)

    def _ordered(self, watch: Watch) -> None:
        self._told.add(watch.files.op)
        self._send_news(watch)

    def _send_news(self, watch: Watch) -> None:
        """Have the supervisor look, if it is there; it looks by itself when it begins."""
        if watch.process is not None and watch.files.claimed():
            watch.process.send(NEWS_SIGNAL)
            self._told.discard(watch.files.op)

    async def _look_around(self, watch: Watch, *, noticed: bool = False) -> None:
        """Look, before anything is started again, how much time and which nodes are left."""
        await super()._look_around(watch, noticed=noticed)
        if not self._walltime.leaving:
            self._lose(await asyncio.to_thread(self._missing))

    def _over(self, watch: Watch, ended: Ended) -> None:
        """Handle an end; the first of several nodes may have been told as another has failed."""
        super()._over(watch, watch.files.ends.failed_by_itself() or ended)

    async def _sweep(self, watch: Watch, process: Process | None) -> None:
        """End the step of an ``srun`` that is gone, and wait until Slurm says that it is over."""
        pause_s = ASK_PAUSE_S
        while await asyncio.to_thread(self._end_step, self._name(watch.files)):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_PAUSE_MAX_S)
        await self._look_around(watch)
        files = watch.files
        # Of the first node nothing may be known where another has failed.
        self._finish(
            watch, files.ends.failed_by_itself() or files.ends.ended() or self._lost(watch)
        )

    def _missing(self) -> list[str]:
        """Return nodes that the job no longer has.

        The job is asked, since a node that was down may be up again without being the job's.
        """
        try:
            left = reads().nodes_of(self._job_id)
        except BatchError as error:
            log.warning("it is unknown which nodes are left: %s", error)
            return []
        return [node for node in self._shares if left and node not in left]

    def _end_step(self, name: str) -> bool:
        """Cancel a step; return whether it may still be there."""
        try:
            steps = reads().steps(self._job_id)
            ours = [step for step in steps if step.name == name]
            for step in ours:
                runner.run(slurm.cancel_command(step.id))
        except BatchError as error:
            log.warning("it is unknown whether %s has ended: %s", name, error)
            return True
        return bool(ours)

    def _name(self, files: AttemptFiles) -> str:
        return f"hpcext-{files.job}-{files.attempt}"
