"""Requests to a manager: each verb is checked, then turned into facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcext.core import saving
from hpcext.core.errors import InputError
from hpcext.core.facts import (
    Cancel,
    Drain,
    Fact,
    Hold,
    Readmitted,
    Release,
    Resize,
    Retried,
    SetAside,
)
from hpcext.core.values import Job, State
from hpcext.core.world import World
from hpcext.manager.handles import find_job
from hpcext.text import are, clean, counted, did_you_mean, listed, shown

AUTO = "auto"
"""The word for the numbers of GPUs that the job file states."""

MOST_WHY = 200
"""Characters of a user's reason that are kept."""

Answer = tuple[tuple[Fact, ...], str]
"""The new facts, and the answer to the client."""


def _unfinished(world: World, words: Mapping[str, Any]) -> Job:
    job = find_job(world, str(words.get("job", "")))
    if job.state.final:
        raise InputError(f"job {job.name} ({job.id}) is already {job.state.value}")
    return job


def suspend(world: World, words: Mapping[str, Any]) -> Answer:
    """Suspend a job until it is resumed."""
    job = _unfinished(world, words)
    if job.on_hold or job.hold_deferred:
        is_ = "suspended" if job.on_hold and job.state is State.PENDING else "to be suspended"
        why = f": {said}" if (said := saving.said(job)) else ""
        raise InputError(f"job {job.name} is already {is_}{why}")
    if job.cancelling:
        raise InputError(f"job {job.name} is being cancelled")
    if job.sessionless:
        # That may be never: a training that knows has said so.
        says = "".join(f"; its training warns: {note}" for note in world.records[job.id].notes)
        text = f"{job.name} will be suspended {_ONCE}; it has no session yet{says}"
        return (Hold(job.id),), text
    if job.state is State.PENDING:
        return (Hold(job.id),), f"{job.name} is suspended: it will not start until it is resumed"
    return (Hold(job.id),), f"{job.name} is being suspended"


def resume(world: World, words: Mapping[str, Any]) -> Answer:
    """Let a suspended or failed job run again, or one go on that was to be suspended."""
    job = find_job(world, str(words.get("job", "")))
    if job.state is State.FAILED:
        return _retried(world, job)
    job = _unfinished(world, words)
    if not (job.on_hold or job.hold_deferred):
        raise InputError(f"job {job.name} is {job.state.value}, not suspended by its user")
    goes_on = "may run again" if job.on_hold else "is not suspended, and goes on"
    return (Release(job.id),), f"{job.name} {goes_on}"


def _retried(world: World, job: Job) -> Answer:
    """Let a failed job run again; those that were cancelled because of it stay so."""
    if same := next((each for each in world.unfinished() if each.name == job.name), None):
        raise InputError(
            f"job {job.name} ({job.id}) has failed, and job {same.id} has its name now",
            do=f"wait for the end of job {same.id}, or hpcext cancel it",
        )
    at = f"from step {job.saved_step}" if job.saved_step else "from its newest checkpoint, if any"
    return (Retried(job.id),), f"{job.name} had failed, and may run again, {at}"


def resize(world: World, words: Mapping[str, Any]) -> Answer:
    """Give a job exactly this many GPUs as soon as they are free, or undo that with ``auto``."""
    job = _unfinished(world, words)
    if words.get("gpus") == AUTO:
        return _as_stated(job)
    gpus = _size(world, job, words.get("gpus"))
    text = f"{counted(gpus, 'GPU')}{_each(job)}"
    if job.sizes == (gpus,) and job.stated and job.suspendable:
        return (), f"{job.name} is already to have {text}, as requested"
    if not job.stated and len(job.sizes) == 1:
        return (), f"{job.name} is already to have {text}, as its job file says"
    if job.has == gpus and not job.on_hold:
        return (Resize(job.id, gpus),), f"{job.name} has {text}, and keeps that size"
    return (Resize(job.id, gpus),), f"{job.name} gets {text} {_when(job, gpus)}"


def _as_stated(job: Job) -> Answer:
    if not job.stated:
        return (), f"no size was requested for {job.name}: its policy decides"
    what = f"{_range(job.stated)} GPUs" if job.stated[-1] > 1 else "1 GPU"
    return (Resize(job.id, 0),), f"{job.name} may have {what} again, as its policy decides"


