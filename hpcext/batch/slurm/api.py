"""Questions to Slurm through pyslurm, which start no process.

pyslurm is an extra: pyslurm X.Y is built against the libraries of Slurm X.Y, and works with no
other release. Attributes are those of pyslurm's reference; https://pyslurm.github.io.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from hpcext.batch import runner
from hpcext.batch.jobs import End, Seen
from hpcext.batch.slurm import (
    Host,
    Step,
    gres_kind,
    hostnames_command,
    is_preempted,
    job_command,
    parse_hostnames,
    state,
)
from hpcext.batch.slurm.past import past
from hpcext.core.errors import BatchError
from hpcext.numerals import whole
from hpcext.protocol import JobId

_Found = TypeVar("_Found")


def find() -> ModuleType | None:
    """Return pyslurm, if it is installed and the libraries of its Slurm are."""
    try:
        return importlib.import_module("pyslurm")
    except (ImportError, OSError):
        return None


def release_of(module: Any) -> tuple[int, int] | None:
    """Return the release of Slurm that a pyslurm is for: 24.5.0 is for 24.05."""
    major, minor = map(whole, [*str(getattr(module, "__version__", "")).split("."), ""][:2])
    return None if major is None or minor is None else (major, minor)


def _one(jobs: Any, job_id: JobId) -> Any:
    """Return a job of all jobs, or None."""
    if isinstance(job_id, int):
        return jobs.get(job_id)
    for job in jobs.values():
        if f"{job.array_id}_{job.array_task_id}" == job_id:
            return job
    return None


class Api:
    """Slurm through pyslurm, as :class:`~hpcext.batch.slurm.reads.Reads`.

    Parameters
    ----------
    module : module
        pyslurm, or an object with its attributes.
    """

    def __init__(self, module: Any) -> None:
        self._slurm = module

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs, as in Reads."""
        return {job_id: each.state for job_id, each in self.seen(job_ids).items()}

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """Return what is said of jobs, as in Reads.

        What slurmctld has forgotten is asked of sacct, whose errors say whether there is any
        accounting.
        """
        if not job_ids:
            return {}
        jobs = self._ask(self._slurm.Jobs.load)
        here = {job_id: job for job_id in job_ids if (job := _one(jobs, job_id)) is not None}
        found = {
            job_id: Seen(state(job.state), why=getattr(job, "state_reason", None) or "")
            for job_id, job in here.items()
        }
        missing = [job_id for job_id in job_ids if job_id not in here]
        return found | past(missing) if missing else found

    def _job(self, job_id: JobId) -> Any:
        """Return a job that slurmctld holds; for a bare number it answers with a whole array."""
        if isinstance(job_id, int):
            return self._ask(lambda: self._slurm.Job.load(job_id))
        job = _one(self._ask(self._slurm.Jobs.load), job_id)
        if job is None:
            raise BatchError(f"no job {job_id} in slurmctld")
        return job

    def end(self, job_id: JobId) -> End:
        """Return a job's state and end, as in Reads."""
        job = self._job(job_id)
        end_s = None if job.end_time is None else float(job.end_time)
        return End(state(job.state), end_s, _limit_end_s(job))

    def preempted(self, job_id: JobId) -> bool:
        """Return what Reads does, by the command: pyslurm has no attribute for it."""
        return is_preempted(runner.run(job_command(job_id)))

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        """Return the steps of a job, as in Reads."""
        steps = self._job(job_id).steps
        return tuple(Step(f"{job_id}.{step.id}", step.name or "") for step in steps.values())

    def nodes_of(self, job_id: JobId) -> tuple[str, ...]:
        """Return the nodes of a job, as in Reads."""
        job = self._job(job_id)
        listed = job.allocated_nodes if state(job.state) == "running" else None
        return parse_hostnames(runner.run(hostnames_command(listed))) if listed else ()

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """Return nodes by name, as in Reads."""
        nodes = self._ask(self._slurm.Nodes.load)
        found = {}
        for name in names:
            if name in nodes:
                # As {"gpu:a100": 4}, {"gpu": 4}; older ones have none.
                gres = getattr(nodes[name], "configured_gres", None) or {}
                kind = gres_kind(",".join(f"{what}:{count}" for what, count in gres.items()))
                found[name] = Host(nodes[name].address or name, kind)
        return found

    def _ask(self, question: Callable[[], _Found]) -> _Found:
        try:
            return question()
        except self._slurm.RPCError as error:
            raise BatchError(f"pyslurm: {error}") from None


def _limit_end_s(job: Any) -> float | None:
    """Return when a job's limit, which is in minutes or a word, ends it."""
    if job.time_limit == "UNLIMITED":
        return math.inf
    known = type(job.time_limit) is int and job.start_time is not None
    return float(job.start_time + 60 * job.time_limit) if known else None
