"""The Slurm job of a pilot: its submission, and its requeue."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcext.allocation import CHARGED, PLACED, JobId, clusters_of_user, for_sbatch
from hpcext.backends import batch_job
from hpcext.backends.base import PilotOrder
from hpcext.batch import runner, slurm
from hpcext.batch.slurm import site
from hpcext.batch.slurm.reads import reads
from hpcext.config import Settings
from hpcext.core.errors import BatchError
from hpcext.text import shown

log = logging.getLogger(__name__)

PATIENCE_S = 600.0
"""Seconds for which a job waits for a slurmctld that is away: a failover takes some minutes."""

SUBMITTED = batch_job.SubmittedPilot("slurm", "slurm.json", "Slurm", submit="sbatch")


def prepare(directory: Path, order: PilotOrder, settings: Settings) -> list[str]:
    """Write the script of a pilot, and return the options of sbatch for it.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's, on a file system that the nodes share.
    order : PilotOrder
    settings : Settings
    """
    batch_job.write_script(directory, as_log=order.as_log)
    return [
        f"--job-name={batch_job.name_of(directory)}",
        f"--nodes={order.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={order.gpus * order.cpus_per_gpu}",
        f"--gres=gpu:{order.gpus}",
        f"--output={directory / 'slurm-%j.out'}",
        "--open-mode=append",
        "--requeue" if order.requeue else "--no-requeue",
        # If a node goes down, the others stay.
        *(["--no-kill"] if order.nodes > 1 else []),
        # If an option is given twice, sbatch takes the last one: that of the command line.
        *shlex.split(settings.pilot_options),
        *([f"--time={order.time}"] if order.time else []),
        *order.options,
    ]


def requeue(job_id: JobId) -> None:
    """Requeue the job in which this process runs, unless somebody has cancelled it.

    Slurm before 24.05 does not requeue a job that exits in the grace of its preemption. The job is
    requeued from state RUNNING only, because scontrol would also revive a cancelled one.

    Raises
    ------
    BatchError
        Slurm does not answer.
    """
    if reads().end(job_id).state == "running":
        log.warning("job %s is being requeued", job_id)
        runner.run(slurm.requeue_command(job_id))


def requeue_at_last(job_id: JobId) -> None:
    """Requeue the job as the last thing that its manager does.

    If Slurm does not answer, it is asked until the end of the job, which SIGTERM tells.

    Parameters
    ----------
    job_id : int or str
    """
    try:
        runner.patiently(lambda: requeue(job_id), PATIENCE_S)
    except BatchError as error:
        log.warning("job %s is not requeued: %s", job_id, error)


def hand_in(directory: Path, options: Sequence[str]) -> int:
    """Submit the script of a pilot; return the id of its job.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    options : sequence of str
        Those that :func:`prepare` has returned.

    Raises
    ------
    BatchError
        Slurm refused the job, or the user's variables are for other clusters.
    """
    _check_cluster()
    command, script = slurm.submit_command(options), directory / batch_job.SCRIPT
    # If this process is in a job, the new one would inherit the options of that.
    said = runner.run(command, environ=for_sbatch(*CHARGED, *PLACED), script=script)
    return slurm.parse_job_id(said)


def _check_cluster() -> None:
    """Refuse to submit a job here if the user's variables are for other clusters."""
    variable, names = clusters_of_user()
    if not names:
        return
    config = site.parse_config(runner.run(site.config_command()))
    here = config.get("ClusterName", "")
    wanted = {name.strip().lower() for name in names.split(",")}
    if here and not {here.lower(), "all"} & wanted:
        raise BatchError(
            f"{slurm.ONE_CLUSTER}, which is {here}",
            where=f"{variable}={shown(names)}",
            do=f"{slurm.SUBMIT_THERE}, or unset {variable}",
        )
