"""The acceptance run on Slurm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcext.acceptance.systems import Order
from hpcext.allocation import JobId
from hpcext.batch import runner, slurm
from hpcext.batch.leasing import Held, Idle
from hpcext.batch.slurm.commands import Commands
from hpcext.batch.slurm.leasing import SlurmLeasing
from hpcext.doctor.slurm_plugin import FLAG


class SlurmSystem:
    """Slurm as a :class:`~hpcext.acceptance.systems.System`."""

    key = "slurm"
    # --full includes the batch script and its processes (scancel(1)).
    verbs: Mapping[str, tuple[str, ...]] = {
        "requeue": ("scontrol", "requeue", "JOB"),
        "stop": ("scancel", "--full", "--signal=STOP", "JOB"),
        "go": ("scancel", "--full", "--signal=CONT", "JOB"),
        "kill": ("scancel", "JOB"),
        # A requeued job waits 120 s for the end of a credential (docs/troubleshooting.md).
        "begin": ("scontrol", "update", "JobId=JOB", "StartTime=now"),
    }
    ages = False
    bad_setting = "suspendable=5"
    # A stopped job keeps its nodes. With proctrack/linuxproc only the process group of the batch
    # script is stopped, with cgroups all of the job (seen on 22.05).
    stop_frees = False
    queries: tuple[str, ...] = ("squeue", "scontrol", "sacct", "sinfo")
    silent = "error: Unable to contact slurm controller (connect failure)"
    task = "SLURM_ARRAY_TASK_ID"
    changes: Mapping[str, str] = {
        "flags": "plugstack.conf, cli_filter.lua: the lines that hpcext-admin status slurm shows",
        "requeue": "slurm.conf: JobRequeue=1; a KillWait in which a checkpoint can be written",
        "kill": "slurm.conf: KillWait",
        "time limit": "slurm.conf: JobRequeue=1; a longer lead for slow file systems",
        "preemption": "slurm.conf: GraceTime of the partition below, PreemptMode=REQUEUE, "
        "and the signal at preemption that hpcext doctor names",
        "array": "plugstack.conf: the plugin of this release",
        "pilot": "hpcext doctor, on a node: Python and hpcext on a file system of all nodes",
        "lease": "slurm.conf: GraceTime and PreemptMode of the partition below; "
        "SchedulerParameters of hpcext-harvest(8)",
        "silence": "slurm.conf: MessageTimeout; otherwise report it",
        "removal": "squeue --me: scancel what is left",
    }

    def release(self) -> str:
        """Return the product and its version, such as ``slurm-wlm 22.05.8``."""
        return runner.run(slurm.version_command()).strip()

    def flags(self, partition: str) -> str:
        """Return that sbatch lacks our flags, if it does, because the plugin is not loaded."""
        there = FLAG in runner.everything_said(["sbatch", "--help"])
        return "" if there else f"sbatch has no {FLAG}: hpcext-admin install slurm"

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Return the nodes of a partition by name."""
        return SlurmLeasing().idle(partition)

    def words(self, order: Order, *, flags: bool) -> list[str]:
        """Return the sbatch(1) command of an order."""
        words = [
            f"--job-name={order.name}",
            f"--partition={order.partition}",
            f"--nodelist={','.join(order.hosts)}",
            f"--nodes={len(order.hosts)}",
            f"--time={order.minutes}",
            f"--output={order.output}",
            "--open-mode=append",
            f"--chdir={order.output.parent}",
            # Our variables must reach the job, whatever the site's default is.
            "--export=ALL",
            *(
                ["--exclusive", "--mem=0"]
                if order.slots
                else ["--ntasks=1", f"--mem={order.memory_mb}M"]
            ),
            *([f"--gres=gpu:{order.gpus}"] if order.gpus else []),
            *([f"--array=0-{order.tasks - 1}"] if order.tasks else []),
            *([f"--hpcext-{order.setting}"] if order.setting else []),
        ]
        if order.lead_s:
            # The rules in Lua add these to the flag, but not every site loads them.
            words += ["--requeue", f"--signal=B:USR2@{order.lead_s}"]
            words += [f"{FLAG}={order.lead_s}"] if flags else []
        else:
            words += ["--no-requeue"]
        return slurm.submit_command(words)

    def variables(self, order: Order, *, flags: bool) -> dict[str, str]:
        """Return none, since flags are enough."""
        return {}

    def job_id(self, said: str) -> JobId:
        """Parse the id of the job from the output of sbatch."""
        return slurm.parse_job_id(said)

    def states(self, jobs: Sequence[JobId]) -> dict[JobId, str]:
        """Return states that Slurm's commands report, which every site has, unlike pyslurm."""
        return Commands().states(jobs)

    def cancel(self, jobs: Sequence[JobId]) -> None:
        """End these jobs with scancel(1)."""
        if jobs:
            # scancel complains about jobs that have ended.
            runner.everything_said(["scancel", *map(str, jobs)])

    def cancel_named(self, name: str) -> None:
        """End all jobs of this name."""
        runner.run(slurm.cancel_named_command(name))

    def held(self, name: str) -> tuple[Held, ...]:
        """Return the jobs of this name that slurmctld knows."""
        return SlurmLeasing().held(name)

    def named(self, name: str) -> dict[JobId, str]:
        """Return the states of the jobs of this name that slurmctld knows."""
        return {job.job_id: job.state for job in self.held(name)}

    def pilot_of(self, job: JobId) -> str:
        """Return the name of a suspendable job's pilot."""
        return f"job-{job}"

    def tasks_of(self, job: JobId, count: int) -> tuple[JobId, ...]:
        """Return the ids of an array's tasks, ``ARRAY_TASK``."""
        return tuple(f"{job}_{task}" for task in self.numbers_of(count))

    def numbers_of(self, count: int) -> range:
        """Return indices from 0 on."""
        return range(count)

    def pilot_options(self, order: Order) -> list[str]:
        """Return the options for sbatch."""
        return [f"--partition={order.partition}", f"--nodelist={','.join(order.hosts)}"]
