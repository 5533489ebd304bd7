"""The main job, which preempts the lease of a probe, on Slurm and on LSF."""

from __future__ import annotations

import contextlib
from typing import Protocol

from hpcext.allocation import CHARGED, for_sbatch
from hpcext.batch import lsf, runner, slurm
from hpcext.batch.leasing import Idle
from hpcext.batch.lsf import inside as lsf_inside
from hpcext.batch.lsf import leasing as lsf_leasing
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.queues import parse_queues, queues_command
from hpcext.batch.slurm import site as slurm_site
from hpcext.config import Settings
from hpcext.core.errors import BatchError
from hpcext.doctor import leases, lsf_queues
from hpcext.text import clean


class MainJobSystem(Protocol):
    """The batch system of the main job.

    Attributes
    ----------
    name : str
        The name of the batch system, as in :data:`hpcext.backends.BUILT_IN`.
    queue_do, slow_do, grace_do : str
        Advice if the lease does not begin, if the main job does not, and if the lease is not
        suspended in time.
    """

    name: str
    queue_do: str
    slow_do: str
    grace_do: str

    def submit(self, partition: str, node: Idle, name: str) -> tuple[int | None, str]:
        """Submit a job for a node that preempts jobs of a partition.

        Parameters
        ----------
        partition : str
            The partition or queue of the lease.
        node : Idle
        name : str
            The name of the job.

        Returns
        -------
        (int or None, str)
            The id of the job; or None, and the reason.
        """

    def imitate(self, lease: int) -> str:
        """Send a lease what a preemption would send.

        Parameters
        ----------
        lease : int
            The id of its job.

        Returns
        -------
        str
            What was done; empty if only another job can do that.
        """

    def state(self, job_id: int) -> str:
        """Return the state of a job; empty if it is unknown."""


class SlurmMain:
    """The main job on Slurm."""

    name = "slurm"
    queue_do = "check squeue --start, and what hpcext doctor says about backfill"
    slow_do = "check squeue, and the log of slurmctld"
    grace_do = "ask for a longer GraceTime of the partition"

    def submit(self, partition: str, node: Idle, name: str) -> tuple[int | None, str]:
        """Submit the job to the first partition that accepts it; return its id, or why not.

        Parameters
        ----------
        partition : str
            One or several, with commas.
        node : Idle
            The node that the job asks for.
        name : str
            The name of the job.
        """
        config = slurm_site.parse_config(runner.run(slurm_site.config_command()))
        if config.get("PreemptType") != "preempt/partition_prio":
            return None, f"it is unknown which QOS preempts ({config.get('PreemptType', '')})"
        partitions = slurm_site.parse_partitions(runner.run(slurm_site.partitions_command()))
        members = slurm_site.parse_members(runner.run(slurm_site.members_command()))
        above = leases.above(partition, partitions, members, {node.name})
        said = f"no partition above {partition} has {node.name}"
        for each in above:
            words = [
                f"--job-name={name}", f"--partition={each}", f"--nodelist={node.name}",
                "--nodes=1", "--exclusive", "--time=1", "--no-requeue", "--output=/dev/null",
                "--chdir=/", "--wrap=sleep 2",
            ]  # fmt: skip
            try:
                command = ["sbatch", "--parsable", *words]
                answer = runner.run(command, environ=for_sbatch(*CHARGED))
                return slurm.parse_job_id(answer), ""
            except BatchError as error:
                said = f"{each}: {clean(error.what)}"
        return None, said

    def imitate(self, lease: int) -> str:
        """Return an empty string: users cannot send what a preemption sends."""
        return ""

    def state(self, job_id: int) -> str:
        """Return the state of a job, by squeue."""
        with contextlib.suppress(BatchError):
            return slurm.parse_end(runner.run(slurm.end_command(job_id))).state
        return ""


class LsfMain:
    """The main job on LSF.

    Parameters
    ----------
    settings : Settings
    """

    name = "lsf"
    queue_do = "check bjobs -p, and what hpcext doctor says about the queue"
    slow_do = "check bjobs -p, and PREEMPTION of the queues"
    grace_do = "ask for SUSPEND[SIGTSTP] in the queue's JOB_CONTROLS"

    def __init__(self, settings: Settings) -> None:
        self._gpu_option = settings.lsf_gpu_option

    def submit(self, partition: str, node: Idle, name: str) -> tuple[int | None, str]:
        """Submit the job to the first queue that accepts it; return its id, or why not.

        Parameters
        ----------
        partition : str
            One queue or several, with commas or blanks.
        node : Idle
            The host that the job asks for.
        name : str
            The name of the job.
        """
        queues = parse_queues(runner.run(queues_command()))
        mine = [each for each in queues if each.name == partition]
        above = lsf_queues.above(mine[0], queues) if mine else []
        said = f"according to bqueues, no queue preempts jobs of {partition}"
        engine = lsf_probe.known()
        words = [
            *("-J", name, "-m", node.name, "-n", str(max(1, node.cpus)), "-R", "span[hosts=1]"),
            *lsf_leasing.gpu_words(node.gpus, engine, self._gpu_option),
            *("-W", "1", "-o", "/dev/null"),
            *([] if engine.lacks("bsub", "-cwd") else ["-cwd", "/"]),
        ]
        for each in above:
            try:
                command = ["bsub", "-q", each.name, *words, "sleep 2"]
                answer = runner.run(command, environ=lsf_inside.environ_of_others())
                return lsf.parse_job_id(answer), ""
            except BatchError as error:
                said = f"{each.name}: {clean(error.what)}"
        return None, said

    def imitate(self, lease: int) -> str:
        """Stop a lease by bstop(1), for which LSF applies JOB_CONTROLS, as for a preemption."""
        runner.run(["bstop", str(lease)])
        return "stopped by bstop, as a preemption would"

    def state(self, job_id: int) -> str:
        """Return the state of a job, by bjobs."""
        with contextlib.suppress(BatchError):
            return lsf.Commands().states([job_id]).get(job_id, "")
        return ""
