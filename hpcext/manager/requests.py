"""What may be asked of a manager: each verb checked, then turned into facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcext.core.errors import InputError
from hpcext.core.facts import Cancel, Drain, Fact, Hold, Release, Resize
from hpcext.core.values import Job, State
from hpcext.core.world import World
from hpcext.text import counted, did_you_mean, listed


def find_job(world: World, handle: str) -> Job:
    """The job of this id or name; the newest of a name.

    Raises
    ------
    InputError
        There is none.
    """
    if handle in world.jobs:
        return world.jobs[handle]
    named = [job for job in world.jobs.values() if job.name == handle]
    if named:
        return named[-1]
    names = dict.fromkeys(job.name for job in world.jobs.values())
    raise InputError(
        f"no job {handle!r} in this pilot",
        valid=listed(names, most=20) or "it has no jobs",
        do=did_you_mean(handle, names),
    )


def _unfinished(world: World, words: Mapping[str, Any]) -> Job:
    job = find_job(world, str(words.get("job", "")))
    if job.state.final:
        raise InputError(f"job {job.name} is {job.state.value} already")
    return job


def suspend(world: World, words: Mapping[str, Any]) -> tuple[Fact, str]:
    """Suspend a job until it is resumed."""
    job = _unfinished(world, words)
    if job.on_hold:
        raise InputError(f"job {job.name} is suspended already")
    _refuse_loss(job)
    return Hold(job.id), f"{job.name} is being suspended"


def resume(world: World, words: Mapping[str, Any]) -> tuple[Fact, str]:
    """Let a suspended job run again."""
    job = _unfinished(world, words)
    if not job.on_hold:
        raise InputError(f"job {job.name} is {job.state.value}, not suspended by its user")
    return Release(job.id), f"{job.name} may run again"


def resize(world: World, words: Mapping[str, Any]) -> tuple[Fact, str]:
    """Give a job exactly so many GPUs, as soon as they are free."""
    job = _unfinished(world, words)
    gpus = words.get("gpus")
    most = max((node.real_gpus for node in world.nodes.values()), default=0)
    if not isinstance(gpus, int) or isinstance(gpus, bool) or not 1 <= gpus <= most:
        raise InputError(f"{gpus!r} GPUs for job {job.name}", valid=f"1 to {most}")
    sizes = job.stated or job.sizes
    if gpus not in sizes:
        valid = f"{sizes[0]} to {sizes[-1]}"
        raise InputError(f"{counted(gpus, 'GPU')} for job {job.name}", valid=valid)
    _refuse_loss(job)
    when = f"as soon as {'it is' if gpus == 1 else 'they are'} free"
    return Resize(job.id, gpus), f"{job.name} gets {counted(gpus, 'GPU')} {when}"


def cancel(world: World, words: Mapping[str, Any]) -> tuple[Fact, str]:
    """Cancel a job."""
    job = _unfinished(world, words)
    return Cancel(job.id), f"{job.name} is being cancelled"


def drain(world: World, words: Mapping[str, Any]) -> tuple[Fact, str]:
    """Start nothing more."""
    return Drain(), "nothing more is started; what runs may finish"


VERBS: Mapping[str, Callable[[World, Mapping[str, Any]], tuple[Fact, str]]] = {
    "suspend": suspend,
    "resume": resume,
    "resize": resize,
    "cancel": cancel,
    "drain": drain,
}
"""Verbs that are one fact. ``submit`` is the pilot's own: it also stores what to run."""


def _refuse_loss(job: Job) -> None:
    """A running job without a session cannot save itself: stopping it would lose all it did."""
    if job.state in {State.RUNNING, State.STARTING} and not job.registered:
        raise InputError(
            f"job {job.name} has no session that could save its state (yet)",
            do="wait until it has registered, or cancel it",
        )
