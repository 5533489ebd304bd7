"""The backend for Slurm."""

from __future__ import annotations

import functools
import logging
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from hpcext.allocation import Allocation, JobId
from hpcext.backends.base import Backend, JobPlace, PilotOrder, PilotRun, refuse_array
from hpcext.backends.batch_job import SubmittedPilot
from hpcext.backends.own_job import OwnJob
from hpcext.backends.slurm import job as slurm_job
from hpcext.backends.slurm.script import SlurmScript
from hpcext.backends.slurm.steps import Share, SlurmSteps
from hpcext.backends.slurm.suspend import SlurmSuspendable
from hpcext.backends.slurm.ticket import SlurmTicket
from hpcext.backends.suspendable_job import SuspendableJob
from hpcext.batch import runner, slurm
from hpcext.batch.jobs import Jobs, Seen
from hpcext.batch.leasing import Leasing
from hpcext.batch.slurm.leasing import SlurmLeasing
from hpcext.batch.slurm.reads import reads
from hpcext.batch.slurm.requeued import begin_requeued
from hpcext.batch.standing import Is
from hpcext.config import Settings
from hpcext.core.errors import BatchError, InputError, NoManagerError
from hpcext.core.values import Node
from hpcext.text import shown

log = logging.getLogger(__name__)

HOSTS_PATIENCE_S = 120.0
"""Seconds for which a manager that begins waits for a slurmctld that is away."""

_SITES = {"JobHeldAdmin", "JobHoldMaxRequeue"}
"""Reasons for which only an operator can release a job (squeue(1), JOB REASON CODES)."""


class Slurm(Backend):
    """Slurm, from 22.05 on."""

    name = "slurm"
    title = "Slurm"
    command = "sbatch"
    polls = False
    # Until the credential of its last run expires, two minutes by default.
    delays_requeued = True

    def own_job(self) -> JobId | None:
        """Return the id of the job in which this process runs, unique for commands of Slurm."""
        here = Allocation.from_environ()
        return here.name if here is not None else None

    def jobs(self) -> Jobs:
        """Return an object for queries by the commands of Slurm, or by pyslurm."""
        return reads()

    @property
    def submitted(self) -> SubmittedPilot:
        """The notes on its job in the directory of a pilot."""
        return slurm_job.SUBMITTED

    def check(self, order: PilotOrder) -> PilotOrder:
        """Refuse a job array, and a job on another cluster."""
        refuse_array(slurm.array_of(order.options))
        if (option := slurm.clusters_of(order.options)) is not None:
            raise InputError(slurm.ONE_CLUSTER, where=shown(option), do=slurm.SUBMIT_THERE)
        return order

    def limit_s(self, time: str) -> float | None:
        """Return the seconds of ``--time``."""
        return slurm.parse_time_limit(time)

    def prepare(self, directory: Path, order: PilotOrder, settings: Settings) -> Sequence[str]:
        """Write the script of a pilot, and return the options of sbatch for it."""
        return slurm_job.prepare(directory, order, settings)

    def hand_in(self, directory: Path, options: Sequence[str]) -> JobId:
        """Submit the script of a pilot with sbatch."""
        return slurm_job.hand_in(directory, options)

    def place(self, run: PilotRun) -> JobPlace:
        """Return the nodes of the allocation; for a suspendable script, the first one."""
        here = Allocation.from_environ()
        if here is None:
            raise NoManagerError(
                f"pilot {run.name} runs inside a job of Slurm, but this process does not"
            )
        requeue = functools.partial(slurm_job.requeue_at_last, here.name)
        common: dict[str, Any] = {
            "job_id": here.name,
            "restarts": here.restarts,
            "lead_s": run.lead_s,
            "number": here.job_id,
        }
        if run.alone:
            # The batch step is on the first node; what its script does on others is its own affair.
            node = Node(here.node, len(run.gpus))
            script = functools.partial(
                SlurmScript, node=node, indices=here.gpus or run.gpus, **common
            )
            return JobPlace((node,), script, requeue, here.restarts)
        nodes, executor = _steps(run, here, common)
        gone = _lost_nodes(here, nodes)
        left = tuple(node for node in nodes if node.name not in gone)
        return JobPlace(left, executor, requeue, here.restarts, gone)

    def send(self, job_id: JobId, signum: int) -> bool:
        """Have Slurm signal the script, which passes the signal on to the manager."""
        name = signal.Signals(signum).name.removeprefix("SIG")
        try:
            runner.run(slurm.cancel_command(str(job_id), signal=name, batch=True))
        except BatchError:
            return False
        return True

    def begin_requeued(self, ours: Callable[[], Collection[JobId]]) -> None:
        """Have jobs begin that wait for nothing but the expiry of a credential."""
        begin_requeued(ours)

    def advice(self, job_id: JobId, state: Is, seen: Seen) -> str:
        """Return which command releases or resumes a job, and who may use it."""
        if state is Is.HELD:
            who = ", which takes an operator of Slurm" if seen.why in _SITES else ""
            return f"scontrol release {job_id} lets it begin{who}"
        if seen.state == "stopped":
            return f"scancel --signal=CONT {job_id} lets it go on"
        # "suspend" and "resume" are for operators (scontrol(1)).
        return f"scontrol resume {job_id} lets it go on, which takes an operator of Slurm"

    def leasing(self, settings: Settings) -> Leasing:
        """Return what leases nodes of Slurm."""
        return SlurmLeasing()

    def ticket(self) -> OwnJob | None:
        """Return the job whose batch script this process is; None if it is in none."""
        here = Allocation.from_environ()
        # The shell of salloc runs on no node of its job.
        return SlurmTicket(here) if here and here.node and not here.step else None

    def suspendable(self, command: Sequence[str], shell: int | None) -> SuspendableJob:
        """Return the job in which this process runs, to be made suspendable."""
        here = Allocation.from_environ()
        return SlurmSuspendable(here, command) if here else super().suspendable(command, shell)


