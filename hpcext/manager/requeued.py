"""Pilots and suspendable jobs that were put back into the queue begin when there are nodes.

Slurm begins none of them before the credential of its last run has expired, two minutes by default.
Its owner may have it begin earlier, but not before it is in the queue, when nothing of it runs any
more. So another manager of the same user does it, if there is one; managers take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from pathlib import Path

from hpcext import backends, private
from hpcext.allocation import JobId
from hpcext.core.errors import HpcextError
from hpcext.manager import directory as directories
from hpcext.manager import standing

log = logging.getLogger(__name__)

EVERY_S = 20.0
"""So often the batch system is asked, by all managers of a user together."""

TURN_FILE = "requeued-looked-at"


async def look_after(state_dir: Path, batch: str) -> None:
    """Look after the user's requeued jobs for as long as this manager runs."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            if _our_turn(state_dir):
                await asyncio.to_thread(bring_forward, state_dir, batch)
        except (HpcextError, OSError) as error:
            # They begin by themselves, only later.
            log.debug("requeued jobs cannot be looked after: %s", error)


def _our_turn(state_dir: Path) -> bool:
    """Take the turn if no manager of the user has looked lately; return whether it is ours."""
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


def bring_forward(state_dir: Path, batch: str) -> None:
    """Have those begin that are in the queue again; other jobs of the user are his own.

    Raises
    ------
    BatchError
        A batch system does not answer.
    """
    ours = functools.partial(_of_pilots, state_dir, batch)
    backends.find(batch).begin_requeued(ours)


def _of_pilots(state_dir: Path, batch: str) -> set[JobId]:
    """Return the jobs of a batch system that are pilots of this user, or may be."""
    pilots = directories.known(state_dir)
    found = (standing.jobs_of(path) for path, pilot in pilots if pilot.batch == batch)
    return {job_id for jobs in found for _, job_id in jobs}
