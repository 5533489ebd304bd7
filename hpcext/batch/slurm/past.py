"""What accounting knows of jobs that slurmctld has forgotten."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hpcext.batch import runner, slurm
from hpcext.batch.jobs import UNKNOWN, Seen
from hpcext.core.errors import BatchError
from hpcext.protocol import JobId

log = logging.getLogger(__name__)

_NONE = "accounting storage is disabled"
"""What sacct says if the site has no accounting: slurm.conf(5), AccountingStorageType."""


def past(job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
    """Return the last states of jobs.

    If there is accounting but it does not answer, the states are unknown; a site without accounting
    leaves out all jobs.
    """
    try:
        said = slurm.parse_jobs(runner.run(slurm.accounting_command(job_ids)))
    except BatchError as error:
        log.info("accounting is not available: %s", error)
        if _NONE in error.stderr:
            return {}
        return dict.fromkeys(
            job_ids, Seen(UNKNOWN, why=f"accounting did not answer ({error.what})")
        )
    return {job_id: Seen(state) for job_id, state in said.items()}
