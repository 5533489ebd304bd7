"""The executor of attempts as steps of a Slurm job: one ``srun`` each, and a supervisor per node.

Slurm chooses the GPUs of a step, and the supervisor reports which they are. Only the start of a
step goes through slurmctld: orders are files, and the signal that there is one goes from ``srun``
straight to the node.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import private, protocol
from hpcext.allocation import without_slurm
from hpcext.batch import runner, slurm
from hpcext.batch.slurm import pyxis
from hpcext.batch.slurm.reads import reads
from hpcext.core.errors import BatchError
from hpcext.core.facts import Ended, Started
from hpcext.core.values import Action
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.processes import Watch
from hpcext.executors.steps import ASK_PAUSE_MAX_S, ASK_PAUSE_S, StepExecutor
from hpcext.launch import command, container, supervise
from hpcext.process import Process
from hpcext.protocol import NEWS_SIGNAL

log = logging.getLogger(__name__)

_SUPERVISE = ("-I", "-S", supervise.__file__)

BEGIN_S = 120.0
"""Seconds after which a step that has not begun gives its GPUs back.

That happens if Slurm takes them for busy, or a node does not answer. A controller may restart
meanwhile.
"""


@dataclasses.dataclass(frozen=True)
class Share:
    """The CPUs and memory of a node, of which a job gets a share in proportion to its GPUs.

    Attributes
    ----------
    gpus, cpus : int
    memory_mb : int
        0 if Slurm does not divide memory.
    logical : bool
        Whether the GPUs are slots, which Slurm does not know.
    """

    gpus: int
    cpus: int
    memory_mb: int
    logical: bool = False

    def options(self, gpus: int) -> list[str]:
        """Return the options of srun; without these needs, a step would wait for the others."""
        words = [f"--cpus-per-task={max(1, self.cpus * gpus // self.gpus)}"]
        if not self.logical:
            words.append(f"--gres=gpu:{gpus}")
        if self.memory_mb:
            words.append(f"--mem={max(1, self.memory_mb * gpus // self.gpus)}")
        return words


def in_image(files: AttemptFiles) -> tuple[list[str], list[str]] | None:
    """Return how an attempt begins in a container of pyxis; None if it does not.

    Parameters
    ----------
    files : AttemptFiles

    Returns
    -------
    tuple of list of str, or None
        As :meth:`hpcext.launch.container.Container.step`.

    Raises
    ------
    OSError
        There is no such image, or what the step needs cannot be made.
    """
    launch = files.launch() or {}
    stated = launch.get("container")
    if not stated:
        return None
    runtime, environ = str(stated.get("runtime")), protocol.environ()
    if runtime == container.AUTO and not container.find(runtime, environ) and pyxis.offered():
        runtime = container.PYXIS
    if runtime != container.PYXIS:
        return None
    place = container.Container(stated, files.directory, str(launch["cwd"]), attempt=files.attempt)
    own = Path(launch["log"])
    with open(private.open_log(own), "ab") as its_log:
        fd = its_log.fileno()
        return place.step(lambda what: command.write_line(fd, own, f"hpcext: {what}"))


class SlurmSteps(StepExecutor):
    """An executor that carries out actions inside one allocation.

    Parameters
    ----------
    number : int
        The number of the job, as srun takes it.
    shares : Mapping[str, Share]
        Name of a node → its CPUs and memory.
    **common
        Parameters of :class:`~hpcext.executors.steps.StepExecutor`.
    """

    def __init__(self, *, number: int, shares: Mapping[str, Share], **common: Any) -> None:
        super().__init__(jobs=reads(), **common)
        self._number = number
        self._shares = dict(shares)
        self._told: set[int] = set()

    def _start(self, action: Action) -> None:
        if not self._shares.keys() >= action.alloc.keys():
            # Another allocation has begun since it was to start.
            files = AttemptFiles(self._directory, action)
            self._not_started(files, "its nodes are not those of this allocation")
        elif self._begin(action, ()):
            self._loop.call_later(BEGIN_S, self._end_late_step, action.op)

    def _adopt(self, action: Action) -> bool:
        adopted = super()._adopt(action)
        if adopted:
            self._loop.call_later(BEGIN_S, self._end_late_step, action.op)
        return adopted

    def _end_late_step(self, op: int) -> None:
        """End a step that has not begun, which is no failure of its job."""
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
        options, supervisor = in_image(files) or ([], [sys.executable, *_SUPERVISE])
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
            # Otherwise ranks would wait for one that has failed on another node.
            "--kill-on-bad-exit=1",
            "--mpi=none",
            "--unbuffered",
            "--quiet",
            *options,
            *supervisor,
            str(files.directory),
        ]

    def _share(self, nodes: Iterable[str]) -> Share:
        """Return the smallest share among these nodes, which have the same number of GPUs."""
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
        """Have the supervisor look for orders; one that has not begun will do so by itself.

        So will that of a command which the signal asks to save: `srun` passes it on to all
        processes of the step, also to those that it would end.
        """
        if watch.files.asked_by() == NEWS_SIGNAL.name:
            self._told.discard(watch.files.op)
            return
        if watch.process is not None and watch.files.claimed():
            watch.process.send(NEWS_SIGNAL)
            self._told.discard(watch.files.op)

    async def _look_around(self, watch: Watch, *, noticed: bool = False) -> None:
        """Find out, before anything is started again, how much time and which nodes are left."""
        await super()._look_around(watch, noticed=noticed)
        if not self._walltime.leaving:
            self._lose(await asyncio.to_thread(self._lost_nodes))

    def _over(self, watch: Watch, ended: Ended) -> None:
        """Handle an end; the first node may have been told to end because another has failed."""
        super()._over(watch, watch.files.ends.failed_by_itself() or ended)

    async def _sweep(self, watch: Watch, process: Process | None) -> None:
        """End the step of an ``srun`` that is gone, and wait until Slurm reports its end."""
        pause_s = ASK_PAUSE_S
        while await asyncio.to_thread(self._end_step, self._name(watch.files)):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_PAUSE_MAX_S)
        await self._look_around(watch)
        files = watch.files
        # If another node has failed, the first one may have reported nothing.
        self._finish(
            watch, files.ends.failed_by_itself() or files.ends.ended() or self._lost(watch)
        )

    def _lost_nodes(self) -> list[str]:
        """Return nodes that the job no longer has.

        They are those of the job, because a node that was down may be up again without the job.
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
