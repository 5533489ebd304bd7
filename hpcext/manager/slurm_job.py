"""The Slurm job that is a pilot: its script, its submission, what became of it."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext import protocol
from hpcext.batch import runner, slurm
from hpcext.batch.slurm_reads import reads
from hpcext.core.errors import BatchError, NoManagerError

log = logging.getLogger(__name__)

SUBMITTED = "hpcext.slurm-job/1"
FILE = "slurm.json"
SCRIPT = "batch.sh"

_SCRIPT = """#!/bin/sh
# The manager of an hpcext pilot; its jobs are steps of this job.
manager=
trap '[ -z "$manager" ] || kill -USR1 "$manager"' USR1
trap '[ -z "$manager" ] || kill -USR2 "$manager"' USR2
trap '[ -z "$manager" ] || kill -TERM "$manager"' TERM
for try in 1 2 3 4 5; do
    {manage} &
    manager=$!
    # A wait that a signal interrupts is not the end of the manager.
    while :; do
        wait "$manager"
        code=$?
        kill -0 "$manager" 2>/dev/null || break
    done
    # Killed, or crashed: the steps go on, and the next manager takes them over.
    case "$code" in 132|134|135|136|137|139) ;; *) break ;; esac
    echo "hpcext: the manager was killed by signal $((code - 128)) (try $try)" >&2
done
exit "$code"
"""


def submit(
    directory: Path,
    *,
    nodes: int,
    gpus: int,
    cpus_per_gpu: int,
    requeue: bool,
    options: Sequence[str],
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

    Returns
    -------
    int
        The job's id.

    Raises
    ------
    BatchError
        Slurm refused it.
    """
    write_script(directory)
    words = [
        f"--job-name={_job_name(directory)}",
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


def write_script(directory: Path) -> Path:
    """Write the batch script of a pilot; where it is."""
    manage = [sys.executable, "-m", "hpcext", "--quiet", "run", "--resume", str(directory)]
    script = _SCRIPT.format(manage=shlex.join(manage))
    protocol.write_file(directory / SCRIPT, script.encode())
    return directory / SCRIPT


def adopt(directory: Path, job_id: int) -> None:
    """Note that a job that runs already is that of a pilot."""
    protocol.write_json(directory / FILE, {"schema": SUBMITTED, "job_id": job_id, "options": []})


def resubmit(directory: Path) -> int:
    """Submit a pilot again, with the options that it had.

    Raises
    ------
    NoManagerError
        It was never submitted.
    BatchError
        Slurm refused it.
    """
    options = _read(directory)["options"]
    if not options:
        raise NoManagerError("was not submitted by hpcext", where=str(directory), do="use sbatch")
    return _submit(directory, options)


def requeue(job_id: int) -> None:
    """Put the job that we run in back into the queue, if nobody has cancelled it.

    By ourselves, since a job that exits in the grace of its preemption is not requeued by Slurm
    before 24.05; and from RUNNING only, since it would bring a cancelled job back.
    """
    try:
        if reads().end(job_id).state == "running":
            log.warning("job %d goes back into the queue", job_id)
            runner.run(slurm.requeue_command(job_id))
    except BatchError as error:
        log.warning("job %d is not put back into the queue: %s", job_id, error)


def job_of(directory: Path) -> int | None:
    """The id of the last job of a pilot, or None if it has none."""
    try:
        return int(_read(directory)["job_id"])
    except NoManagerError:
        return None


def _submit(directory: Path, options: Sequence[str]) -> int:
    command = slurm.submit_command(str(directory / SCRIPT), options)
    # Submitted from inside another job, it would inherit that job's options.
    job_id = slurm.parse_job_id(runner.run(command, environ=protocol.without_slurm()))
    document = {"schema": SUBMITTED, "job_id": job_id, "options": list(options)}
    protocol.write_json(directory / FILE, document)
    return job_id


def _read(directory: Path) -> dict[str, Any]:
    try:
        return protocol.read_json(directory / FILE, SUBMITTED)
    except (OSError, ValueError) as error:
        raise NoManagerError(
            f"it was not submitted to Slurm ({error})", where=str(directory)
        ) from None


def _job_name(directory: Path) -> str:
    """What the job is called in Slurm's lists."""
    return f"hpcext-{directory.name}"[:64]
