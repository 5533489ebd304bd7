"""A ticket that is a job of Slurm."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcext import protocol
from hpcext.allocation import Allocation, JobId, array_of_slurm, without_slurm
from hpcext.backends.own_job import Ending
from hpcext.backends.slurm import job as slurm_job
from hpcext.batch import runner, slurm
from hpcext.batch.jobs import as_job
from hpcext.batch.slurm.reads import reads


class SlurmTicket:
    """A job of Slurm as an :class:`~hpcext.backends.own_job.OwnJob`.

    Parameters
    ----------
    here : Allocation
    """

    system = "slurm"
    run_of = ""
    # SIGUSR2 may come at the begin of a grace, but SIGTERM follows.
    leaves: frozenset[signal.Signals] = frozenset()
    ends = frozenset({signal.SIGTERM})

    def __init__(self, here: Allocation) -> None:
        self.id: JobId = here.name
        array = as_job(here.task.partition("_")[0])
        self.numbers: tuple[JobId, ...] = (here.job_id, *([] if array is None else [array]))
        self.name = protocol.environ().get("SLURM_JOB_NAME", "job")
        self._restarts = here.restarts

    def begin(self, state_dir: Path) -> None:
        """Do nothing, because scancel reaches the script."""

    def forget(self) -> None:
        """Do nothing."""

    def environ(self) -> dict[str, str]:
        """Return our environment without SLURM_*, except what distinguishes tasks of an array."""
        ours = without_slurm()
        # A trainer outlives a token, and commands that find an expired one try no other way.
        ours.pop("SLURM_JWT", None)
        return ours | array_of_slurm()

    def is_its_script(self, path: Path) -> bool:
        """Return False, because sbatch takes only scripts that name their interpreter."""
        return False

    def keeps_output(self) -> bool:
        """Return whether earlier output is kept, which depends on ``--open-mode``."""
        return self._restarts == 0 or os.fstat(sys.stdout.fileno()).st_size > 0

    def ending(self) -> Ending:
        """Return why slurmctld is ending the job.

        A signal alone is no end yet: it may come at the begin of a grace, or from anybody.
        """
        said = runner.run(slurm.job_command(self.id), environ=slurm.epoch_times())
        if slurm.is_running(said):
            return Ending.NONE
        return Ending.CANCELLED if slurm.was_cancelled(said, self._restarts) else Ending.AGAIN

    def end_s(self) -> float | None:
        """Return the end of its time limit, or of its grace, in epoch seconds."""
        return reads().end(self.id).end_s

    def go_back(self) -> int | None:
        """Requeue it with scontrol; SIGTERM follows."""
        slurm_job.requeue(self.id)
        return None

    def given_up(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """Return those that were cancelled while they waited in the queue."""
        return {job for job, state in reads().states(job_ids).items() if state == "cancelled"}
