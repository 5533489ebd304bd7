"""The pilot with one job that a suspendable batch job is, whichever batch system runs it.

Every start of such a job waits for these imports, so nothing slow is imported here.
"""

from __future__ import annotations

import fcntl
import importlib.util
import math
import os
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcext import checkpointers, containers, protocol, state
from hpcext.backends import batch_job
from hpcext.backends.batch_job import LEAD_S, MAX_LEAD_S, MIN_LEAD_S
from hpcext.backends.suspendable_job import SuspendableJob
from hpcext.checkpointers import Checkpointer
from hpcext.checks import at
from hpcext.config import Settings
from hpcext.core.errors import HpcextError, InputError
from hpcext.jobspec import Gpus, JobSpec, contained
from hpcext.manager import directory as directories
from hpcext.manager import spool
from hpcext.numerals import whole
from hpcext.text import shown

NEEDED = ("filelock", "msgspec", "numpy", "psutil", "pynvml", "rich", "scipy", "threadpoolctl")
"""Packages without which there is no manager; a missing one must be known beforehand."""

STDOUT, STDERR = 1, 2


def lead_of(given: str | None) -> int:
    """Return the seconds before the end at which it is suspended.

    Parameters
    ----------
    given : str or None
        The value of the flag; if None, the variable counts that sbatch's flag or a user sets.

    Raises
    ------
    InputError
        It is not such a time.
    """
    text, where = protocol.environ().get("HPCEXT_LEAD_S", str(LEAD_S)), "HPCEXT_LEAD_S"
    if given is not None:
        text, where = given, "--lead"
    lead_s = whole(text)
    if lead_s is None or not MIN_LEAD_S <= lead_s <= MAX_LEAD_S:
        raise InputError(shown(text), where=where, valid=f"{MIN_LEAD_S} to {MAX_LEAD_S}")
    return lead_s


def checkpointer_of(given: str | None, lead_s: int) -> Checkpointer | None:
    """Return how the command saves by its own means; None if nothing says that it does.

    Parameters
    ----------
    given : str or None
        What the flag says; if None, the variable.
    lead_s : int
        How long it may take.

    Raises
    ------
    InputError
        It is no such way, or it takes longer.
    """
    text, where = protocol.environ().get("HPCEXT_CHECKPOINT", ""), "HPCEXT_CHECKPOINT"
    if given is not None:
        text, where = given, "--checkpoint"
    if not text:
        return None
    with at(where):
        saves = checkpointers.checkpoint(checkpointers.stated(text))
        if (saves.suspend_timeout_s or 0.0) > lead_s:
            raise InputError(
                f"may take {saves.suspend_timeout_s:g} s, and there are {lead_s} before the end",
                do=f"say --lead {math.ceil(saves.suspend_timeout_s or 0.0)}",
            )
    return saves


def prepare(
    job: SuspendableJob,
    lead_s: int,
    settings: Settings,
    hpcext: Sequence[str] = batch_job.HPCEXT,
    *,
    checkpoint: str | None = None,
    container: str | None = None,
) -> Path:
    """Make the pilot of a job, if it has none yet; return the script that runs in its place.

    Parameters
    ----------
    job : SuspendableJob
    lead_s : int
        How long before the end it is suspended.
    settings : Settings
    hpcext : sequence of str
        How hpcext is run there. A site's may be a script that sets what its Python needs.
    checkpoint : str or None
        How its command saves by its own means, as a flag says it.
    container : str or None
        The image in which its command runs.

    Raises
    ------
    HpcextError
        There can be no manager here, or no pilot.
    OSError
        Something cannot be written.
    """
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise HpcextError(f"the Python package {package} is missing", where=sys.prefix)
    saves = checkpointer_of(checkpoint, lead_s)
    directory = job.earlier(lambda name: directories.find_or_none(name, settings.state_dir))
    if job.restored and directory is not None:
        spool.put(directory, "resume", job="1")
    first = None
    if directory is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        directory = settings.state_dir / "suspendable" / f"{job.key}-{stamp}"
        first = spec(job.command(directory), job.gpus or 1, lead_s, saves)
        if container is not None:
            first = in_container(first, container, settings)
        name = f"job-{job.key}"
        create(first, job.gpus, settings, directory, name=name, lead_s=lead_s, batch=job.batch)
    try:
        log_to_output(directory, job.output)
        manager_file = directory / spool.MANAGER_FILE
        return job.write(directory, first, manager_file=manager_file, hpcext=hpcext)
    except OSError:
        if first is not None:
            # Otherwise the next allocation would try to continue it.
            directories.remove(directory, settings.state_dir)
        raise


def spec(
    command: Sequence[str], slots: int, lead_s: int, saves: Checkpointer | None = None
) -> JobSpec:
    """Return the specification of the one job.

    Parameters
    ----------
    command : sequence of str
    slots : int
        GPUs, or slots, of the allocation.
    lead_s : int
        Seconds between the signal to suspend and the time limit.
    saves : Checkpointer or None
        How the command saves by its own means.
    """
    return JobSpec(
        name="job",
        command=tuple(command),
        gpus=Gpus(min=slots, max=slots, optimal=slots),
        workdir=str(Path.cwd()),
        # Its exit code is what the user of sbatch is to see, at once.
        retries=0,
        suspend_timeout_s=float(lead_s),
        checkpoint=saves,
    )


def in_container(job: JobSpec, image: str, settings: Settings) -> JobSpec:
    """Return a job whose command runs in a container.

    Parameters
    ----------
    job : JobSpec
    image : str
        A path, from the working directory of the job, or a URI.
    settings : Settings

    Raises
    ------
    InputError
        There is no such image, or the job cannot run in it.
    """
    with at("--container"):
        inside = msgspec.structs.replace(job, container=containers.container(image))
        return contained(inside, Path(job.workdir), settings.container_runtime)


def create(job: JobSpec, gpus: int, settings: Settings, directory: Path, **more: Any) -> None:
    """Make the pilot of one job that has the whole allocation.

    Parameters
    ----------
    job : JobSpec
    gpus : int
        GPUs, or slots, of the allocation.
    settings : Settings
    directory : pathlib.Path
        Of the new pilot.
    **more : object
        Other parameters of :func:`hpcext.manager.pilot.create`.
    """
    # Its scripts are run from there.
    state.check_safe(settings.state_dir)
    directories.create(
        [job],
        directories.NewPilot(
            gpus=range(gpus or 1),
            logical=not gpus,
            requeue=True,
            alone=True,
            **more,
        ),
        settings=settings,
        where="hpcext suspendable",
        directory=directory,
    )


def log_to_output(directory: Path, wanted: str | None = None) -> None:
    """Send the job's output to the file of its batch script's output, if that is a file.

    If the batch system names the file that the user `wanted`, it must be that one: a file that LSF
    keeps only until the job ends does not outlive a requeue.
    """
    output = os.readlink(f"/proc/self/fd/{STDOUT}")
    log = directory / "jobs" / "1" / "log.txt"
    kept = wanted is None or (wanted and os.path.realpath(wanted) == output)
    if kept and stat.S_ISREG(os.fstat(STDOUT).st_mode) and not os.path.lexists(log):
        log.parent.mkdir(mode=0o700, exist_ok=True)
        log.symlink_to(output)


def append() -> None:
    """Write at the end of the output from here on: the step writes to the same file."""
    for fd in (STDOUT, STDERR):
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
