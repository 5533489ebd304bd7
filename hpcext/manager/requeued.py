"""Pilots and suspendable jobs that were put back into the queue begin when there are nodes.

Slurm begins none of them before the credential of its last run has expired. Another manager of the
same user may have it begin earlier, if one is there: now the one, now the other.
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
from hpcext.core.errors import HpcextError
from hpcext.manager import directory as directories
from hpcext.manager import standing
from hpcext.protocol import JobId

log = logging.getLogger(__name__)

EVERY_S = 20.0
"""So often the batch system is asked, by all managers of a user together."""

TURN_FILE = "requeued-looked-at"


async def look_after(state_dir: Path, system: str) -> None:
    """Look after the user's jobs in the queue for as long as a manager is there.

    Parameters
    ----------
    state_dir : pathlib.Path
    system : str
        Name of the batch system.
    """
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            if _our_turn(state_dir):
                await asyncio.to_thread(bring_forward, state_dir, system)
        except (HpcextError, OSError) as error:
            # They begin by themselves, only later.
            log.debug("requeued jobs are not looked after: %s", error)


def _our_turn(state_dir: Path) -> bool:
    """Take the turn, if no manager of the user has looked lately; return whether it is ours."""
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


def bring_forward(state_dir: Path, system: str) -> None:
    """Have jobs of the user's pilots begin that are in the queue again; others are his own.

    Raises
    ------
    BatchError
        The batch system does not say which jobs wait.
    """

    # Pilots are read where any job waits so, which is seldom.
    @functools.cache
    def ours() -> frozenset[str]:
        return frozenset(
            str(job_id)
            for path, pilot in directories.known(state_dir)
            if pilot.batch == system
            for _, job_id in standing.jobs_of(path)
        )

    def is_ours(job_id: JobId) -> bool:
        return str(job_id) in ours()

    backends.find(system).bring_forward(is_ours)
