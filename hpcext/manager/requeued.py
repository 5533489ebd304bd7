"""Lets requeued pilots and suspendable jobs of Slurm begin as soon as there are nodes.

Slurm begins none of them before the credential of its last run has expired, two minutes by default.
Its owner may have it begin earlier, but not before it is in the queue, when nothing of it runs any
more. So another manager of the same user does it, if there is one; managers take turns.
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
"""Seconds between two questions to Slurm by all managers of a user together."""

TURN_FILE = "requeued-looked-at"


async def look_after(state_dir: Path) -> None:
    """Look after the user's jobs in the queue for as long as a manager is there."""
    expire_s: int | None = None
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            if not _our_turn(state_dir):
                continue
            if expire_s is None:
                text = await asyncio.to_thread(runner.run, site.config_command())
                expire_s = site.cred_expire_s(site.parse_config(text))
            await asyncio.to_thread(bring_forward, state_dir, expire_s)
        except (HpcextError, OSError) as error:
            # They begin by themselves, only later.
            log.debug("requeued jobs are not looked after: %s", error)


def _our_turn(state_dir: Path) -> bool:
    """Return whether no manager of the user has looked lately, so that it is our turn."""
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


def bring_forward(state_dir: Path, cred_expire_s: int) -> None:
    """Let our requeued jobs begin now; other jobs of the user are not touched.

    Raises
    ------
    BatchError
    """
    text = runner.run(requeued.waiting_command(), environ=slurm.epoch_times())
    waiting = requeued.parse_waiting(text, cred_expire_s)
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
