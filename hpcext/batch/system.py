"""The batch system of a site, and questions to either system in the same words."""

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
"""Batch system → the command whose presence shows that it is there."""

NAMES = {"slurm": "Slurm", "lsf": "LSF"}


class Jobs(Protocol):
    """Questions about jobs; each raises BatchError if there is no answer."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs; one that nobody knows any more is left out."""

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """Return what is said of jobs; one that certainly nobody knows is left out.

        A job that has left the queue is looked up in accounting; if that does not answer, its state
        is unknown.
        """

    def end(self, job_id: JobId) -> End:
        """Return a job's state, and the latest instant of its end."""

    def preempted(self, job_id: JobId) -> bool:
        """Return whether the nodes of a job, which now ends earlier, are wanted for another."""


def jobs(system: str) -> Jobs:
    """Return how a batch system is asked about jobs."""
    return lsf.Commands() if system == "lsf" else slurm_reads.reads()


def leasing(system: str) -> Leasing:
    """Return how idle nodes of a batch system are asked for."""
    # Imported here, because every start of a suspendable job waits for our imports.
    from hpcext.batch.lsf.leasing import LsfLeasing  # noqa: PLC0415
    from hpcext.batch.slurm.leasing import SlurmLeasing  # noqa: PLC0415

    if system == "lsf":
        return LsfLeasing(load_settings().lsf_gpu_option)
    return SlurmLeasing()


def choose(said: str) -> str:
    """Return the batch system to use.

    Parameters
    ----------
    said : {"auto", "slurm", "lsf"}
        The setting ``batch``.

    Raises
    ------
    InputError
        It is ``auto``, and there is no batch system here, or both are.
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
