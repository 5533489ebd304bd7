"""The table of all checks, in the order of the output."""

from __future__ import annotations

from hpcext.doctor import broker, containers, job, lsf, machine, probe, shared, slurm, transparent
from hpcext.doctor.checkup import Check

_TRAIN = "trainings that import it fail, or do not use the GPUs"
_AS_IT_IS = 'jobs with checkpoint = "transparent" begin anew at each suspension'
_CONTAINED = "jobs with the key container run in it"
_BATCH = "hpcext pilot submit, suspendable, trainer and harvest use its commands"

CHECKS: tuple[Check, ...] = (
    Check("python", machine.python, "nothing else runs without it"),
    Check("packages", machine.packages, "commands that need it fail"),
    Check("gpus", machine.gpus, "hpcext run shares the GPUs that it finds here"),
    Check("torch", machine.torch, _TRAIN, within_s=machine.IMPORT_S + 20),
    Check("tensorflow", machine.tensorflow, _TRAIN, within_s=machine.IMPORT_S + 20),
    Check("jax", machine.jax, _TRAIN, within_s=machine.IMPORT_S + 20),
    Check("transparent", transparent.check, _AS_IT_IS, within_s=200),
    Check("containers", containers.check, _CONTAINED, within_s=2 * containers.WITHIN_S),
    Check("settings", machine.settings, "every command reads them, and ends with status 2"),
    Check("state_dir", machine.state_directory, "all that a manager knows lies there"),
    Check("pilots", machine.pilots, "their files are never removed automatically"),
    Check("shared files", shared.check, "managers and trainings talk by files in it"),
    Check("batch", machine.batch, _BATCH),
    Check("slurm", slurm.check, _BATCH, within_s=120),
    Check("lsf", lsf.check, _BATCH, within_s=120),
    Check("lsf job", lsf.job, "jobs rely on it", within_s=lsf.JOB_S + 60),
    Check("broker", broker.check, "harvesters ask it how many nodes they may have"),
    Check("job", job.check, "without it a preemption loses work", within_s=job.MOST_S),
    Check("probe", probe.check, "leases are taken and lost in this way", within_s=probe.MOST_S),
)
