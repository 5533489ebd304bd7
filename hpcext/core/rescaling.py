"""A change of size in place: an attempt gets other GPUs on its nodes while it goes on.

Until the attempt has answered, it may use any GPU that it had or is to have: both are held.
"""

from __future__ import annotations

import collections
from typing import Any

from hpcext.core.facts import Rescaled
from hpcext.core.values import Action, Alloc, Job, State, total


def can_rescale(job: Job) -> bool:
    """Whether the way from what a job holds to its goal can be made in place."""
    alike = job.goal is not None and job.goal.keys() == job.held.keys()
    return job.state is State.RUNNING and job.in_place and alike


def growth(job: Job) -> Alloc:
    """GPUs per node that a job needs beside those that it holds, to have its goal."""
    goal = job.goal or {}
    more = {node: gpus - job.held.get(node, 0) for node, gpus in goal.items()}
    return {node: gpus for node, gpus in more.items() if gpus > 0}


def asked(job: Job, action: Action) -> dict[str, Any]:
    """What changes of a job that is told to change its size."""
    held = {node: max(gpus, action.alloc.get(node, 0)) for node, gpus in job.held.items()}
    return {"held": held, "asked": action.alloc, "resize": action.resize}


def answered(job: Job, fact: Rescaled) -> dict[str, Any] | None:
    """What changes of a job whose attempt has answered; None if nothing does.

    An answer that is not the one that is waited for changes nothing. Nor does one that names GPUs
    which the attempt was never given, or none: its deadline settles it, as if it were mute.
    """
    if job.state is not State.RESCALING or fact.resize != job.resize:
        return None
    held = dict(collections.Counter(gpu.rpartition(":")[0] for gpu in fact.gpus))
    if not held or any(gpus > job.held.get(node, 0) for node, gpus in held.items()):
        return None
    changes = {"held": held, "gpus": fact.gpus, "asked": {}, "deadline_s": None}
    if not fact.ok or held != job.asked:
        # Not again in this attempt: what still differs from the goal is done by a suspension.
        return {**changes, "in_place": False, "why": failed(job, fact.why or "it has other GPUs")}
    if fact.stall_s is None:
        return changes
    gained = total(held) - len(job.gpus)
    return {**changes, "estimate": job.estimate.paid(gained, fact.stall_s)}


def failed(job: Job, why: str) -> str:
    """Why a job runs or waits as it does, and why it could not be resized in place."""
    return "; ".join(part for part in (job.why, f"could not be resized in place: {why}") if part)
