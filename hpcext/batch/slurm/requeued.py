"""Jobs that Slurm has put back into the queue begin when there are nodes.

Slurm begins none of them before the credential of its last run has expired, two minutes by default.
Its owner may have it begin earlier, but not before it is in the queue, when nothing of it runs any
more.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection

from hpcext.allocation import JobId
from hpcext.batch import runner
from hpcext.batch.slurm import epoch_times, rows, site
from hpcext.core.errors import BatchError
from hpcext.numerals import whole

log = logging.getLogger(__name__)

SLACK_S = 2.0
"""Slurm has such a job wait for a second longer than it says, or so."""

SETTLED_S = 10.0
"""So long after it was requeued a job is left alone.

The daemon of its last node takes no credential that is not younger, in whole seconds, than the end
of that run. So Slurm fails a job that begins there at once ("Job credential revoked"), and clocks
may differ by some seconds, too.
"""

_COLUMNS = ("JobArrayID", "Reason", "RestartCnt", "SubmitTime", "EligibleTime")


def waiting_command() -> list[str]:
    """Ask for our pending jobs; squeue(1), with :func:`~hpcext.batch.slurm.epoch_times`."""
    words = ["squeue", "--noheader", "--me", "--states=PENDING"]
    return [*words, "--Format=" + ",".join(f"{name}:40|" for name in _COLUMNS)]


def parse_waiting(text: str, delay_s: int, now_s: float) -> tuple[str, ...]:
    """Find the jobs that wait since they were requeued, for nothing else, and may begin.

    Slurm counts the submission of a job that is requeued anew, and adds its delay to it. A later
    begin is one that somebody has asked for.

    Parameters
    ----------
    text : str
    delay_s : int
        As :func:`hpcext.batch.slurm.site.requeue_delay_s` has it.
    now_s : float
        Epoch.
    """
    found = []
    for job_id, why, restarts, submitted, eligible, _ in rows(text, len(_COLUMNS) + 1):
        begins_s, since_s = whole(eligible), whole(submitted)
        if why != "BeginTime" or not whole(restarts) or begins_s is None or since_s is None:
            continue
        if now_s - since_s < SETTLED_S:
            continue
        if abs(begins_s - since_s - delay_s - 1) <= SLACK_S:
            found.append(job_id)
    return tuple(found)


def begin_command(job_id: str) -> list[str]:
    """Let a job begin as soon as there are nodes, as its owner may; scontrol(1), StartTime.

    This has no effect while the last run of the job is not over (COMPLETING).
    """
    return ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]


def begin_requeued(ours: Callable[[], Collection[JobId]]) -> None:
    """Have requeued jobs begin that wait for nothing but a credential to expire.

    Parameters
    ----------
    ours : callable
        Gives the jobs that may be told to begin.

    Raises
    ------
    BatchError
        Slurm does not answer.
    """
    text = runner.run(waiting_command(), environ=epoch_times())
    waiting = parse_waiting(text, _requeue_delay_s(), time.time())
    if not waiting:
        return
    names = {str(job_id) for job_id in ours()}
    for job_id in waiting:
        if job_id in names:
            with contextlib.suppress(BatchError):
                runner.run(begin_command(job_id))
                log.info("job %s, which was requeued, may begin now", job_id)


@functools.cache
def _requeue_delay_s() -> int:
    """Ask once how long a requeued job is held back."""
    return site.requeue_delay_s(site.parse_config(runner.run(site.config_command())))
