"""The effect of requests of users, of a drain, and of a decision.

Each function takes the `world`, the time `now_s` by the engine's clock, in seconds, and the `fact`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from hpcext.core import deferred, saving
from hpcext.core.carrying_out import KILL_GRACE_S
from hpcext.core.decisions import PATIENCE_S
from hpcext.core.difference import apply as changed
from hpcext.core.facts import (
    Began,
    Cancel,
    Decided,
    Drain,
    Hold,
    Release,
    Resize,
    Retried,
    Submitted,
)
from hpcext.core.values import Cause, Job, Record, State
from hpcext.core.world import NOTHING, World, gone


def submitted(world: World, now_s: float, fact: Submitted) -> Cause:
    """Add a job; one that needs a job which will never complete is cancelled at once."""
    if fact.job.id in world.jobs:
        return NOTHING
    job = replace(fact.job, submitted_s=now_s, since_s=now_s)
    world.add(job)
    world.records[job.id] = Record()
    world.touch_dependents(job.id)
    needs = (world.jobs[need] for need in job.after if need in world.jobs)
    hopeless = (need for need in needs if need.state.final and not need.done)
    if need := next(hopeless, None):
        world.finish(job, now_s, State.CANCELLED, why=gone(need))
    return Cause.SUBMITTED


def hold(world: World, now_s: float, fact: Hold) -> Cause:
    """Put a job on hold until its user resumes it: what it runs is suspended."""
    return _request(world, fact.job, deferred.hold)


def release(world: World, now_s: float, fact: Release) -> Cause:
    """Let a job run again."""
    return _request(world, fact.job, lambda _job: deferred.RELEASED)


def retried(world: World, now_s: float, fact: Retried) -> Cause:
    """Have a job that has failed wait again; what was cancelled because of it stays so."""
    job = world.jobs.get(fact.job)
    if job is None or job.state is not State.FAILED:
        return NOTHING
    why = "resumed by its user after a failure"
    world.enter(job, State.PENDING, now_s, why=why, **deferred.RETRIED)
    return Cause.REQUEST


def resize(world: World, now_s: float, fact: Resize) -> Cause:
    """Have a job run on as many GPUs as its user requests."""
    return _request(world, fact.job, lambda job: deferred.resized(job, fact))


def cancel(world: World, now_s: float, fact: Cancel) -> Cause:
    """Cancel a job: at once if it waits."""
    job = world.jobs.get(fact.job)
    if job is not None and job.state is State.PENDING:
        world.finish(job, now_s, State.CANCELLED, why="cancelled by its user")
        return Cause.REQUEST
    return _request(world, fact.job, lambda _job: deferred.CANCELLED)


def _request(world: World, job_id: str, changes: Callable[[Job], dict[str, Any]]) -> Cause:
    """Change a job as its user requests, if it has not ended."""
    job = world.waiting(job_id)
    if job is None:
        return NOTHING
    world.change(job, **changes(job))
    return Cause.REQUEST


def drain(world: World, now_s: float, fact: Drain) -> Cause:
    """Start no more jobs, and suspend the running ones if the fact says so."""
    world.draining = True
    world.queue.touch_all()
    if not fact.suspend:
        world.drained = True
        return Cause.REQUEST
    world.suspending, world.leaving = True, world.leaving or fact.must
    world.open_question = None  # nothing is granted any more, whatever the answer
    if fact.left_s is not None:
        world.ends_s = now_s + fact.left_s
    for job in world.queue.busy():
        changes: dict[str, Any] = {"goal": None}
        if job.state is State.STOPPING and job.deadline_s is not None:
            # A job that was being suspended or ended already gets no more time than the others.
            soon_s = saving.answer_by(now_s, job.deadline_s - now_s, world.ends_s)
            changes["deadline_s"] = min(job.deadline_s, soon_s)
        world.change(job, **changes)
    return Cause.REQUEST


def began(world: World, now_s: float, fact: Began) -> Cause:
    """Go on where a manager has begun: a drain that stopped the last one is over."""
    world.drained = world.drained and fact.again
    world.draining, world.suspending, world.leaving = world.drained, False, False
    world.ends_s, world.shrunk = None, False
    world.open_question = None  # its policy's process ended with the manager before
    for job in world.queue.busy():
        if changes := _heard_again(job, now_s):
            world.change(job, **changes)
    world.queue.touch_all()
    return Cause.REQUEST


def _heard_again(job: Job, now_s: float) -> dict[str, Any]:
    """Return what changes of a job that holds GPUs now that somebody listens to it again."""
    changes: dict[str, Any] = {}
    if job.run.step_s is not None:
        changes["run"] = replace(job.run, looked_s=now_s)
    if job.deadline_s is not None and job.since_s < now_s:
        # It is asked again, perhaps for the first time: the last manager may have been killed
        # before it could ask, and the clock may have been set since.
        within_s = KILL_GRACE_S if job.run.kills else job.suspend_timeout_s
        changes["deadline_s"] = now_s + within_s
    return changes


def decided(world: World, now_s: float, fact: Decided) -> Cause:
    """Take the answer to the last question; that to an older one is stale."""
    question = world.open_question
    if fact.number != (question.number if question else 0):
        return NOTHING
    world.open_question, world.undecided = None, fact.failed
    world.slow = question is not None and now_s >= question.at_s + PATIENCE_S
    if fact.wake_s is not None or not fact.failed:
        world.wake_s = fact.wake_s
    world.memo = changed(world.memo, fact.memo)
    for job_id, granted in fact.jobs.items():
        if (job := world.waiting(job_id)) is not None:
            goal = None if granted.alloc is None else dict(granted.alloc)
            world.change(job, goal=goal, role=granted.role or job.role, why=granted.why)
    for why, jobs in fact.whys.items():
        for job_id in jobs:
            if (job := world.waiting(job_id)) is not None:
                world.change(job, why=why)
    if world.draining:
        # A job whose goal was taken back is not ready any more: while draining, none is given.
        world.refresh(now_s)
    return Cause(question.again) if question else NOTHING
