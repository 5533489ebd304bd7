"""What of a broker's world is kept when its journal is compacted. No I/O."""

from __future__ import annotations

from msgspec.structs import replace

from hpcext.core.saved import Saved


def short(saved: Saved) -> Saved:
    """Return a world without jobs that have ended, and with the last stretch of the others.

    Parameters
    ----------
    saved : Saved
    """
    jobs = tuple(job for job in saved.jobs if not job.state.final)
    records = {
        job.id: replace(saved.records[job.id], segments=saved.records[job.id].segments[-1:])
        for job in jobs
    }
    return replace(saved, jobs=jobs, records=records)
