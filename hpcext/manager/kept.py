"""What is kept of jobs that have ended: all files of the last ones, and the logs of earlier ones.

An attempt is a directory of small files, which tell a manager how it ended. Once the journal tells
that, they only serve to examine a failure. A pilot of a hundred thousand short jobs would keep half
a million of them.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from hpcext.core.engine import Engine
from hpcext.core.values import State
from hpcext.executors.attempt.directory import ATTEMPTS, directory_name
from hpcext.executors.attempt.launch_file import CHECKPOINT
from hpcext.launch.transparent.manifest import IMAGES

KEEP_COMPLETED = 64
"""The number of jobs, the last ones to complete, whose attempts stay."""


class Kept:
    """An observer that removes what is not needed of jobs that completed long ago.

    Parameters
    ----------
    jobs : pathlib.Path
        The parent of the jobs' directories.
    """

    def __init__(self, jobs: Path) -> None:
        self._jobs = jobs
        self._seen = 0
        self._completed: collections.deque[str] = collections.deque()

    def __call__(self, engine: Engine, _now_s: float) -> None:
        """Look at the jobs that changed, after a turn of their driver.

        The ends of these jobs are in the journal already, which is written before a turn ends.
        """
        world = engine.world
        late = [world.jobs[name] for name in world.changed.since(self._seen)]
        for job in late:
            # Of one that was suspended as it is, and then cancelled: it may be large.
            if job.state.final and os.path.isdir(images := self._jobs / job.id / IMAGES):
                shutil.rmtree(images, ignore_errors=True)
        late = [job for job in late if job.state is State.COMPLETED]
        if not self._seen:
            # A manager before this one has seen to the others.
            late = sorted(late, key=lambda job: job.since_s)[-2 * KEEP_COMPLETED :]
        self._seen = world.changed.last
        known = set(self._completed)
        self._completed.extend(job.id for job in late if job.id not in known)
        while len(self._completed) > KEEP_COMPLETED:
            first = self._completed.popleft()
            # What may still run on a lost node is not known to have ended before it says so there.
            forget(self._jobs / first, {attempt for _, attempt in world.records[first].orphans})


def forget(job: Path, spare: Collection[int] = ()) -> None:
    """Remove the attempts of a job that is complete, and its directory for checkpoints if empty.

    Files that cannot be removed stay, because nothing depends on their removal.

    Parameters
    ----------
    job : pathlib.Path
    spare : collection of int
        Attempts that stay.
    """
    spared = {directory_name(attempt) for attempt in spare}
    with contextlib.suppress(OSError):
        for attempt in job.glob(ATTEMPTS):
            if attempt.name not in spared:
                shutil.rmtree(attempt, ignore_errors=True)
        os.rmdir(job / CHECKPOINT)