def _size(world: World, job: Job, gpus: Any) -> int:
    """Return the number of GPUs, if a job can have it here.

    Raises
    ------
    InputError
        It cannot.
    """
    if isinstance(gpus, int) and not isinstance(gpus, bool) and gpus in valid_sizes(world, job):
        return gpus
    stated, most = job.stated or job.sizes, _most(world, job)
    limit = f"its job file says {_range(stated)}"
    if gpus in stated:
        limit = f"the largest node here has {counted(most, 'GPU')}"
    raise InputError(
        f"{shown(gpus)} GPUs for job {job.name}: {limit}",
        valid=", or ".join([*filter(None, [_range(valid_sizes(world, job))]), AUTO]),
    )


def valid_sizes(world: World, job: Job) -> tuple[int, ...]:
    """Return the sizes that a job may be given here: it states them, and some node is as large."""
    most = _most(world, job)
    return tuple(size for size in job.stated or job.sizes if size <= most)


def _most(world: World, job: Job) -> int:
    """Return the GPUs of the largest node; without any node, the job's own maximum."""
    here = [node.real_gpus for node in world.nodes.values() if node.gpus]
    return max(here, default=max(job.stated or job.sizes))


def _range(sizes: tuple[int, ...]) -> str:
    if not sizes:
        return ""
    whole = len(sizes) == sizes[-1] - sizes[0] + 1
    if len(sizes) < 3 or not whole:
        return " or ".join(map(str, sizes))
    return f"{sizes[0]} to {sizes[-1]}"


def _each(job: Job) -> str:
    return " on each of its nodes" if (job.nodes or (1, 1))[1] > 1 else ""


def _when(job: Job, gpus: int) -> str:
    """Return when a job gets its new number of GPUs, as words."""
    free = f"as soon as {'it is' if gpus == 1 else 'they are'} free"
    if job.on_hold:
        return "when it is resumed"
    return f"{_ONCE}, and {free}" if job.sessionless else free


_ONCE = "as soon as it can save its state"


def cancel(world: World, words: Mapping[str, Any]) -> Answer:
    """Cancel a job."""
    job = _unfinished(world, words)
    return (Cancel(job.id),), f"{job.name} is being cancelled"


def drain(world: World, words: Mapping[str, Any]) -> Answer:
    """Start nothing more."""
    waiting = sum(not job.state.active and job.goal is None for job in world.unfinished())
    left = f"; {counted(waiting, 'job')} {are(waiting)} left waiting" if waiting else ""
    return (Drain(),), f"nothing more is started; running jobs may finish{left}"


def set_aside(world: World, words: Mapping[str, Any]) -> Answer:
    """Use a node no more until it is readmitted."""
    name = str(words.get("node", ""))
    if name in world.aside:
        raise InputError(f"{name} is already set aside: {world.aside[name]}")
    if name not in world.nodes:
        raise InputError(
            f"no node {shown(name)} here",
            valid=listed(list(world.nodes)),
            do=did_you_mean(name, world.nodes),
        )
    if not any(other != name for other in world.offered):
        raise InputError(
            f"{name} is the only node that can be used", do="hpcext drain lets what runs there end"
        )
    why = clean(str(words.get("why", "")))[:MOST_WHY] or "by its user"
    there = sum(bool(job.held.get(name)) for job in world.queue.busy())
    goes = "goes" if there == 1 else "go"
    leaves = f"; {counted(there, 'job')} there {are(there)} suspended and {goes} on elsewhere"
    return (SetAside(name, why),), f"{name} is set aside{leaves if there else ''}"


def readmit(world: World, words: Mapping[str, Any]) -> Answer:
    """Use a node again that was set aside."""
    name = str(words.get("node", ""))
    if name not in world.aside:
        if not world.aside:
            raise InputError(f"{shown(name)} is not set aside: no node is")
        raise InputError(f"{shown(name)} is not set aside", valid=listed(list(world.aside)))
    return (Readmitted(name),), f"{name} is used again"


VERBS: Mapping[str, Callable[[World, Mapping[str, Any]], Answer]] = {
    "suspend": suspend,
    "resume": resume,
    "resize": resize,
    "cancel": cancel,
    "drain": drain,
    "set_aside": set_aside,
    "readmit": readmit,
}
"""Verbs that become facts. ``submit`` is the pilot's own: it also stores what to run."""
