"""The state of a job after an attempt of it has ended."""

from __future__ import annotations

from typing import Any

from hpcext.core import silence
from hpcext.core.facts import Ended, Outcome
from hpcext.core.saving import MUST_PAUSE_S
from hpcext.core.values import Job, State

BACKOFF_MAX_S = 60.0
"""Longest wait before a failed job is tried again."""

BLAMELESS_WAIT_S = 5.0
"""Wait before a job is tried again that could not be started."""

DIRECTORY_RETRIES, DIRECTORY_WAIT_S = 6, 5.0
"""The least retries of a job whose working directory is away, and the first wait: it was there at
the submission, and a file system may be away for a minute or two."""

NOT_RETRIED = frozenset({126, 127})
"""Exit codes of a shell (and our supervisor) for a command that cannot be run at all."""


def after(
    job: Job, now_s: float, fact: Ended, *, progressed: bool, hurried: bool = False
) -> tuple[State, dict[str, Any]]:
    """Decide what becomes of a job whose attempt has ended.

    Parameters
    ----------
    job : Job
        As it was when its attempt ended.
    now_s : float
    fact : Ended
    progressed : bool
        Whether the attempt saved a checkpoint of its own.
    hurried : bool
        Whether the end of its allocation left it less time to answer than it is allowed to take.

    Returns
    -------
    state : State
        The state that the job enters.
    changes : dict
        Other changes of the job; they include ``why`` with every final state.
    """
    if fact.outcome is Outcome.COMPLETED:
        return State.COMPLETED, {"why": fact.why}
    if job.cancelling:
        return State.CANCELLED, {"why": job.verdict or "cancelled by its user"}
    if fact.outcome is Outcome.SUSPENDED:
        return State.PENDING, {"failures": 0, "failed_on": ()}
    hung = job.run.silence is not None and job.hang == silence.RESTART
    if job.run.kills and not job.run.degraded and not hung:
        return State.PENDING, _after_kill(job, now_s, hurried=hurried)
    return _after_failure(job, now_s, fact, progressed=progressed)


def never_ran(job: Job, fact: Ended) -> bool:
    """Return whether an attempt has ended before its command began.

    Parameters
    ----------
    job : Job
        As it was when its attempt ended.
    fact : Ended
    """
    # Executors of older releases did not say so.
    return fact.never_ran or (fact.outcome is Outcome.LOST and not job.gpus)


def _after_kill(job: Job, now_s: float, *, hurried: bool) -> dict[str, Any]:
    """Return what changes of a job that was to suspend itself, and had to be killed."""
    if job.run.unsaved:
        # It did answer, and had to go; the next attempt may find room, or the disk as it was.
        why = f"had to stop, and could not save: {job.run.unsaved.why}"
        return {"goal": None, "not_before_s": now_s + MUST_PAUSE_S, "why": why}
    if hurried:
        why = "did not answer before its allocation ended, and was killed"
        return {"goal": None, "why": why}
    if job.run.silence:
        return {"why": f"it hung, and was killed: {silence.what(job)}"}
    # Its own fault or not, it is not a failure of the training; but asking again would lose work
    # again.
    why = f"did not answer a suspension within {job.suspend_timeout_s:g} s"
    return {"suspendable": False, "why": why}


def _after_failure(
    job: Job, now_s: float, fact: Ended, *, progressed: bool
) -> tuple[State, dict[str, Any]]:
    """Try again later, unless it failed too often without getting further."""
    how = fact.why or f"exit code {fact.exit_code}"
    if job.run.silence:
        how = f"it hung: {silence.what(job)}"
    if job.run.unsaved:
        how = f"cannot save: {job.run.unsaved.why} ({how})"
    if job.run.degraded:
        # The node is gone, so there is nothing left to wait for.
        return State.PENDING, {"goal": None, "why": f"retried after: {how}"}
    failures, wait_s = job.failures, BLAMELESS_WAIT_S
    away = fact.never_ran and fact.outcome is Outcome.FAILED
    # A full disk, say: not the job's failure.
    unused = never_ran(job, fact) and not away
    if not (unused or fact.outcome is Outcome.EVICTED):
        failures = 1 if progressed else failures + 1
        first_s = DIRECTORY_WAIT_S if away else 1.0
        retries = max(job.retries, DIRECTORY_RETRIES) if away else job.retries
        wait_s = min(first_s * 2.0 ** (failures - 1), BACKOFF_MAX_S)
        if (fact.exit_code in NOT_RETRIED and not away) or failures > retries:
            if failures > 1:
                how = f"failed {failures} times in a row without new progress; last: {how}"
            return State.FAILED, {"failures": failures, "why": how}
    spared = fact.outcome is Outcome.EVICTED and not unused
    blamed = job.failed_on if spared else tuple(job.held)
    return State.PENDING, {
        "failures": failures,
        "failed_on": blamed,
        "goal": None,
        "ready": False,
        "not_before_s": now_s + wait_s,
        "why": f"retried in {wait_s:g} s after: {how}",
    }
