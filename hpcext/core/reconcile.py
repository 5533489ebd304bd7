"""From what is true and what was granted to every action that is safe now."""

from __future__ import annotations

from collections.abc import Mapping

from hpcext.core.values import Action, Alloc, Job, Kind, Snapshot, State


def fits(alloc: Alloc, free: Mapping[str, int]) -> bool:
    """Whether an allocation can be taken from what is free per node."""
    return all(free.get(node, 0) >= gpus for node, gpus in alloc.items())


def free_gpus(now: Snapshot) -> dict[str, int]:
    """GPUs per node that nobody holds. Below zero only where a node shrank under its jobs."""
    free = {name: node.gpus for name, node in now.nodes.items()}
    for job in now.jobs:
        for node, gpus in job.held.items():
            if node in free:
                free[node] -= gpus
    return free


def reconcile(now: Snapshot) -> tuple[Action, ...]:
    """Every action that brings jobs nearer to their goals and is safe at this moment.

    Nothing starts on a GPU that is *held*: held means not acknowledged free, whatever the job's
    state says. What must wait is left out; this is called again after each fact.

    Parameters
    ----------
    now : Snapshot
        Its jobs carry what was granted (`goal`) and what they still have (`held`).

    Returns
    -------
    tuple of Action
        Kills and suspensions first, then starts, each in the order of the queue. A start has
        op 0: the engine numbers it.
    """
    stops = [action for job in now.jobs if (action := _stop(job, now.now_s))]
    free = free_gpus(now)
    starts = []
    for job in now.jobs:
        if job.state is State.PENDING and job.goal and fits(job.goal, free):
            starts.append(Action(Kind.START, job.id, 0, job.attempt + 1, alloc=job.goal))
            for node, gpus in job.goal.items():
                free[node] -= gpus
    return (*stops, *starts)


def _stop(job: Job, now_s: float) -> Action | None:
    """What must be done now to make a job let go of its GPUs, if anything."""
    if not job.state.active:
        return None
    overdue = job.deadline_s is not None and now_s >= job.deadline_s
    if overdue or (job.cancelling and not job.kills):
        return Action(Kind.KILL, job.id, job.op, job.attempt, force=job.kills > 0)
    # A starting job is not stopped before it is known to run: its answer is on its way.
    if job.state is State.RUNNING and job.goal != job.held:
        return Action(Kind.SUSPEND, job.id, job.op, job.attempt)
    return None
