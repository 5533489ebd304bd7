"""EASY backfill (Lifka 1995; Mu'alem and Feitelson 2001): what a batch system does with rigid jobs.

First come, first served, but a job may overtake if that does not delay the first waiting job. That
one alone has a reservation: the earliest instant at which there is room for it, if all jobs take
as long as they state at most. Jobs behind it start if they end before, or leave it what it needs.
"""

from __future__ import annotations

from hpcext.core.values import Snapshot, Target
from hpcext.policies.backfill import Options, Planner
from hpcext.policies.common import BEHIND


def allocate(now: Snapshot, options: Options) -> Target:
    """Start the next jobs, reserve for the first that has to wait, and backfill around that.

    The cost grows with the jobs that run, and with the length of the queue for the reason why each
    job waits; no more are tried once `depth` had to wait.
    """
    plan = Planner(now)
    waiting = iter(plan.waiting)
    waits: dict[str, str] = {}
    for job in waiting:
        if plan.start(job):
            continue
        waits[job.id] = plan.needs(job)
        if plan.possible(job):
            plan.reserve(job, plan.earliest(job))
            break
    left = options.depth
    for job in waiting:
        if not left or not plan.idle:
            waits[job.id] = BEHIND
            break
        if not plan.start(job):
            waits[job.id] = BEHIND
            left -= 1
    waits.update((job.id, BEHIND) for job in waiting)
    return Target(plan.grants, waits)
