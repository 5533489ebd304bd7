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

from hpcext.batch import runner, slurm
from hpcext.batch.slurm import requeued, site
from hpcext.core.errors import BatchError
from hpcext.protocol import JobId

log = logging.getLogger(__name__)


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
    text = runner.run(requeued.waiting_command(), environ=slurm.epoch_times())
    waiting = requeued.parse_waiting(text, _requeue_delay_s(), time.time())
    if not waiting:
        return
    names = {str(job_id) for job_id in ours()}
    for job_id in waiting:
        if job_id in names:
            with contextlib.suppress(BatchError):
                runner.run(requeued.begin_command(job_id))
                log.info("job %s, which was requeued, may begin now", job_id)


@functools.cache
def _requeue_delay_s() -> int:
    """Ask once how long a requeued job is held back."""
    return site.requeue_delay_s(site.parse_config(runner.run(site.config_command())))
