"""Queries of Slurm by pyslurm, where one for its release is installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hpcext.allocation import JobId
from hpcext.batch import slurm
from hpcext.batch.jobs import End, Seen
from hpcext.batch.slurm import Host, SlurmStep
from hpcext.batch.slurm.commands import Commands
from hpcext.core.errors import BatchError

_Found = TypeVar("_Found")


class Api(Commands):
    """Queries by pyslurm, which starts no processes, for all that pyslurm offers.

    pyslurm is an extra: X.Y is built against the libraries of Slurm X.Y, and works with no other
    release. Its reference is at https://pyslurm.github.io.

    Parameters
    ----------
    module : module
        pyslurm, or an object with its attributes.
    """

    def __init__(self, module: Any) -> None:
        self._slurm = module

    def _held(self, job_ids: Sequence[JobId]) -> Mapping[JobId, Seen]:
        jobs = self._ask(self._slurm.Jobs.load)
        return {
            job_id: Seen(slurm.state(job.state), why=getattr(job, "state_reason", None) or "")
            for job_id in job_ids
            if (job := _one(jobs, job_id)) is not None
        }

    def _job(self, job_id: JobId) -> Any:
        """Return a job that slurmctld knows."""
        if isinstance(job_id, int):
            return self._ask(lambda: self._slurm.Job.load(job_id))
        job = _one(self._ask(self._slurm.Jobs.load), job_id)
        if job is None:
            raise BatchError(f"no job {job_id} in slurmctld")
        return job

    def end(self, job_id: JobId) -> End:
        """Return the state of a job, and the latest instant of its end."""
        job = self._job(job_id)
        end_s = None if job.end_time is None else float(job.end_time)
        return End(slurm.state(job.state), end_s, _limit_end_s(job))

    def steps(self, job_id: JobId) -> tuple[SlurmStep, ...]:
        """Return the steps of a job that have not ended."""
        steps = self._job(job_id).steps
        return tuple(SlurmStep(f"{job_id}.{step.id}", step.name or "") for step in steps.values())

    def _nodelist(self, job_id: JobId) -> str:
        job = self._job(job_id)
        return job.allocated_nodes or "" if slurm.state(job.state) == "running" else ""

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """Return nodes by name."""
        nodes = self._ask(self._slurm.Nodes.load)
        found = {}
        for name in names:
            if name in nodes:
                # Such as {"gpu:a100": 4} or {"gpu": 4}; older releases of pyslurm lack it.
                gres = getattr(nodes[name], "configured_gres", None) or {}
                kind = slurm.gres_kind(",".join(f"{what}:{count}" for what, count in gres.items()))
                found[name] = Host(nodes[name].address or name, kind)
        return found

    def _ask(self, question: Callable[[], _Found]) -> _Found:
        try:
            return question()
        except self._slurm.RPCError as error:
            raise BatchError(f"pyslurm: {error}") from None


def _one(jobs: Any, job_id: JobId) -> Any:
    """Return one of all jobs by its id; None if it is not among them."""
    if isinstance(job_id, int):
        return jobs.get(job_id)
    named = (job for job in jobs.values() if f"{job.array_id}_{job.array_task_id}" == job_id)
    return next(named, None)


def _limit_end_s(job: Any) -> float | None:
    """Return when a job ends by its time limit, which is in minutes, or a word."""
    if job.time_limit == "UNLIMITED":
        return math.inf
    known = type(job.time_limit) is int and job.start_time is not None
    return float(job.start_time + 60 * job.time_limit) if known else None
