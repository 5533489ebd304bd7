"""The Slurm job of a pilot: its submission, and its requeue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from hpcext import protocol
from hpcext.backends import batch_job
from hpcext.batch import runner, slurm
from hpcext.batch.slurm.reads import reads
from hpcext.core.errors import BatchError
from hpcext.protocol import JobId

log = logging.getLogger(__name__)

SUBMITTED = batch_job.Submitted("slurm.json", "hpcext.slurm-job/1", "Slurm", submit="sbatch")


def submit(
    directory: Path,
    *,
    nodes: int,
    gpus: int,
    cpus_per_gpu: int,
    requeue: bool,
    options: Sequence[str],
    as_log: bool = False,
) -> int:
    """Submit a pilot for the first time.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot, on a file system that the nodes share.
    nodes, gpus : int
        Nodes, and GPUs on each.
    cpus_per_gpu : int
    requeue : bool
        Slurm, too, may put it back into the queue: preempted, or after the loss of a node.
    options : sequence of str
        Others for sbatch.
    as_log : bool
        Its output is to say what happens, as JSON.

    Returns
    -------
    int
        The job's id.

    Raises
    ------
    BatchError
        Slurm refused it.
    """
    batch_job.write_script(directory, as_log=as_log)
    words = [
        f"--job-name={batch_job.name_of(directory)}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={gpus * cpus_per_gpu}",
        f"--gres=gpu:{gpus}",
        f"--output={directory / 'slurm-%j.out'}",
        "--open-mode=append",
        "--requeue" if requeue else "--no-requeue",
        # One node that goes down leaves the others to us.
        *(["--no-kill"] if nodes > 1 else []),
        *options,
    ]
    return _submit(directory, words)


def resubmit(directory: Path) -> int:
    """Submit a pilot again, with the options that it had.

    Raises
    ------
    NoManagerError
        It was never submitted.
    BatchError
        Slurm refused it.
    """
    return _submit(directory, SUBMITTED.options(directory))


def requeue(job_id: JobId) -> None:
    """Put the job that we run in back into the queue, if nobody has cancelled it.

    By ourselves, since a job that exits in the grace of its preemption is not requeued by Slurm
    before 24.05; and from RUNNING only, since it would bring a cancelled job back.
    """
    try:
        if reads().end(job_id).state == "running":
            log.warning("job %s goes back into the queue", job_id)
            runner.run(slurm.requeue_command(job_id))
    except BatchError as error:
        log.warning("job %s is not put back into the queue: %s", job_id, error)


def _submit(directory: Path, options: Sequence[str]) -> int:
    command, script = slurm.submit_command(options), directory / batch_job.SCRIPT
    # Submitted from inside another job, it would inherit that job's options.
    said = runner.run(command, environ=protocol.without_slurm(), script=script)
    job_id = slurm.parse_job_id(said)
    SUBMITTED.write(directory, job_id, options)
    return job_id
