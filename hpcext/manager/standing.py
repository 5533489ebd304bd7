"""Whether a pilot is managed, as far as that can be known, and what to do if it is not."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from hpcext import backends
from hpcext.allocation import JobId
from hpcext.batch.standing import Is, Standing
from hpcext.core.errors import NoManagerError
from hpcext.manager import directory as directories
from hpcext.manager import orphans, spool

NONE = "no manager runs this pilot"


def of_pilot(directory: Path) -> Standing:
    """Return the standing of a pilot, by its manager, or else by its batch jobs."""
    manager = spool.manager_of(directory)
    return of_jobs(directory) if manager is None else spool.doubt_of(manager)


def of_jobs(directory: Path) -> Standing:
    """Return the standing of a pilot that has no manager according to ``manager.json``.

    A pilot that was submitted again has two jobs: that in which its last manager ran, and that
    which is to have the next.
    """
    found = [spool.standing_of(system, job_id) for system, job_id in jobs_of(directory)]
    first = min(found, key=lambda each: list(Is).index(each.state), default=Standing(Is.OVER))
    if not first.state.ended:
        return first
    runs = orphans.still_running(directory, directories.load(directory))
    what = f"{NONE}, but {runs}" if runs else NONE
    return Standing(first.state, what, how_to_go_on(directory))


def jobs_of(directory: Path) -> list[tuple[str, JobId]]:
    """Return batch system and id of each job in which a manager of a pilot may be."""
    found = [spool.batch_job_of(directory)]
    batch = directories.load(directory).batch
    if batch:
        found.append((batch, backends.submitted(batch).job_of(directory)))
    return list(dict.fromkeys((system, job_id) for system, job_id in found if job_id is not None))


def how_to_go_on(directory: Path) -> str:
    """Return what starts a manager of a pilot that has none, as a sentence."""
    pilot = directories.load(directory)
    if not pilot.batch:
        return f"hpcext run --resume {shlex.quote(str(directory))} starts one"
    try:
        backends.submitted(pilot.batch).options(directory)
    except NoManagerError as error:
        # That of a script that is suspendable, which it would take to submit it again.
        return error.do
    return f"hpcext pilot resubmit {pilot.id} starts one"


def refuse_resubmission(directory: Path) -> None:
    """Refuse to submit a pilot again whose job may be there: the new job would hide it.

    Raises
    ------
    NoManagerError
    """
    found = of_pilot(directory)
    settles_s = max((backends.find(each).settles_s for each, _ in jobs_of(directory)), default=0.0)
    if found.state.ended and settles_s:
        time.sleep(settles_s)
        found = of_pilot(directory)
    if found.state is Is.RUNS:
        what = "its job runs" if jobs_of(directory) else "a manager runs it"
        do = "hpcext attach follows it, hpcext drain lets it end"
        raise NoManagerError(f"{what}, so it is not submitted again", where=directory.name, do=do)
    if not found.state.ended:
        raise NoManagerError(
            f"{found.what}, so it is not submitted again", where=directory.name, do=found.do
        )
