"""Which batch system a site has, and what is asked of either in the same words."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Protocol

from hpcext.batch import lsf
from hpcext.batch.leasing import Leasing
from hpcext.batch.slurm import End, Seen
from hpcext.batch.slurm import reads as slurm_reads
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.protocol import JobId

SUBMIT = {"slurm": "sbatch", "lsf": "bsub"}
"""Batch system → the command by which it is known to be there."""

NAMES = {"slurm": "Slurm", "lsf": "LSF"}


class Jobs(Protocol):
    """Questions about jobs. Each raises BatchError where there is no answer."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """States of jobs; one that nobody knows any more is left out."""

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """What is said of jobs; one that is known to be known to nobody is left out.

        A job that has left the queue is looked up in accounting; where that does not answer, the
        state of the job is not known.
        """

    def end(self, job_id: JobId) -> End:
        """A job's state, and when it ends at the latest."""

    def preempted(self, job_id: JobId) -> bool:
        """Whether the nodes of a job that ends earlier now are wanted for another."""


def jobs(system: str) -> Jobs:
    """How a batch system is asked."""
    return lsf.Commands() if system == "lsf" else slurm_reads.reads()


def leasing(system: str) -> Leasing:
    """How idle nodes of a batch system are asked for."""
    # Here: every start of a suspendable job waits for our imports.
    from hpcext.batch.lsf.leasing import LsfLeasing  # noqa: PLC0415
    from hpcext.batch.slurm.leasing import SlurmLeasing  # noqa: PLC0415

    if system == "lsf":
        return LsfLeasing(load_settings().lsf_gpu_option)
    return SlurmLeasing()


def choose(said: str) -> str:
    """The batch system to use.

    Parameters
    ----------
    said : {"auto", "slurm", "lsf"}
        The setting ``batch``.

    Raises
    ------
    InputError
        It is to be found out, and there is none here, or both.
    """
    if said != "auto":
        return said
    found = [name for name, command in SUBMIT.items() if shutil.which(command)]
    if len(found) == 1:
        return found[0]
    raise InputError(
        "both sbatch and bsub are here" if found else "neither sbatch nor bsub is here",
        where="batch",
        valid=", ".join(SUBMIT),
        do="set HPCEXT_BATCH" if found else "run it where a batch system's commands are",
    )
