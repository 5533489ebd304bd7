"""A job of submitit in a pilot, as it sees itself: who it is, and what it does at a suspension."""

from __future__ import annotations

import os
import signal
import subprocess
from types import FrameType
from typing import ClassVar

from submitit.core import job_environment, utils

PILOT_VARIABLE = "SUBMITIT_PILOT"
"""The variable by which a job knows its pilot, whose id is a part of its own."""


class HpcextJobEnvironment(job_environment.JobEnvironment):
    """What a job of submitit finds out about itself in a pilot."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "HPCEXT_JOB_ID",
        "num_tasks": "HPCEXT_NUM_NODES",
        "num_nodes": "HPCEXT_NUM_NODES",
        "node": "HPCEXT_NODE_INDEX",
        "global_rank": "HPCEXT_NODE_INDEX",
        # No variable, so 0.
        "local_rank": "",
    }

    @property
    def raw_job_id(self) -> str:
        """The id of the job, by which its files are named."""
        return f"{os.environ[PILOT_VARIABLE]}.{super().raw_job_id}"

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        """Save at a suspension; SIGTERM, which submitit ignores, ends a job that is cancelled."""
        written = [paths.result_pickle]
        if self.global_rank == 0:
            written.append(paths.submitted_pickle)
        for path in written:
            # Of an attempt that was killed while it wrote: it would keep this one from writing.
            path.with_suffix(f"{path.suffix}.save_tmp").unlink(missing_ok=True)
        # Of an attempt that is retried.
        paths.result_pickle.unlink(missing_ok=True)
        saver = _Saver(self, paths, submission)
        signal.signal(signal.SIGUSR2, saver.checkpoint_and_try_requeue)

    def _requeue(self, countdown: int) -> None:
        """Say that the job has saved: the supervisor hears this in place of Slurm."""
        subprocess.run(["scontrol", "requeue", self.job_id], check=True, timeout=60)


class _Saver(job_environment.SignalHandler):
    """What a job does at a suspension."""

    def has_timed_out(self) -> bool:
        """Return False: a suspension is no timeout, however often there is one."""
        return False

    def checkpoint_and_try_requeue(self, signum: int, frame: FrameType | None = None) -> None:
        """Save what is left to do, unless there is a result already; rank 0 does so for all."""
        if self._job_paths.result_pickle.exists():
            return
        if self.env.global_rank == 0:
            super().checkpoint_and_try_requeue(signum, frame)
        else:
            self.env._requeue(self._delayed._timeout_countdown)
            self._exit()
