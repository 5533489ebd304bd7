"""Queries of Slurm by its commands, which every site has."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from hpcext.allocation import JobId
from hpcext.batch import runner, slurm
from hpcext.batch.jobs import UNKNOWN, End, Jobs, Seen
from hpcext.batch.slurm import Host, SlurmStep
from hpcext.core.errors import BatchError

log = logging.getLogger(__name__)

_NO_ACCOUNTING = "accounting storage is disabled"
"""What sacct prints if the site has no accounting (slurm.conf(5), AccountingStorageType)."""


class Commands(Jobs):
    """Queries by the commands of Slurm, for jobs that accounting alone remembers, too."""

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
