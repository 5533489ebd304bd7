"""Policies of the papers that decide at intervals, and at events that cannot wait."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from hpcext.core.values import Cause, Snapshot, Target
from hpcext.policies.common import keep

AT_ONCE = Cause.SUBMITTED | Cause.NODES | Cause.REQUEST
"""Events at which such a policy decides at any time. The end of a job is one too."""


def periodic(now: Snapshot, interval_s: float, allocate: Callable[[Snapshot], Target]) -> Target:
    """Decide if something came or went, or if the interval is over; else keep everything.

    A policy that must be asked earlier than that says so by its ``wake_s``.

    A suspension that was requested, and all that follows from it, is no reason to decide again: a
    policy that weighs what jobs have left would change its mind with every report.
    """
    memo = now.memo or {}
    about = [len(now.jobs), sum(job.ready for job in now.jobs)]
    until_s = memo.get("until_s", now.now_s)
    if memo.get("jobs") == about and not now.cause & AT_ONCE and now.now_s < until_s:
        grants = keep(now)
        waits = {
            job.id: job.why for job in now.jobs if job.ready and job.id not in grants and job.why
        }
        return Target(grants, waits, wake_s=until_s, memo=memo)
    target = allocate(now)
    until_s = now.now_s + interval_s
    if target.wake_s is not None:
        until_s = min(until_s, target.wake_s)
    # While nothing runs, nothing changes by itself.
    wake_s = until_s if target.grants else None
    return replace(target, wake_s=wake_s, memo={"until_s": until_s, "jobs": about})
