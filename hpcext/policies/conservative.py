"""Conservative backfill (Mu'alem and Feitelson 2001): each waiting job has a reservation.

A job may overtake others if it delays none of them. Its reservation is the earliest instant at
which there is room for it beside those that run and the reservations before its own. When a job
ends earlier than stated, reservations move forward in their order, and so none moves back.
"""

from __future__ import annotations

import itertools
import math
from collections import deque

from hpcext.core.values import Cause, Job, Snapshot, Target
from hpcext.policies.backfill import Options, Planner
from hpcext.policies.common import BEHIND

NO_NEWS = Cause.SUBMITTED | Cause.PROGRESS | Cause.STARTED | Cause.REGISTERED
"""Causes that leave no more room than there was: reservations stay as they are."""


def allocate(now: Snapshot, options: Options) -> Target:
    """Plan each job, and start those whose time has come.

    The cost grows with the jobs that run; with `depth`, for each of which the plan is searched;
    and with the length of the queue for the reason why each job waits.
    """
    plan = Planner(now)
    promised: dict[str, float] = (now.memo or {}).get("starts", {})
    planned = plan.waiting[: options.depth + 1]
    further = iter(plan.waiting[len(planned) :])
    stays = not now.cause & ~NO_NEWS
    starts: dict[str, float] = {}
    # Those with a reservation by its time, then the others in the order of the queue.
    coming = deque(sorted(planned, key=lambda job: promised.get(job.id, math.inf)))
    while coming:
        job = coming.popleft()
        start_s = _plan(plan, job, promised.get(job.id), stays=stays)
        if start_s is not None:
            starts[job.id] = start_s
        elif job.id in plan.grants:
            # Another one takes its place among those that are considered.
            coming.extend(itertools.islice(further, 1))
    waits: dict[str, str] = {}
    for job in plan.waiting:
        if job.id not in plan.grants:
            waits[job.id] = BEHIND if waits else plan.needs(job)
    return Target(plan.grants, waits, memo={"starts": starts} if starts else None)


def _plan(plan: Planner, job: Job, promised_s: float | None, *, stays: bool) -> float | None:
    """Start a job, or reserve for it; return when it is to start, if it has to wait for that."""
    slot = None
    if stays and promised_s is not None and promised_s >= plan.now_s:
        slot = plan.at(promised_s, job)
    slot = slot or plan.earliest(job)
    if slot is not None and slot.start_s <= plan.now_s:
        plan.begin(job, slot)
        return None
    plan.reserve(job, slot)
    return None if slot is None else slot.start_s
