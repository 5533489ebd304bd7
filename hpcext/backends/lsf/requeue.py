"""How a job of LSF that is ours goes back into the queue, or ends: one protocol for all of them.

A job is requeued, and not submitted as a new one: execution hosts need not be allowed to submit,
what waits for the job goes on waiting, it keeps its id and its options, and the site's
MAX_JOB_REQUEUE holds.

1. Who manages the job decides that it goes back, and writes a mark into its directory
   (:func:`mark_pilot`, :func:`go_back`). A job that somebody has killed stays killed.
2. LSF takes it back by exit value :data:`~hpcext.protocol.EXIT_SUSPENDED` where it was told that
   this value requeues. Elsewhere brequeue(1) is called, which ends all of the job soon after.
3. When the manager has ended, the leader of the job looks for the mark. If it is there, the leader
   exits with that value; else as the manager did, but never with a value that requeues.

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

The names are seen by scripts of other releases: those that root installed (``lsf_scripts/``), and
those of jobs that wait in the queue.
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
"""The mark of a suspendable job and a ticket."""

HOLD = "hold"
"""A file of hpcext-job-control: a user stopped the job, which is to wait until it is resumed."""

AGAIN_FILE, BEFORE_FILE = "again.json", "before.json"
"""The mark of a pilot, with how often it has been requeued then, and what it becomes by that."""

HELD = 128 + signal.SIGTERM
"""Exit status of a job that is to wait.

One of REQUEUE_EXIT_VALUES would override brequeue -H, and the job would begin again by itself.
"""

KILLED_S = 30.0
"""Seconds that brequeue may take to kill the job, by a daemon that has other things to do."""


class Lines(NamedTuple):
    """Lines of the script of a job, for :func:`hpcext.backends.batch_job.write_script`.

    Attributes
    ----------
    begin, finish : str
        Lines before the manager begins, and when it has ended for good.
    """

    begin: str
    finish: str


def options(*, by_value: bool) -> list[str]:
    """Return the options of bsub by which a pilot goes back.

    Parameters
    ----------
    by_value : bool
        Whether bsub has ``-Q``.
    """
    # With -r it does so when its first host is lost, and the manager with it.
    return [*(["-Q", str(EXIT_SUSPENDED)] if by_value else []), "-r"]


# A pilot.

# bkill begins with SIGINT (JOB_CONTROLS, TERMINATE). A job that was told to end stays ended,
# although it had decided to go on.
_PILOT_BEGIN = """HPCEXT_ALLOCATION="$$-$(date +%s)"
export HPCEXT_ALLOCATION
rm -f {again}
"""
_PILOT_FINISH = """if [ -z "$told" ] && mv {again} {before} 2>/dev/null; then {ask}exit {code}; fi
"""

# Where bsub has no -Q; an exit value of the queue that does the same goes before it. What the job
# is ended by comes when its host has heard of brequeue(1).
_BREQUEUE = """brequeue "$LSB_JOBID"
    for second in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do [ -n "$told" ] || sleep 1; done
    """


def pilot_lines(directory: Path, *, by_value: bool) -> Lines:
    """Return what the script of a pilot has for this.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot.
    by_value : bool
        Whether LSF was told that the exit value requeues the job.
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
    """Note that the job of a pilot is a new one."""
    (directory / BEFORE_FILE).unlink(missing_ok=True)


# A suspendable job, or a ticket.

_BEGIN = "cd / && rm -f {again} {hold}\n"
_FINISH = """if [ -e {again} ]; then [ ! -e {hold} ] || exit {held}; exit {suspended}; fi
{ends}
if [ "$code" = {suspended} ]; then code=1; fi
if [ -n "$told" ]; then code=143; fi
"""


def suspendable_lines(directory: Path, *, ends: str) -> Lines:
    """Return what the script of a suspendable job has for this.

    Parameters
    ----------
    directory : pathlib.Path
        Of its pilot.
    ends : str
        A line for when it does not go back.
    """
    again, hold = _quoted(directory, AGAIN), _quoted(directory, HOLD)
    return Lines(
        _BEGIN.format(again=again, hold=hold),
        _FINISH.format(again=again, hold=hold, held=HELD, suspended=EXIT_SUSPENDED, ends=ends),
    )


def begin(directory: Path) -> None:
    """Note that a ticket runs, as the script of a suspendable job does."""
    for name in (AGAIN, HOLD):
        (directory / name).unlink(missing_ok=True)


def status(directory: Path) -> int | None:
    """Return the status with which a ticket is to exit; None if it does not go back."""
    if not (directory / AGAIN).exists():
        return None
    return HELD if (directory / HOLD).exists() else EXIT_SUSPENDED


def go_back(job: LsfJob, directory: Path) -> None:
    """Have LSF run a suspendable job or a ticket again, if nobody has killed it.

    Parameters
    ----------
    job : LsfJob
    directory : pathlib.Path
        Where the mark goes.
    """
    hold = (directory / HOLD).exists()
    try:
        state = lsf.Commands().end(job.name).state
    except BatchError as error:
        log.warning("what state the job is in is not known: %s", error)
        state = "running"
    # It is suspended where LSF does not wait for hpcext-job-control.
    if state not in {"running", "suspended"}:
        log.warning("not put back into the queue: the job is %s", state)
        return
    # hpcext-job-control waits for it, and LSF for that.
    documents.write_file(directory / AGAIN, b"")
    if job.requeues and not hold:
        log.warning("job %s goes back into the queue", job.name)
        return
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    # brequeue inherits that: what it asks for may come before it has ended, and to all of the job.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        runner.run(["brequeue", *(["-H"] if hold else []), str(job.name)])
    except BatchError as error:
        log.warning("job %s is not put back into the queue: %s", job.name, error)
        if job.requeues:
            # Held it cannot be, but it goes on.
            (directory / HOLD).unlink(missing_ok=True)
        else:
            (directory / AGAIN).unlink()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    log.warning("job %s goes back into the queue%s", job.name, ", until it is resumed" * hold)
    signal.sigtimedwait(ends, KILLED_S)


def _quoted(directory: Path, name: str) -> str:
    return shlex.quote(str(directory / name))
