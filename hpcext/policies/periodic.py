"""The interval of policies whose papers decide periodically, and at events that cannot wait."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from hpcext.core.values import Cause, Snapshot, Target
from hpcext.policies.common import keep

AT_ONCE = Cause.SUBMITTED | Cause.NODES | Cause.REQUEST
"""Events at which such a policy decides at any time. The end of a job is one as well."""


def periodic(now: Snapshot, interval_s: float, allocate: Callable[[Snapshot], Target]) -> Target:
    """Decide if a job or node came or went, or the interval is over; else keep everything.

    A policy that must be asked earlier says so by its ``wake_s``. A requested suspension, and all
    that follows from it, is no reason to decide again: a policy that weighs the remaining work of
    jobs would change its mind with every report.

    Parameters
    ----------
    now : Snapshot
    interval_s : float
    allocate : callable
        The decision of the policy.
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
    # While no job runs, nothing changes by itself.
    wake_s = until_s if target.grants else None
    return replace(target, wake_s=wake_s, memo={"until_s": until_s, "jobs": about})
