"""The protocol by which all our jobs of LSF are requeued, or end.

A job is requeued rather than submitted anew: execution hosts need not be allowed to submit, jobs
that depend on it go on waiting, it keeps its id and its options, and MAX_JOB_REQUEUE of the site
applies.

1. The manager of the job decides that it is requeued, and writes a mark into its directory
   (:func:`mark_pilot`, :func:`go_back`). A job that somebody has killed stays killed.
2. LSF requeues it at exit value :data:`~hpcext.protocol.EXIT_SUSPENDED`, if LSF has been told that
   this value requeues. Otherwise brequeue(1) is called, which ends all of the job soon after.
3. When the manager has ended, the leader of the job looks for the mark. If there is one, the leader
   exits with that value; otherwise as the manager did, but never with a value that requeues.

=================== ======================== ===================================================
step                pilot                    suspendable job, ticket
=================== ======================== ===================================================
the mark            ``again.json``           ``again``, for which hpcext-job-control waits
the value is told   by ``bsub -Q``           by REQUEUE_EXIT_VALUES alone, as an esub has no
                                             key for it; LSB_EXIT_REQUEUE says so
brequeue is called  by its script, once the  by the manager or the ticket
                    manager has ended
it is killed later  its script was told,     LSF was asked before
                    and ends
it is to wait       never                    ``hold``, from hpcext-job-control: brequeue -H,
                                             and exit value :data:`HELD`
it is counted       ``before.json``          in ``run.json``, at its next begin
=================== ======================== ===================================================

Scripts of other releases rely on these names: those that root has installed (``lsf_scripts/``), and
those of jobs in the queue.
"""

from __future__ import annotations

import logging
import shlex
import signal
from pathlib import Path
from typing import NamedTuple

from hpcext import documents
from hpcext.batch import lsf, runner
from hpcext.batch.lsf.inside import LsfJob
from hpcext.core.errors import BatchError
from hpcext.protocol import EXIT_SUSPENDED

log = logging.getLogger(__name__)

AGAIN = "again"
"""The mark of a suspendable job or a ticket."""

HOLD = "hold"
"""A file of hpcext-job-control: a user has stopped the job, which must wait until it is resumed."""

AGAIN_FILE, BEFORE_FILE = "again.json", "before.json"
"""The mark of a pilot, with the number of its requeues, and its name after the requeue."""

HELD = 128 + signal.SIGTERM
"""The exit status of a job that must wait.

A status in REQUEUE_EXIT_VALUES would override brequeue -H, and the job would begin again by itself.
"""

KILLED_S = 30.0
"""Seconds to wait until brequeue, which a busy daemon carries out, kills the job."""


class Lines(NamedTuple):
    """Lines of the script of a job, for :func:`hpcext.backends.batch_job.write_script`.

    Attributes
    ----------
    begin, finish : str
        Lines to run before the manager begins, and when it has ended for good.
    """

    begin: str
    finish: str


def options(*, by_value: bool) -> list[str]:
    """Return the options of bsub by which a pilot can be requeued.

    Parameters
    ----------
    by_value : bool
        Whether bsub has ``-Q``.
    """
    # With -r, LSF also restarts it if its first host is lost, and the manager with it.
    return [*(["-Q", str(EXIT_SUSPENDED)] if by_value else []), "-r"]


# A pilot.

# bkill sends SIGINT first (JOB_CONTROLS, TERMINATE). A job that was told to end is not requeued,
# even if there is a mark.
_PILOT_BEGIN = """HPCEXT_ALLOCATION="$$-$(date +%s)"
export HPCEXT_ALLOCATION
rm -f {again}
"""
_PILOT_FINISH = """if [ -z "$told" ] && mv {again} {before} 2>/dev/null; then {ask}exit {code}; fi
"""

# Without bsub -Q; REQUEUE_EXIT_VALUES of the queue take precedence. The signal that ends the job
# comes when its host has heard of brequeue(1).
_BREQUEUE = """brequeue "$LSB_JOBID"
    for second in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do [ -n "$told" ] || sleep 1; done
    """


