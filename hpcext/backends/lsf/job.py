"""The LSF job of a pilot: its script, and its submission."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcext.backends import batch_job
from hpcext.backends.base import PilotOrder
from hpcext.backends.lsf import requeue
from hpcext.batch import lsf, runner
from hpcext.batch.lsf import inside as lsf_inside
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.leasing import gpu_words
from hpcext.config import Settings

SUBMITTED = batch_job.SubmittedPilot("lsf", "lsf.json", "LSF", submit="bsub")


def prepare(directory: Path, order: PilotOrder, settings: Settings) -> list[str]:
    """Write the script of a pilot, and return the options of bsub for it.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's, on a file system that the hosts share.
    order : PilotOrder
    settings : Settings
        If ``lsf_launcher`` is jsrun, whole nodes are requested.

    Raises
    ------
    BatchError
        LSF does not answer.
    """
    engine = lsf_probe.known()
    by_value = not engine.lacks("bsub", "-Q")
    lines = requeue.pilot_lines(directory, by_value=by_value)
    batch_job.write_script(
        directory, begin=lines.begin, ends="INT TERM", finish=lines.finish, as_log=order.as_log
    )
    slots = order.gpus * order.cpus_per_gpu
    shape = ["-nnodes", str(order.nodes)]
    if settings.lsf_launcher != "jsrun":
        shape = ["-n", str(order.nodes * slots), "-R", f"span[ptile={slots}]"]
        shape += gpu_words(order.gpus, engine, settings.lsf_gpu_option)
    return [
        *("-J", batch_job.name_of(directory)),
        *shape,
        *("-o", str(directory / "lsf-%J.out")),
        *(requeue.options(by_value=by_value) if order.requeue else []),
        *(["-W", order.time] if order.time else []),
        *shlex.split(settings.lsf_options),
        *order.options,
    ]


def lacks(launcher: str, gpu_option: str) -> tuple[str, ...]:
    """Return a sentence for each thing that a pilot cannot get, for want of an option of bsub.

    Parameters
    ----------
    launcher, gpu_option : str
        The settings ``lsf_launcher`` and ``lsf_gpu_option``.

    Raises
    ------
    BatchError
        LSF does not answer.
    """
    if launcher != "jsrun" and gpu_option and lsf_probe.known().lacks("bsub", "-gpu"):
        return ("bsub has no option -gpu here: the pilot requests slots only, not GPUs",)
    return ()


def hand_in(directory: Path, options: Sequence[str]) -> int:
    """Submit the script of a pilot as a new job; return its id.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    options : sequence of str
        Those that :func:`prepare` has returned.

    Raises
    ------
    BatchError
        LSF refused the job.
    """
    requeue.forget_restarts(directory)
    script = directory / batch_job.SCRIPT
    # If this process is in a job, its variables are not for the new one.
    environ = lsf_inside.environ_of_others()
    said = runner.run(lsf.submit_command(options), script=script, environ=environ)
    return lsf.parse_job_id(said)