def _steps(
    run: PilotRun, here: Allocation, common: dict[str, Any]
) -> tuple[tuple[Node, ...], functools.partial[SlurmSteps]]:
    """Return all nodes of the allocation, and an executor for steps on them."""
    names = slurm.parse_hostnames(runner.run(slurm.hostnames_command(here.nodelist)))
    gpus = len(run.gpus)
    cpus = slurm.parse_cpus(here.cpus_per_node)
    # All nodes have the same number of GPUs, as requested; CPUs may differ.
    shares = {
        name: Share(gpus, cpus=count, memory_mb=here.memory_mb, logical=run.logical)
        for name, count in zip(names, cpus, strict=True)
    }
    hosts = _hosts(names) if len(names) > 1 else {}
    addresses = {name: host.address for name, host in hosts.items()}
    # Slots are alike on all nodes.
    kinds = {name: host.kind for name, host in hosts.items() if not run.logical}
    nodes = tuple(Node(name, gpus, kinds.get(name, "")) for name in names)
    executor = functools.partial(
        SlurmSteps, shares=shares, addresses=addresses, orphans=run.orphans, **common
    )
    return nodes, executor


def _hosts(names: Sequence[str]) -> dict[str, slurm.Host]:
    """Return what Slurm knows of nodes; nothing if it does not answer for a while.

    Their names mostly are their addresses, and trainings that run already must not end for that.
    """
    try:
        return runner.patiently(lambda: reads().hosts(names), HOSTS_PATIENCE_S)
    except BatchError as error:
        log.warning("addresses and GPUs of the nodes are taken as usual ones: %s", error)
        return {}


def _lost_nodes(here: Allocation, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return nodes that the job has lost since it began, which its environment does not show."""
    try:
        left = reads().nodes_of(here.name)
    except BatchError as error:
        log.warning("it is unknown which nodes are left: %s", error)
        return ()
    return tuple(node.name for node in nodes if left and node.name not in left)
