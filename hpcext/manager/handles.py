"""References to a job: its id, or its name if that is unambiguous."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from hpcext.core.errors import InputError
from hpcext.core.values import Job, State
from hpcext.core.world import World
from hpcext.jobfields import MAX_NAME_CHARS
from hpcext.jobfile import place
from hpcext.jobspec import JobSpec
from hpcext.text import counted, did_you_mean, listed


def find_job(world: World, handle: str) -> Job:
    """Return the job of this id or name; of several of a name, the unfinished or the newest one.

    Raises
    ------
    InputError
        There is no such job, or several have that name.
    """
    if job := world.jobs.get(handle):
        # No name is a number.
        return job
    handle = unicodedata.normalize("NFC", handle)
    named = [job for job in world.jobs.values() if job.name == handle]
    meant = [job for job in named if _has_its_name(job)] or named[-1:]
    if len(meant) > 1:
        raise _ambiguous(handle, meant)
    if meant:
        return meant[0]
    names = dict.fromkeys(job.name for job in world.jobs.values())
    raise InputError(
        f"no job {handle!r} in this pilot",
        valid=listed(names, most=20) or "it has no jobs",
        do=did_you_mean(handle, names),
    )


def _ambiguous(handle: str, jobs: Sequence[Job]) -> InputError:
    each = (f"{job.id} ({_standing(job)})" for job in jobs)
    return InputError(
        f"{counted(len(jobs), 'unfinished job')} are called {handle}",
        valid=listed(each, most=20),
        do="give the id of one",
    )


def _standing(job: Job) -> str:
    held = job.on_hold and job.state is State.PENDING
    return "suspended" if held else job.state.value


def chosen(world: World, job: Job, handle: str) -> str:
    """Return which job is shown if others have its name; empty if none do.

    Parameters
    ----------
    world : World
    job : Job
        The one that is shown.
    handle : str
        The name that the user gave.
    """
    handle = unicodedata.normalize("NFC", handle)
    others = [each.id for each in world.jobs.values() if each.name == handle and each is not job]
    if not others or job.name != handle:
        return ""
    return f"of {len(others) + 1} jobs called {handle}, this is {job.id}; also: {listed(others)}"


def refuse_taken(specs: Iterable[JobSpec], jobs: Iterable[Job], where: str) -> None:
    """Refuse names that jobs have which have not ended: a verb could not say which is meant.

    Parameters
    ----------
    specs : iterable of JobSpec
        Jobs to be submitted.
    jobs : iterable of Job
        All of the pilot.
    where : str
        Where the names stand, for the message.

    Raises
    ------
    InputError
        Names the first one.
    """
    taken = {job.name: job for job in jobs if _has_its_name(job)}
    for number, spec in enumerate(specs, start=1):
        if job := taken.get(spec.name):
            raise InputError(
                f"job {job.id} is called {spec.name}, and is {_standing(job)}",
                where=f"{place(where, number, spec.name)}: name",
                valid="a name that no unfinished job has",
                do="give it another name, or --number to have the next free one",
            )


def numbered(specs: Sequence[JobSpec], jobs: Iterable[Job]) -> tuple[JobSpec, ...]:
    """Return the same jobs, with the next free name, as ``cnn-2``, for each that is taken."""
    taken = {job.name for job in jobs if _has_its_name(job)}
    names: dict[str, str] = {}
    used = taken | {spec.name for spec in specs if spec.name not in taken}
    for spec in specs:
        names[spec.name] = free_name(spec.name, used) if spec.name in taken else spec.name
        used.add(names[spec.name])
    return tuple(
        replace(
            spec,
            name=names[spec.name],
            after=tuple(names.get(need, need) for need in spec.after),
        )
        for spec in specs
    )


def free_name(name: str, used: Collection[str]) -> str:
    """Return a name with the first number from 2 on that makes it unique."""
    number = 2
    while (found := f"{name[: MAX_NAME_CHARS - len(str(number)) - 1]}-{number}") in used:
        number += 1
    return found


def _has_its_name(job: Job) -> bool:
    """Return whether a job keeps others from its name: one that is being cancelled does not."""
    return not (job.state.final or job.cancelling)
