"""Checks whether something of a pilot may still run: then its removal is refused."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hpcext import backends, documents
from hpcext.allocation import JobId
from hpcext.batch.jobs import Seen
from hpcext.batch.standing import Is
from hpcext.core.errors import BatchError, HpcextError, InputError, NoManagerError
from hpcext.launch import agent
from hpcext.manager import locks, orphans, spool, standing
from hpcext.manager.cleaning.places import FULL, LOCK
from hpcext.manager.directory import Pilot
from hpcext.manager.views.reading import Follower

SUBMITTED_S = 600.0
"""Seconds for which a new pilot without a job of a batch system may still be getting one."""


def refuse_if_running(directory: Path, pilot: Pilot) -> None:
    """Refuse a pilot of which something may still run, in a batch system or without a manager."""
    spool.check_private(directory)
    with claimed(directory):
        pass
    _refuse_if_in_batch(directory, pilot)
    if runs := orphans.still_running(directory, pilot):
        do = f"hpcext run --resume {directory} takes it over"
        raise NoManagerError(runs, where=pilot.id, do=do)


def _refuse_if_in_batch(directory: Path, pilot: Pilot) -> None:
    """Refuse one whose job, or one of whose leases, is there or cannot be asked for."""
    asked: dict[str, set[JobId]] = {}
    system, job_id = spool.batch_job_of(directory)
    if job_id is not None:
        asked.setdefault(system, set()).add(job_id)
    if pilot.batch:
        job_id = backends.submitted(pilot.batch).job_of(directory)
        if job_id is not None:
            asked.setdefault(pilot.batch, set()).add(job_id)
        elif time.time() - pilot.began_at < SUBMITTED_S:
            raise NoManagerError("its submission may be in progress", where=pilot.id)
    for path in sorted(directory.glob(f"leases/*/{agent.LEASE_FILE}")):
        try:
            if pilot.harvest is None:
                raise ValueError("no terms")
            job_id = int(documents.read_json(path, agent.LEASE)["job_id"])
        except documents.UNFIT:
            do = f"hpcext run --resume {directory} finds out, and returns the lease"
            what = "it is unknown what became of one of its leases"
            raise NoManagerError(what, where=pilot.id, do=do) from None
        asked.setdefault(pilot.harvest.system, set()).add(job_id)
    for system, ids in asked.items():
        try:
            seen = backends.find(system).jobs().seen(sorted(ids, key=str))
        except (BatchError, InputError) as error:
            what = f"{backends.title(system)} does not say whether its job has ended ({error.what})"
            raise NoManagerError(what, where=pilot.id) from None
        for each in sorted(ids, key=str):
            _refuse_if_there(directory, pilot, system, each, seen.get(each))


def _refuse_if_there(
    directory: Path, pilot: Pilot, system: str, job_id: JobId, seen: Seen | None
) -> None:
    """Refuse one whose job is there, or may be."""
    name = backends.title(system)
    found = backends.find(system).standing(job_id, seen)
    if found.state is Is.UNKNOWN:
        raise NoManagerError(found.what, where=pilot.id, do=found.do)
    if not found.state.ended:
        state = seen.state if seen is not None else ""
        what = f"its job {job_id} of {name} still exists ({state})"
        raise NoManagerError(what, where=pilot.id, do="cancel it first")
    if found.state is Is.FORGOTTEN and (ran := _ran_last(directory)):
        what = (
            f"neither {name} nor its accounting knows job {job_id}, in which {ran} ran when it was "
            "last heard of"
        )
        raise NoManagerError(what, where=pilot.id, do=f"{standing.how_to_go_on(directory)}")


def _ran_last(directory: Path) -> str:
    """Return a job that ran when its pilot's journal ended; empty if none is known to have."""
    with contextlib.suppress(HpcextError):
        busy = Follower(directory).engine().world.queue.busy()
        return next((job.name for job in busy), "")
    return ""


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Manage a pilot exclusively for the duration of the context.

    Raises
    ------
    NoManagerError
        A manager runs it.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locks.held(directory / LOCK))
        except locks.LockedError:
            raise NoManagerError(
                "a manager runs it", where=directory.name, do="hpcext drain lets it end"
            ) from None
        except OSError as error:
            # There is no room for the file of a lock; so no manager has it, or could.
            if error.errno not in FULL or os.path.lexists(directory / LOCK):
                raise
        yield
