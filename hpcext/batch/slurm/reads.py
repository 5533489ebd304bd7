"""What is asked of Slurm, in one of two ways: by its commands, or by pyslurm where that fits."""

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
    """Questions to a Slurm. Each raises BatchError where there is no answer."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """States of jobs; one that nobody knows any more is left out."""

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """As :class:`hpcext.batch.jobs.Jobs` has it."""

    def end(self, job_id: JobId) -> End:
        """A job's state, and when it ends at the latest."""

    def preempted(self, job_id: JobId) -> bool:
        """Whether the nodes of a job that ends earlier now are wanted for another."""

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        """The steps of a job that have not ended."""

    def nodes_of(self, job_id: JobId) -> tuple[str, ...]:
        """The nodes that a job has, while it runs; else none."""

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """Node → what it is."""


class Commands:
    """By Slurm's commands, which always works."""

    def states(self, job_ids: Sequence[JobId]) -> dict[JobId, str]:
        """As :class:`Reads` has it."""
        return {job_id: each.state for job_id, each in self.seen(job_ids).items()}

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """As :class:`Reads` has it; what slurmctld has forgotten is looked up in accounting."""
        if not job_ids:
            return {}
        found: dict[JobId, Seen] = {}
        try:
            found = slurm.parse_seen(runner.run(slurm.jobs_command(job_ids)))
        except BatchError as error:
            # What squeue says of a single job that it does not know; of several, nothing.
            if "Invalid job id" not in error.stderr:
                raise
        missing = [job_id for job_id in job_ids if job_id not in found]
        if missing:
            found |= past(missing)
        return found

    def end(self, job_id: JobId) -> End:
        """As :class:`Reads` has it."""
        argv = slurm.end_command(job_id)
        return slurm.parse_end(runner.run(argv, environ=slurm.epoch_times()))

    def preempted(self, job_id: JobId) -> bool:
        """As :class:`Reads` has it."""
        return slurm.is_preempted(runner.run(slurm.job_command(job_id)))

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        """As :class:`Reads` has it."""
        return slurm.parse_steps(runner.run(slurm.steps_command(job_id)))

    def nodes_of(self, job_id: JobId) -> tuple[str, ...]:
        """As :class:`Reads` has it."""
        listed = slurm.parse_nodelist(runner.run(slurm.jobs_command([job_id])), job_id)
        return slurm.parse_hostnames(runner.run(slurm.hostnames_command(listed))) if listed else ()

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """As :class:`Reads` has it."""
        return slurm.parse_hosts(runner.run(slurm.hosts_command(",".join(names))))


@functools.cache
def reads() -> Reads:
    """How this process asks Slurm: by pyslurm if there is one for this Slurm, else by commands."""
    module = slurm_api.find()
    if module is None:
        return Commands()
    try:
        release = slurm.parse_version(runner.run(slurm.version_command()))
    except BatchError:
        return Commands()
    if slurm_api.release_of(module) != release:
        log.info("pyslurm %s is not for Slurm %d.%02d", module.__version__, *release)
        return Commands()
    return slurm_api.Api(module)