def pilot_lines(directory: Path, *, by_value: bool) -> Lines:
    """Return the lines for the script of a pilot.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    by_value : bool
        Whether LSF is told that the exit value requeues the job.
    """
    again, before = _quoted(directory, AGAIN_FILE), _quoted(directory, BEFORE_FILE)
    ask = "" if by_value else _BREQUEUE
    return Lines(
        _PILOT_BEGIN.format(again=again),
        _PILOT_FINISH.format(again=again, before=before, ask=ask, code=EXIT_SUSPENDED),
    )


def mark_pilot(directory: Path) -> None:
    """Have the script of a pilot requeue its job once the manager has ended."""
    documents.write_json(directory / AGAIN_FILE, {"times": restarts(directory) + 1})


def restarts(directory: Path) -> int:
    """Return how often the job of a pilot has been requeued."""
    try:
        return int(documents.decoded(documents.read_untrusted(directory / BEFORE_FILE))["times"])
    except documents.UNFIT:
        return 0


def forget_restarts(directory: Path) -> None:
    """Set the number of requeues of a pilot to zero, because its job is a new one."""
    (directory / BEFORE_FILE).unlink(missing_ok=True)


# A suspendable job, or a ticket.

_BEGIN = "cd / && rm -f {again} {hold}\n"
_FINISH = """if [ -e {again} ]; then [ ! -e {hold} ] || exit {held}; exit {suspended}; fi
{ends}
if [ "$code" = {suspended} ]; then code=1; fi
if [ -n "$told" ]; then code=143; fi
"""


def suspendable_lines(directory: Path, *, ends: str) -> Lines:
    """Return the lines for the script of a suspendable job.

    Parameters
    ----------
    directory : pathlib.Path
        That of its pilot.
    ends : str
        A line to run if it is not requeued.
    """
    again, hold = _quoted(directory, AGAIN), _quoted(directory, HOLD)
    return Lines(
        _BEGIN.format(again=again, hold=hold),
        _FINISH.format(again=again, hold=hold, held=HELD, suspended=EXIT_SUSPENDED, ends=ends),
    )


def begin(directory: Path) -> None:
    """Remove the marks of a ticket when it begins, as the script of a suspendable job does."""
    for name in (AGAIN, HOLD):
        (directory / name).unlink(missing_ok=True)


def status(directory: Path) -> int | None:
    """Return the status with which a ticket must exit; None if it is not requeued."""
    if not (directory / AGAIN).exists():
        return None
    return HELD if (directory / HOLD).exists() else EXIT_SUSPENDED


def go_back(job: LsfJob, directory: Path) -> None:
    """Requeue a suspendable job or a ticket, unless somebody has killed it; log it if that fails.

    Parameters
    ----------
    job : LsfJob
    directory : pathlib.Path
        The directory for the mark.
    """
    try:
        request(job, directory)
    except BatchError as error:
        log.warning("job %s is not requeued: %s", job.name, error)


def request(job: LsfJob, directory: Path) -> None:
    """Requeue a suspendable job or a ticket, unless somebody has killed it.

    Parameters
    ----------
    job : LsfJob
    directory : pathlib.Path
        The directory for the mark.

    Raises
    ------
    BatchError
        LSF did not answer, or refused.
    """
    hold = (directory / HOLD).exists()
    try:
        state = lsf.Commands().end(job.name).state
    except BatchError as error:
        log.warning("the state of the job is unknown: %s", error)
        state = "running"
    # "suspended", if LSF does not wait for hpcext-job-control.
    if state not in {"running", "suspended"}:
        log.warning("not requeued: the job is %s", state)
        return
    # hpcext-job-control waits for this file, and LSF for hpcext-job-control.
    documents.write_file(directory / AGAIN, b"")
    if job.requeues and not hold:
        log.warning("job %s is being requeued", job.name)
        return
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    # brequeue inherits the mask: the signals that it causes go to all of the job, perhaps at once.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        runner.run(["brequeue", *(["-H"] if hold else []), str(job.name)])
    except BatchError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not job.requeues:
            (directory / AGAIN).unlink()
            raise
        log.warning("job %s cannot be held: %s", job.name, error)
        # The exit value requeues it all the same.
        (directory / HOLD).unlink(missing_ok=True)
        return
    log.warning("job %s is being requeued%s", job.name, ", until it is resumed" * hold)
    signal.sigtimedwait(ends, KILLED_S)


def _quoted(directory: Path, name: str) -> str:
    return shlex.quote(str(directory / name))
