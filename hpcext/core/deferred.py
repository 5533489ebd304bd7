"""Changes of jobs that users ask for; what cannot be done at once is deferred.

To stop an attempt that has no session yet loses all that it did. So a job that its user suspends
goes on, and is on hold when its attempt has a session, or has ended. Another size is for policies
to give: they do not move what cannot save itself (`movable` of `policies/common.py`).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hpcext.core.facts import Resize
from hpcext.core.values import Job, Role, State, size_of

Changes = dict[str, Any]

ON_HOLD: Changes = {"on_hold": True, "hold_deferred": False, "goal": None}
RELEASED: Changes = {"on_hold": False, "hold_deferred": False}
RETRIED: Changes = {**RELEASED, "failures": 0, "failed_on": (), "not_before_s": 0.0}
CANCELLED: Changes = {"cancelling": True, "hold_deferred": False, "goal": None}

NEVER_ON_HOLD = "was to be suspended, and ended before it had a session that could save its state"


def hold(job: Job) -> Changes:
    """Return what changes of a job that its user suspends: it is on hold, now or later."""
    changes: Changes = {"hold_deferred": True} if job.sessionless else ON_HOLD
    if job.run.suspend_again_s is None:
        return changes
    # The suspension is tried again, even if the job has just reported that it cannot save.
    return {**changes, "run": replace(job.run, suspend_again_s=None)}


def resized(job: Job, fact: Resize) -> Changes:
    """Return what changes of a job whose user asks for a size, or for any that its file states."""
    stated, best = job.stated or job.sizes, job.stated_optimal or job.optimal
    if fact.gpus:
        kept = {"stated": stated, "stated_optimal": best, "suspendable": True}
        return {"sizes": (fact.gpus,), "optimal": fact.gpus, **kept}
    if not job.stated:
        return {}
    # Journals of earlier releases do not record it.
    best = job.stated_optimal or stated[-1]
    # Its grant is what it was left with, until the next decision.
    role = job.role if size_of(job, job.goal) == best else Role.SECONDARY
    return {"sizes": stated, "optimal": best, "stated": (), "stated_optimal": 0, "role": role}


def registered(job: Job) -> Changes:
    """Return the further changes of a job whose attempt has just registered a session."""
    return ON_HOLD if job.hold_deferred else {}


def ended(job: Job, state: State, changes: Changes) -> Changes:
    """Return what changes of a job whose attempt has ended, where it enters `state`.

    Parameters
    ----------
    job : Job
    state : State
        What it enters by the end of its attempt.
    changes : mapping
        Field → value, of the job.
    """
    if not job.hold_deferred:
        return changes
    if not state.final:
        return {**changes, **ON_HOLD}
    why = "; ".join(part for part in (changes["why"], NEVER_ON_HOLD) if part)
    return {**changes, "hold_deferred": False, "why": why}
