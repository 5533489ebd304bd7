"""Pilots and suspendable jobs that Slurm has put back into the queue begin when there are nodes.

Slurm begins none of them before the credential of its last run has expired, two minutes by default.
Its owner may have it begin earlier, but not before it is in the queue, when nothing of it runs any
more. So another manager of the same user does it, if one is there: now the one, now the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from pathlib import Path

from hpcext import private
from hpcext.batch import runner, slurm
from hpcext.batch.slurm import requeued, site
from hpcext.core.errors import BatchError, HpcextError
from hpcext.manager import directory as directories
from hpcext.manager import standing

log = logging.getLogger(__name__)

EVERY_S = 20.0
"""So often Slurm is asked, by all managers of a user together."""

TURN_FILE = "requeued-looked-at"


async def look_after(state_dir: Path) -> None:
    """Look after the user's jobs in the queue for as long as a manager is there."""
    delay_s: int | None = None
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            if not _our_turn(state_dir):
                continue
            if delay_s is None:
                text = await asyncio.to_thread(runner.run, site.config_command())
                delay_s = site.requeue_delay_s(site.parse_config(text))
            await asyncio.to_thread(bring_forward, state_dir, delay_s)
        except (HpcextError, OSError) as error:
            # They begin by themselves, only later.
            log.debug("requeued jobs are not looked after: %s", error)


def _our_turn(state_dir: Path) -> bool:
    """Whether no manager of the user has looked lately; then it is ours."""
    file = state_dir / TURN_FILE
    with contextlib.suppress(FileNotFoundError):
        if 0 <= time.time() - file.lstat().st_mtime < EVERY_S - 1:
            return False
    private.make(state_dir)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
    finally:
        os.close(descriptor)
    return True


def bring_forward(state_dir: Path, delay_s: int) -> None:
    """Have those begin now that are in the queue again; other jobs of the user are his own.

    Raises
    ------
    BatchError
    """
    text = runner.run(requeued.waiting_command(), environ=slurm.epoch_times())
    waiting = requeued.parse_waiting(text, delay_s)
    if not waiting:
        return
    pilots = directories.known(state_dir)
    ours = {
        str(job_id)
        for path, pilot in pilots
        if pilot.batch == "slurm"
        for _, job_id in standing.jobs_of(path)
    }
    for job_id in waiting:
        if job_id in ours:
            with contextlib.suppress(BatchError):
                runner.run(requeued.begin_command(job_id))
                log.info("job %s, which was requeued, may begin now", job_id)
