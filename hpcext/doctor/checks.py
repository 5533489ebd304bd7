"""The table of all checks, in the order in which they are shown."""

from __future__ import annotations

from hpcext.doctor import job, lsf, machine, slurm
from hpcext.doctor.checkup import Check

CHECKS: tuple[Check, ...] = (
    Check("python", machine.python),
    Check("packages", machine.packages),
    Check("gpus", machine.gpus),
    Check("torch", machine.torch, within_s=machine.IMPORT_S + 20),
    Check("tensorflow", machine.tensorflow, within_s=machine.IMPORT_S + 20),
    Check("settings", machine.settings),
    Check("state_dir", machine.state_directory),
    Check("batch", machine.batch),
    Check("slurm", slurm.check, within_s=90),
    Check("lsf", lsf.check, within_s=120),
    Check("lsf job", lsf.job, within_s=lsf.JOB_S + 60),
    Check("job", job.check, within_s=job.MOST_S),
)
