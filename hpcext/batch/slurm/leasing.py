"""Leases of nodes of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcext.allocation import CHARGED, for_sbatch
from hpcext.batch import runner, slurm
from hpcext.batch.leasing import Association, Held, Idle, LeaseSubmission, Other
from hpcext.batch.slurm import fair_share
from hpcext.batch.slurm import idle as slurm_idle
from hpcext.batch.slurm import site as slurm_site
from hpcext.batch.slurm.reads import reads
from hpcext.batch.slurm.tables import new_mark
from hpcext.core.errors import BatchError

_SCRIPT = """#!/bin/sh
# A lease of an hpcext harvester: one node, for as long as nobody else needs it.
trap '' USR1 USR2
exec srun --nodes=1 --ntasks=1 --cpus-per-task="${{SLURM_CPUS_ON_NODE:-1}}" --mem=0 \\
    --cpu-bind=none --mpi=none --quiet {agent}
"""


def _extent(node: Idle) -> list[str]:
    """Return the options of sbatch for the part of its node that a lease has."""
    if node.shared:
        return ["--ntasks=1", f"--cpus-per-task={node.cpus}", f"--mem={node.memory_mb}"]
    return ["--exclusive", "--mem=0"]


class SlurmLeasing:
    """Slurm as a :class:`~hpcext.batch.leasing.Leasing`."""

    whole_nodes = False
    # A job that has preempted others does not preempt any more for KillWait and MessageTimeout.
    keeps_nodes = False
    has_accounts = True

    def __init__(self) -> None:
        self._hidden: bool | None = None

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Return the nodes of a partition by name."""
        return slurm_idle.parse_idle(runner.run(slurm_idle.idle_command(partition)))

    def ends(self, but: str = "") -> dict[str, float]:
        """Return when nodes are needed for other jobs, as Slurm has planned."""
        return slurm_idle.planned_ends(but)

    def due(self) -> bool:
        """Return whether another job waits for nodes; True if jobs of others are hidden."""
        if self._hidden is None:
            self._hidden = bool(self.lacks())
        mark = new_mark()
        command = slurm_idle.due_command(mark)
        return self._hidden or slurm_idle.parse_due(runner.run(command), mark)

    def held(self, name: str) -> tuple[Held, ...]:
        """Return our jobs of a name."""
        text = runner.run(slurm_idle.held_command(name), environ=slurm.epoch_times())
        return slurm_idle.parse_held(text)

    def others(self, partition: str, but: str) -> tuple[Other, ...]:
        """Return leases of harvesters, except those of a name."""
        mark = new_mark()
        command = slurm_idle.others_command(partition, mark)
        found = slurm_idle.parse_others(runner.run(command, environ=slurm.epoch_times()), mark)
        return tuple(each for each in found if each.harvester != but)

    def associations(self, partition: str = "") -> tuple[Association, ...]:
        """Return the fair share of all users, which is the same in all partitions."""
        return fair_share.parse_fair_share(runner.run(fair_share.fair_share_command()))

    def script(self, agent: str, directory: Path) -> str:
        """Return the script of a lease's job."""
        return _SCRIPT.format(agent=agent)

    def submit(self, order: LeaseSubmission, script: Path) -> int:
        """Submit a lease."""
        words = [
            f"--job-name={order.name}",
            f"--comment={order.number}",
            f"--partition={order.partition}",
            *order.options,
            *([] if order.anywhere else [f"--nodelist={order.node.name}"]),
            *([f"--begin=now+{order.after_s}"] if order.after_s else []),
            "--nodes=1",
            *_extent(order.node),
            *([f"--gres=gpu:{order.gpus}"] if order.gpus else []),
            f"--time={order.minutes}",
            "--no-requeue",
            f"--output={order.directory / 'slurm.out'}",
            "--open-mode=append",
            "--chdir=/",
        ]
        command = slurm.submit_command(words)
        said = runner.run(command, environ=for_sbatch(*CHARGED), script=script)
        return slurm.parse_job_id(said)

    def cancel(self, job_id: int) -> None:
        """End a job."""
        runner.run(slurm.cancel_command(str(job_id)))

    def withdraw(self, name: str, timeout_s: float) -> None:
        """Cancel jobs that have not begun."""
        runner.run(slurm_idle.withdraw_command(name), timeout_s=timeout_s)

    def address(self, node: str) -> str:
        """Return the address by which Slurm reaches a node."""
        hosts = reads().hosts([node])
        if node not in hosts:
            raise BatchError(f"Slurm does not know {node}")
        return hosts[node].address

    def lacks(self) -> tuple[str, ...]:
        """Return that jobs of other users are hidden, if they are."""
        config = slurm_site.parse_config(runner.run(slurm_site.config_command()))
        # slurm.conf(5), PrivateData: later releases than 22.05 also have "all".
        if {"jobs", "all"} & slurm_site.words(config.get("PrivateData", "")).keys():
            return (
                "other users' jobs are hidden here (PrivateData=jobs), so harvesters of "
                "different users cannot see each other: the first one takes all idle nodes that "
                "it can use",
            )
        return ()
