"""Requeued jobs of Slurm, which begin as soon as there are nodes.

By itself Slurm begins such a job only when the credential of its last run has expired, after two
minutes by default. Its owner can have it begin earlier, once it is in the queue again and none of
its processes runs any more.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection

from hpcext.allocation import JobId
from hpcext.batch import runner
from hpcext.batch.slurm import epoch_times, site
from hpcext.batch.slurm.tables import rows
from hpcext.core.errors import BatchError
from hpcext.numerals import whole

log = logging.getLogger(__name__)

SLACK_S = 2.0
"""Seconds by which the delay of a requeued job may differ from the setting."""

SETTLED_S = 10.0
"""Seconds for which a job is left alone after its requeue.

The slurmd of its last node accepts only a credential that is younger, in whole seconds, than the
end of that run. So a job that begins there at once fails ("Job credential revoked"); besides,
clocks may differ by some seconds.
"""

_COLUMNS = ("JobArrayID", "Reason", "RestartCnt", "SubmitTime", "EligibleTime")


def waiting_command() -> list[str]:
    """Return the squeue(1) command that asks for our pending jobs, for use with epoch times."""
    words = ["squeue", "--noheader", "--me", "--states=PENDING"]
    return [*words, "--Format=" + ",".join(f"{name}:40|" for name in _COLUMNS)]


def parse_waiting(text: str, delay_s: int, now_s: float) -> tuple[str, ...]:
    """Return the jobs that wait for nothing but the delay after their requeue.

    Slurm sets the submission of a requeued job anew, and adds its delay to that. If the begin is
    later, somebody has requested it.

    Parameters
    ----------
    text : str
    delay_s : int
        The delay of this Slurm (:func:`hpcext.batch.slurm.site.requeue_delay_s`).
    now_s : float
        Epoch seconds.
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
    """Return the scontrol(1) command that lets a job begin as soon as there are nodes.

    It has no effect while the last run of the job is ending (COMPLETING).
    """
    return ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]


def begin_requeued(ours: Callable[[], Collection[JobId]]) -> None:
    """Have requeued jobs begin that wait for nothing but the expiry of a credential.

    Parameters
    ----------
    ours : callable
        Returns the jobs that may be started; others are left alone.

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
    """Return the delay of requeued jobs, which is asked for once."""
    return site.requeue_delay_s(site.parse_config(runner.run(site.config_command())))
