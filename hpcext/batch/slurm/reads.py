"""Questions to Slurm, in one of two ways: by its commands, or by pyslurm if it fits."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Protocol

from hpcext.batch import runner, slurm
from hpcext.batch.jobs import End, Seen
from hpcext.batch.slurm import Host, Step
from hpcext.batch.slurm import api as slurm_api
from hpcext.batch.slurm.past import past
from hpcext.core.errors import BatchError
from hpcext.protocol import JobId

log = logging.getLogger(__name__)


class Reads(Protocol):
    """Questions to a Slurm; each raises BatchError if there is no answer."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs; one that nobody knows any more is left out."""

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """As :class:`hpcext.batch.jobs.Jobs` has it."""

    def end(self, job_id: JobId) -> End:
        """Return a job's state, and the latest instant of its end."""

    def preempted(self, job_id: JobId) -> bool:
        """Return whether the nodes of a job, which now ends earlier, are wanted for another."""

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        """Return the steps of a job that have not ended."""

    def nodes_of(self, job_id: JobId) -> tuple[str, ...]:
        """Return the nodes of a running job; none otherwise."""

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """Return nodes by name."""


class Commands:
    """Slurm by its commands, which always works."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs, as in :class:`Reads`."""
        return {job_id: each.state for job_id, each in self.seen(job_ids).items()}

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """Return what is said of jobs; what slurmctld has forgotten is looked up in accounting."""
        if not job_ids:
            return {}
        found: dict[JobId, Seen] = {}
        try:
            found = slurm.parse_seen(runner.run(slurm.jobs_command(job_ids)))
        except BatchError as error:
            # squeue says this of a single job that it does not know; of several, it says nothing.
            if "Invalid job id" not in error.stderr:
                raise
        missing = [job_id for job_id in job_ids if job_id not in found]
        if missing:
            found |= past(missing)
        return found

    def end(self, job_id: JobId) -> End:
        """Return a job's state and end, as in :class:`Reads`."""
        argv = slurm.end_command(job_id)
        return slurm.parse_end(runner.run(argv, environ=slurm.epoch_times()))

    def preempted(self, job_id: JobId) -> bool:
        """Return whether a job is preempted, as in :class:`Reads`."""
        return slurm.is_preempted(runner.run(slurm.job_command(job_id)))

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        """Return the steps of a job, as in :class:`Reads`."""
        return slurm.parse_steps(runner.run(slurm.steps_command(job_id)))

    def nodes_of(self, job_id: JobId) -> tuple[str, ...]:
        """Return the nodes of a job, as in :class:`Reads`."""
        listed = slurm.parse_nodelist(runner.run(slurm.jobs_command([job_id])), job_id)
        return slurm.parse_hostnames(runner.run(slurm.hostnames_command(listed))) if listed else ()

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """Return nodes by name, as in :class:`Reads`."""
        return slurm.parse_hosts(runner.run(slurm.hosts_command(",".join(names))))


@functools.cache
def reads() -> Reads:
    """Return how this process asks Slurm: by a pyslurm that fits this Slurm, or by commands."""
    module = slurm_api.find()
    if module is None:
        return Commands()
    try:
        release = slurm.parse_version(runner.run(slurm.version_command()))
    except BatchError:
        return Commands()
    if slurm_api.release_of(module) != release:
        log.info("pyslurm %s does not work with Slurm %d.%02d", module.__version__, *release)
        return Commands()
    return slurm_api.Api(module)
