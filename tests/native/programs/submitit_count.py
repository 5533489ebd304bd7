"""A checkpointable callable of submitit, as its documentation has it, in its own runner."""

import os
import sys
import time
from pathlib import Path

from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.helpers import Checkpointable

JOB = "7"


class Count(Checkpointable):
    def __init__(self):
        self.step = 0

    def __call__(self, steps):
        while self.step < steps:
            time.sleep(0.02)
            self.step += 1
            with open("steps", "a") as file:
                file.write(f"{self.step} {time.time()}\n")


if __name__ == "__main__":
    paths = JobPaths(Path("submitit"), job_id=JOB)
    if not paths.submitted_pickle.exists():
        paths.folder.mkdir(exist_ok=True)
        submission = DelayedSubmission(Count(), int(sys.argv[1]))
        submission.set_timeout(60, 1000)
        submission.dump(paths.submitted_pickle)
    # What its batch script runs, in a step of this job.
    os.environ |= {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": JOB, "SLURM_NTASKS": "1"}
    os.environ |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    os.environ |= {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}
    os.execv(sys.executable, [sys.executable, "-u", "-m", "submitit.core._submit", "submitit"])
