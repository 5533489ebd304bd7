"""Queries of Slurm, by its commands, or by pyslurm if there is one for this release."""

from __future__ import annotations

import functools
import importlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

from hpcext.allocation import JobId
from hpcext.batch import runner, slurm
from hpcext.batch.jobs import UNKNOWN, End, Jobs, Seen
from hpcext.batch.slurm import Host, SlurmStep
from hpcext.core.errors import BatchError
from hpcext.numerals import whole

log = logging.getLogger(__name__)

_NO_ACCOUNTING = "accounting storage is disabled"
"""What sacct prints if the site has no accounting (slurm.conf(5), AccountingStorageType)."""

_Found = TypeVar("_Found")


class Commands(Jobs):
    """Queries by the commands of Slurm, which every site has."""

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """Return what slurmctld says of jobs, or accounting of those that it has forgotten."""
        if not job_ids:
            return {}
        found = dict(self._held(job_ids))
        missing = [job_id for job_id in job_ids if job_id not in found]
        return found | past(missing) if missing else found

    def _held(self, job_ids: Sequence[JobId]) -> Mapping[JobId, Seen]:
        """Return the state of those jobs that slurmctld knows."""
        try:
            return slurm.parse_seen(runner.run(slurm.jobs_command(job_ids)))
        except BatchError as error:
            # squeue fails for a single unknown job, but not if there are several.
            if "Invalid job id" not in error.stderr:
                raise
            return {}

    def end(self, job_id: JobId) -> End:
        """Return the state of a job, and the latest instant of its end."""
        argv = slurm.end_command(job_id)
        return slurm.parse_end(runner.run(argv, environ=slurm.epoch_times()))

    def preempted(self, job_id: JobId) -> bool:
        """Return whether a job, whose end is earlier than before, is being preempted."""
        return slurm.is_preempted(runner.run(slurm.job_command(job_id)))

    def steps(self, job_id: JobId) -> tuple[SlurmStep, ...]:
        """Return the steps of a job that have not ended."""
        return slurm.parse_steps(runner.run(slurm.steps_command(job_id)))

    def nodes_of(self, job_id: JobId) -> tuple[str, ...]:
        """Return the nodes of a running job; none otherwise."""
        listed = self._nodelist(job_id)
        return slurm.parse_hostnames(runner.run(slurm.hostnames_command(listed))) if listed else ()

    def _nodelist(self, job_id: JobId) -> str:
        return slurm.parse_nodelist(runner.run(slurm.jobs_command([job_id])), job_id)

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """Return nodes by name."""
        return slurm.parse_hosts(runner.run(slurm.hosts_command(",".join(names))))


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


def past(job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
    """Return the last states of jobs that slurmctld has forgotten, from accounting.

    If accounting does not answer, the states are unknown. If the site has no accounting, all jobs
    are left out.
    """
    try:
        return slurm.parse_seen(runner.run(slurm.accounting_command(job_ids)))
    except BatchError as error:
        log.info("accounting is not available: %s", error)
        if _NO_ACCOUNTING in error.stderr:
            return {}
        return dict.fromkeys(
            job_ids, Seen(UNKNOWN, why=f"accounting did not answer ({error.what})")
        )


@functools.cache
def reads() -> Commands:
    """Return what this process queries Slurm with: pyslurm for its release, or else commands."""
    module = find_pyslurm()
    if module is None:
        return Commands()
    try:
        release = slurm.parse_version(runner.run(slurm.version_command()))
    except BatchError:
        return Commands()
    if release_of(module) != release:
        log.info("pyslurm %s does not work with Slurm %d.%02d", module.__version__, *release)
        return Commands()
    return Api(module)


def find_pyslurm() -> ModuleType | None:
    """Return pyslurm, if it and its libraries of Slurm are installed."""
    try:
        return importlib.import_module("pyslurm")
    except (ImportError, OSError):
        return None


def release_of(module: Any) -> tuple[int, int] | None:
    """Return the release of Slurm for which a pyslurm is built: 24.5.0 is for 24.05."""
    major, minor = map(whole, [*str(getattr(module, "__version__", "")).split("."), ""][:2])
    return None if major is None or minor is None else (major, minor)
