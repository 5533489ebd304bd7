"""The Slurm job in which a process runs, from the variables that Slurm sets.

It needs only the standard library, like :mod:`hpcext.protocol`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from hpcext.numerals import whole

JobId = int | str
"""The id of a job of a batch system: its number or, for a part of a job array, whose number is that
of the whole array, the name that commands use: ``ARRAY_TASK`` of Slurm, ``ARRAY[INDEX]`` of LSF."""


class Allocation(NamedTuple):
    """The Slurm job in which this process runs, and the step; sbatch(1), srun(1).

    Attributes
    ----------
    job_id : int
        Number of the job; an array's last task has the number of the array.
    step : str
        ``JOB.STEP``; empty in a batch script.
    node : str
        Name of the node of this process.
    nodelist : str
        As Slurm writes it: ``n[1-4]``.
    cpus_per_node : str
        As Slurm writes it: ``24(x2),12``.
    memory_mb : int
        Memory of each node in MiB; 0 if Slurm does not allocate memory.
    gpus : tuple of int
        Indices of the step's GPUs, or of the job's on this node.
    node_index : int
        Index of this node in the step, from 0.
    restarts : int
        Number of times that the job was requeued.
    task : str
        ``ARRAY_TASK`` for a task of a job array; otherwise empty.
    """

    job_id: int
    step: str
    node: str
    nodelist: str
    cpus_per_node: str
    memory_mb: int
    gpus: tuple[int, ...]
    node_index: int = 0
    restarts: int = 0
    task: str = ""

    @property
    def name(self) -> JobId:
        """Return the id by which Slurm's commands identify this job."""
        return self.task or self.job_id

    @classmethod
    def from_environ(cls) -> Allocation | None:
        """Return the allocation in which this process runs; None outside Slurm."""
        env = os.environ
        job_id, step = (whole(env.get(f"SLURM_{name}_ID")) for name in ("JOB", "STEP"))
        if job_id is None:
            return None
        array, task = (whole(env.get(f"SLURM_ARRAY_{name}_ID")) for name in ("JOB", "TASK"))
        gpus = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS", "")
        memory = whole(env.get("SLURM_MEM_PER_NODE"))
        if memory is None:
            each, cpus = env.get("SLURM_MEM_PER_CPU"), env.get("SLURM_CPUS_ON_NODE")
            memory = (whole(each) or 0) * (whole(cpus) or 0)
        return cls(
            job_id=job_id,
            step="" if step is None else f"{job_id}.{step}",
            node=env.get("SLURMD_NODENAME", ""),
            nodelist=env.get("SLURM_JOB_NODELIST", ""),
            cpus_per_node=env.get("SLURM_JOB_CPUS_PER_NODE", ""),
            memory_mb=memory,
            gpus=tuple(index for index in map(whole, gpus.split(",")) if index is not None),
            node_index=whole(env.get("SLURM_NODEID")) or 0,
            restarts=whole(env.get("SLURM_RESTART_COUNT")) or 0,
            task="" if array is None or task is None else f"{array}_{task}",
        )


def step_index() -> int:
    """Return the index, from 0, of this process's node in its step."""
    place = Allocation.from_environ()
    return place.node_index if place else 0


_CONNECTION = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET")
"""Variables by which a command finds its slurmctld, and proves who asks."""

# The last prefix is of plugins' options, which jobs submitted from here would inherit.
_OF_JOBS = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "_SLURM_")
_OF_COMMANDS = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_", "SSHARE_")

_LOCAL = ("SQUEUE_LOCAL", "SINFO_LOCAL", "SCONTROL_LOCAL", "SACCT_LOCAL")
"""As ``--local``: in a federation, nodes and jobs of this cluster alone (22.05 to 26.05)."""

CHARGED = ("SBATCH_ACCOUNT", "SBATCH_WCKEY")
"""A user's defaults for whom a job is charged to; sbatch(1), INPUT ENVIRONMENT VARIABLES."""

PLACED = ("SBATCH_CONSTRAINT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION",
          "SBATCH_TIMELIMIT")  # fmt: skip
"""A user's defaults for where a job runs, and for how long."""


def without_slurm() -> dict[str, str]:
    """Return the environment without Slurm's variables of the present job.

    A step that inherited them would have unintended options.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _CONNECTION or not name.startswith(_OF_JOBS)
    }


def for_commands() -> dict[str, str]:
    """Return the environment for a command that asks a batch system, or acts on its jobs.

    Without the user's defaults for commands of Slurm, which would hide jobs and nodes
    (``SQUEUE_PARTITION``), wait for an answer (``SCANCEL_INTERACTIVE``) or ask another cluster
    (``SLURM_CLUSTERS``): all commands are for the one cluster of this host.
    """
    kept = {k: v for k, v in without_slurm().items() if not k.startswith(_OF_COMMANDS)}
    return kept | dict.fromkeys(_LOCAL, "1")


def for_sbatch(*defaults: str) -> dict[str, str]:
    """Return the environment for sbatch, which the job inherits.

    Parameters
    ----------
    *defaults : str
        The user's defaults that hold for the job: :data:`CHARGED`, :data:`PLACED`. Others, such as
        ``SBATCH_ARRAY_INX`` and ``SBATCH_CLUSTERS``, would make another job of it.
    """
    given = {name: os.environ[name] for name in defaults if name in os.environ}
    return without_slurm() | given


def clusters_of_user() -> tuple[str, str]:
    """Return the variable by which a user has sbatch use other clusters, and its value; sbatch(1).

    Both are empty if there is none.
    """
    for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"):
        if os.environ.get(name):
            return name, os.environ[name]
    return "", ""


def array_of_slurm() -> dict[str, str]:
    """Return the variables that distinguish this task of a job array from the others; sbatch(1)."""
    return {name: said for name, said in os.environ.items() if name.startswith("SLURM_ARRAY_")}


def without_task(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without Slurm's variables of the present task.

    The ranks of a launcher are other tasks, and frameworks (Lightning, JAX) rely on these
    variables.

    Parameters
    ----------
    environ : Mapping of str to str, optional
        By default that of this process.
    """
    gone = (
        "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS",
        "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
    )  # fmt: skip
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if name not in gone}
