"""The executor of a suspendable Slurm job: its training runs in the batch step of that job.

So the script has the whole environment of a batch script, and its own ``srun`` works as usual. Only
a preemption would not reach it: when the grace begins, slurmctld sends SIGTERM to all steps except
the batch step. So another step, which does nothing else, waits for that signal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from hpcext.allocation import without_slurm
from hpcext.batch.slurm.reads import reads
from hpcext.core.values import Action
from hpcext.executors.on_node import OnNode
from hpcext.launch import leader
from hpcext.protocol import NOTICE_SIGNAL

log = logging.getLogger(__name__)

LISTEN_LOG = "listen.log"

LISTEN_END_S = 10.0
"""Seconds to wait for the end of the listening step; Slurm kills what outlives the script."""

LISTEN_PAUSE_S, LISTEN_PAUSE_MAX_S = 5.0, 300.0
"""The first and the longest pause, in seconds, before a failed listening step is replaced."""


class SlurmScript(OnNode):
    """An executor that carries out actions in the batch step of one allocation.

    Parameters
    ----------
    number : int
        The number of the job, as srun takes it.
    **common
        Parameters of the base classes.
    """

    _beside = False

    def __init__(self, *, number: int, **common: Any) -> None:
        super().__init__(jobs=reads(), **common)
        self._number = number
        self._listening: subprocess.Popen[bytes] | None = None
        self._later(self._listen)

    def close(self) -> None:
        """Stop watching, and end the listening step."""
        super().close()
        if self._listening is not None and self._listening.poll() is None:
            # The step completes at the end of its input. A signal would cancel it, and sacct would
            # show a cancelled step in a job that went well.
            if self._listening.stdin is not None:
                self._listening.stdin.close()
            try:
                self._listening.wait(LISTEN_END_S)
            except subprocess.TimeoutExpired:
                self._listening.terminate()
                self._listening.returncode = 0

    def _where(self, _action: Action, _gpus: Sequence[str]) -> dict[str, Any]:
        # The GPUs are those that Slurm has given the job.
        return {"notices": True, "allocation": self._allocation, "leader": leader.of_step()}

    async def _listen(self) -> None:
        """Suspend the trainings when a listening step ends because Slurm wants the nodes back."""
        pause_s = LISTEN_PAUSE_S
        while not self._walltime.leaving:
            failure = await self._step()
            await self._walltime.look(noticed=True)
            if self._walltime.leaving:
                break
            log.warning("nothing listens for preemptions for %g s: %s", pause_s, failure)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LISTEN_PAUSE_MAX_S)
        for watch in self._watches.values():
            if watch.process is not None:
                # Sessions save, and commands without one are told to end while there is time.
                watch.process.send(NOTICE_SIGNAL)

    async def _step(self) -> str:
        """Run a step that ends at a preemption; return an explanation in case it has failed."""
        log_path = self._directory.parent / LISTEN_LOG
        try:
            with open(log_path, "wb") as its_log:
                self._listening = subprocess.Popen(
                    self._command(),
                    env=without_slurm(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=its_log,
                    start_new_session=True,
                )
            await self._listens(self._listening)
            await self._readable(os.pidfd_open(self._listening.pid))
            self._listening.wait()
        except OSError as error:
            return f"srun: {error.strerror}"
        return f"its step has ended ({log_path})"

    async def _listens(self, step: subprocess.Popen[bytes]) -> None:
        """Wait until the step is there, and ask for a preemption that began before it was."""
        assert step.stdout is not None
        with step.stdout as said:
            await self._readable(os.dup(said.fileno()))
            if said.read(1):
                await self._walltime.look()

    def _command(self) -> list[str]:
        return [
            "srun",
            f"--jobid={self._number}",
            "--job-name=hpcext-listen",
            # It uses no resources, so that no step of the script has to wait for it.
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={self._machine}",
            "--cpus-per-task=1",
            "--gres=none",
            "--mem=0",
            "--mpi=none",
            "--quiet",
            # It says that it listens, and waits for the end of its input, which costs nothing
            # (srun(1), --input).
            *("sh", "-c", "echo; exec cat"),
        ]
