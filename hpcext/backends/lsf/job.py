"""The LSF job of a pilot: its submission, and how it is requeued.

It is requeued by its exit value (``bsub -Q``), and not as a new job: execution hosts need not be
allowed to submit, what waits for the job goes on waiting, and the site's MAX_JOB_REQUEUE holds.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcext import documents
from hpcext.backends import batch_job
from hpcext.backends.base import PilotOrder
from hpcext.batch import lsf, runner
from hpcext.batch.lsf import inside as lsf_inside
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.leasing import gpu_words
from hpcext.config import Settings
from hpcext.protocol import EXIT_SUSPENDED

SUBMITTED = batch_job.Submitted("lsf", "lsf.json", "LSF", submit="bsub")

AGAIN_FILE, BEFORE_FILE = "again.json", "before.json"
"""Files that say that the job is to begin again, and how often it has; one becomes the other."""

# bkill begins with SIGINT (JOB_CONTROLS, TERMINATE). A job that was told to end stays ended,
# although it had decided to go on.
_BEGIN = """HPCEXT_ALLOCATION="$$-$(date +%s)"
export HPCEXT_ALLOCATION
rm -f {again}
"""
_FINISH = """if [ -z "$told" ] && mv {again} {before} 2>/dev/null; then {before_exit}exit {code}; fi
"""

# Where bsub has no -Q; an exit value of the queue that does the same goes before it. What the job
# is ended by comes when its host has heard of brequeue(1).
_BREQUEUE = """brequeue "$LSB_JOBID"
    for second in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do [ -n "$told" ] || sleep 1; done
    """


def prepare(directory: Path, order: PilotOrder, settings: Settings) -> list[str]:
    """Write the script of a pilot, and return the options of bsub for it.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot, on a file system that the hosts share.
    order : PilotOrder
    settings : Settings
        Where its launcher is jsrun, LSF gives whole nodes.

    Raises
    ------
    BatchError
        LSF does not answer.
    """
    engine = lsf_probe.known()
    by_value = not engine.lacks("bsub", "-Q")
    _write_script(directory, order.as_log, by_value)
    slots = order.gpus * order.cpus_per_gpu
    shape = ["-nnodes", str(order.nodes)]
    if settings.lsf_launcher != "jsrun":
        shape = ["-n", str(order.nodes * slots), "-R", f"span[ptile={slots}]"]
        shape += gpu_words(order.gpus, engine, settings.lsf_gpu_option)
    return [
        *("-J", batch_job.name_of(directory)),
        *shape,
        *("-o", str(directory / "lsf-%J.out")),
        *(["-Q", str(EXIT_SUSPENDED)] if order.requeue and by_value else []),
        # So it does when its first host is lost, and the manager with it.
        *(["-r"] if order.requeue else []),
        *(["-W", order.time] if order.time else []),
        *shlex.split(settings.lsf_options),
        *order.options,
    ]


def lacks(launcher: str, gpu_option: str) -> tuple[str, ...]:
    """Say what a pilot is not given because bsub has no option for it; a sentence each.

    Raises
    ------
    BatchError
        LSF does not answer.
    """
    if launcher != "jsrun" and gpu_option and lsf_probe.known().lacks("bsub", "-gpu"):
        return ("bsub has no option -gpu here: the pilot requests slots only, not GPUs",)
    return ()


def restarts(directory: Path) -> int:
    """Return how often the job of a pilot has been requeued."""
    try:
        return int(documents.decoded(documents.read_untrusted(directory / BEFORE_FILE))["times"])
    except documents.UNFIT:
        return 0


def requeue(directory: Path) -> None:
    """Have the script requeue its job once the manager has ended."""
    document = {"times": restarts(directory) + 1}
    documents.write_json(directory / AGAIN_FILE, document)


def _write_script(directory: Path, as_log: bool, by_value: bool) -> None:
    again, before = (shlex.quote(str(directory / name)) for name in (AGAIN_FILE, BEFORE_FILE))
    batch_job.write_script(
        directory,
        begin=_BEGIN.format(again=again),
        ends="INT TERM",
        finish=_FINISH.format(
            again=again,
            before=before,
            before_exit="" if by_value else _BREQUEUE,
            code=EXIT_SUSPENDED,
        ),
        as_log=as_log,
    )


def hand_in(directory: Path, options: Sequence[str]) -> int:
    """Submit the script of a pilot; return the id of its job, which has not been restarted yet.

    Raises
    ------
    BatchError
        LSF refused it.
    """
    (directory / BEFORE_FILE).unlink(missing_ok=True)
    script = directory / batch_job.SCRIPT
    # Submitted from inside another job, it would be told of that one.
    environ = lsf_inside.environ_of_others()
    said = runner.run(lsf.submit_command(options), script=script, environ=environ)
    return lsf.parse_job_id(said)
