"""The effect of an action on its job, once it goes to the executor."""

from __future__ import annotations

from msgspec.structs import replace

from hpcext.core import rescaling, saving
from hpcext.core.values import NO_RUN, Action, Job, Kind, State, total
from hpcext.core.world import World

KILL_GRACE_S = 15.0
"""Seconds that a job which is killed gets before the next, harder try."""


def carry_out(world: World, now_s: float, action: Action) -> Action:
    """Note that an action goes to the executor, and return it; a start gets its number.

    Parameters
    ----------
    world : World
    now_s : float
        The clock of the engine, in seconds.
    action : Action
    """
    job = world.jobs[action.job]
    if action.kind is Kind.START:
        action = replace(action, op=world.next_op)
        world.next_op += 1
        _start(world, job, now_s, action)
    elif action.kind is Kind.RESCALE:
        _rescale(world, job, now_s, action)
    elif action.kind is Kind.SUSPEND:
        _suspend(world, job, now_s)
    elif action.kind is Kind.INSPECT:
        world.change_run(job, looked_s=now_s)
    else:
        run = replace(job.run, kills=job.run.kills + 1, resize_to={})
        deadline_s = saving.answer_by(now_s, KILL_GRACE_S, world.ends_s)
        world.enter(job, State.STOPPING, now_s, run=run, deadline_s=deadline_s)
    return action


def _start(world: World, job: Job, now_s: float, action: Action) -> None:
    world.enter(
        job, State.STARTING, now_s, held=action.alloc, gpus=(), op=action.op,
        attempt=action.attempt, run=NO_RUN, deadline_s=None,
        moves=job.moves + (job.attempt > 0),
        most_gpus=max(job.most_gpus, total(action.alloc)),
    )  # fmt: skip


def _rescale(world: World, job: Job, now_s: float, action: Action) -> None:
    world.enter(
        job, State.RESCALING, now_s, deadline_s=now_s + job.suspend_timeout_s,
        moves=job.moves + 1, most_gpus=max(job.most_gpus, total(action.alloc)),
        **rescaling.begun(job, action),
    )  # fmt: skip


def _suspend(world: World, job: Job, now_s: float) -> None:
    run = replace(
        job.run, suspend_again_s=None, resize_to={},
        resize_interrupted=job.run.resize_to or job.run.resize_interrupted,
    )  # fmt: skip
    deadline_s, why = job.deadline_s, job.why
    if job.state is not State.STOPPING:
        deadline_s = world.answer_by(now_s, job)
    if job.deadline_s is not None and now_s >= job.deadline_s:
        why = rescaling.failed(job, f"it did not answer within {job.suspend_timeout_s:g} s")
    world.enter(job, State.STOPPING, now_s, run=run, deadline_s=deadline_s, why=why)
