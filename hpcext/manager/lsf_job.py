"""The LSF job that is a pilot: its submission, and how it goes back into the queue.

It goes back by its exit value (``bsub -Q``), and not as a new job: execution hosts need not be
allowed to submit, what waits for the job goes on waiting, and the site's MAX_JOB_REQUEUE holds.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcext import documents
from hpcext.batch import lsf, lsf_inside, runner
from hpcext.manager import batch_job
from hpcext.protocol import EXIT_SUSPENDED

SUBMITTED = batch_job.Submitted("lsf.json", "hpcext.lsf-job/1", "LSF")

AGAIN_FILE, BEFORE_FILE = "again.json", "before.json"
"""That the job is to begin again, and how often it has; the second is what the last one became."""

# bkill begins with SIGINT (JOB_CONTROLS, TERMINATE). A job that was told to end stays ended,
# although it had decided to go on.
_BEGIN = """HPCEXT_ALLOCATION="$$-$(date +%s)"
export HPCEXT_ALLOCATION
rm -f {again}
"""
_FINISH = """if [ -z "$told" ] && mv {again} {before} 2>/dev/null; then exit {code}; fi
"""


def submit(
    directory: Path,
    *,
    launcher: str,
    nodes: int,
    gpus: int,
    cpus_per_gpu: int,
    requeue: bool,
    options: Sequence[str],
    as_log: bool = False,
) -> int:
    """Submit a pilot for the first time; the job's id.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot, on a file system that the hosts share.
    launcher : {"blaunch", "jsrun"}
        Where there is jsrun, LSF gives whole nodes.
    nodes, gpus : int
        Hosts, and GPUs on each.
    cpus_per_gpu : int
    requeue : bool
        It may go back into the queue.
    options : sequence of str
        Others for bsub.
    as_log : bool
        Its output is to say what happens, as JSON.

    Raises
    ------
    BatchError
        LSF refused it.
    """
    _write_script(directory, as_log)
    slots = gpus * cpus_per_gpu
    shape = ["-nnodes", str(nodes)]
    if launcher == "blaunch":
        shape = ["-n", str(nodes * slots), "-R", f"span[ptile={slots}]"]
        shape += ["-gpu", f"num={gpus}/host:mode=shared:j_exclusive=yes"]
    words = [
        *("-J", batch_job.name_of(directory)),
        *shape,
        *("-o", str(directory / "lsf-%J.out")),
        # -r: so it does when its first host is lost, and the manager with it.
        *(["-Q", str(EXIT_SUSPENDED), "-r"] if requeue else []),
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
        LSF refused it.
    """
    (directory / BEFORE_FILE).unlink(missing_ok=True)
    return _submit(directory, SUBMITTED.options(directory))


def restarts(directory: Path) -> int:
    """How often the job of a pilot has gone back into the queue."""
    try:
        return int(documents.decoded(documents.read_untrusted(directory / BEFORE_FILE))["times"])
    except documents.UNFIT:
        return 0


def requeue(directory: Path) -> None:
    """Have the script put its job back into the queue when the manager has ended."""
    document = {"times": restarts(directory) + 1}
    documents.write_json(directory / AGAIN_FILE, document)


def _write_script(directory: Path, as_log: bool) -> None:
    again, before = (shlex.quote(str(directory / name)) for name in (AGAIN_FILE, BEFORE_FILE))
    batch_job.write_script(
        directory,
        begin=_BEGIN.format(again=again),
        ends="INT TERM",
        finish=_FINISH.format(again=again, before=before, code=EXIT_SUSPENDED),
        as_log=as_log,
    )


def _submit(directory: Path, options: Sequence[str]) -> int:
    script = directory / batch_job.SCRIPT
    # Submitted from inside another job, it would be told of that one.
    environ = lsf_inside.environ_of_others()
    said = runner.run(lsf.submit_command(options), script=script, environ=environ)
    job_id = lsf.parse_job_id(said)
    SUBMITTED.write(directory, job_id, options)
    return job_id
