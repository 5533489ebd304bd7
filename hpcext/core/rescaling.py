"""Changes of size in place: an attempt gets other GPUs while it goes on.

Until the attempt has answered, it may use any GPU that it had or is to have: both are held.
"""

from __future__ import annotations

import collections
from typing import Any

from msgspec.structs import replace

from hpcext.core.facts import Rescaled
from hpcext.core.values import Action, Alloc, Job, Late, State, suits, total


def can_rescale(job: Job) -> bool:
    """Return whether what a job holds can become its goal in place."""
    if job.state is not State.RUNNING or not job.run.in_place or not job.goal:
        return False
    if job.run.elastic:
        # A rank that goes on has the state that the new ones receive.
        return not job.goal.keys().isdisjoint(job.held)
    return job.goal.keys() == job.held.keys()


def growth(job: Job) -> Alloc:
    """Return the GPUs per node that a job needs beyond those that it holds, to have its goal."""
    goal = job.goal or {}
    more = {node: gpus - job.held.get(node, 0) for node, gpus in goal.items()}
    return {node: gpus for node, gpus in more.items() if gpus > 0}


def part(job: Job) -> Alloc:
    """Return the part of its goal that a job holds already."""
    goal = job.goal or {}
    both = {node: min(gpus, job.held.get(node, 0)) for node, gpus in goal.items()}
    return {node: gpus for node, gpus in both.items() if gpus > 0}


def begun(job: Job, action: Action) -> dict[str, Any]:
    """Return what changes of a job that begins to change its size."""
    held = dict(job.held)
    for node, gpus in action.alloc.items():
        held[node] = max(gpus, held.get(node, 0))
    run = replace(job.run, resize_to=action.alloc, resize=action.resize)
    return {"held": held, "run": run}


def answered(job: Job, fact: Rescaled) -> dict[str, Any] | None:
    """Return the changes of a job whose attempt has answered; None if there are none.

    An answer that is not the expected one changes nothing. Nor does one that names GPUs which the
    attempt was never given, or no GPUs: it is treated like no answer, and the deadline applies.
    """
    if job.state is not State.RESCALING or fact.resize != job.run.resize:
        return None
    held = dict(collections.Counter(gpu.rpartition(":")[0] for gpu in fact.gpus))
    if not held or any(gpus > job.held.get(node, 0) for node, gpus in held.items()):
        return None
    run = replace(job.run, resize_to={}, degraded=False)
    changes: dict[str, Any] = {"held": held, "gpus": fact.gpus, "deadline_s": None}
    if not fact.ok or held != job.run.resize_to:
        # Not again in this attempt: what still differs from the goal is done by a suspension.
        why = failed(job, fact.why or "its GPUs are not those that were requested")
        return {**changes, "run": replace(run, in_place=False, elastic=False), "why": why}
    if fact.stall_s is not None:
        gained = total(held) - len(job.gpus)
        changes["estimate"] = job.estimate.paid(gained, fact.stall_s)
    return {**changes, "run": run}


def late(job: Job, fact: Rescaled) -> Late | None:
    """Return the answer to a change that a suspension interrupted; None if it is to another one."""
    if fact.resize != job.run.resize:
        return None
    return fact.gpus, fact.ok, fact.stall_s, fact.why


def bereft(job: Job, node: str) -> dict[str, Any] | None:
    """Return the changes of a job that goes on without a node; None if it does not go on.

    A change of size that was under way is dropped: the job is told its new size afresh.

    Parameters
    ----------
    job : Job
    node : str
        The name of the node that it loses.
    """
    if not job.run.elastic or job.state not in {State.RUNNING, State.RESCALING}:
        return None
    here = f"{node}:"
    gpus = tuple([gpu for gpu in job.gpus if not gpu.startswith(here)])
    if not gpus:
        return None
    held, rest = dict(job.held), dict(job.goal or {})
    held.pop(node, None)
    rest.pop(node, None)
    goal = rest if suits(job, rest) else None
    run = replace(job.run, resize_to={}, degraded=True)
    return {"held": held, "gpus": gpus, "goal": goal, "run": run, "deadline_s": None}


def failed(job: Job, why: str) -> str:
    """Add to a job's reason why it could not be resized in place.

    Parameters
    ----------
    job : Job
    why : str
        What went wrong, as a clause.
    """
    return "; ".join(part for part in (job.why, f"could not be resized in place: {why}") if part)
