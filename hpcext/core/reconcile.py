"""The actions that are safe now, from what is true and what was granted."""

from __future__ import annotations

from collections.abc import Mapping, Set

from hpcext.core.rescaling import can_rescale, growth, part
from hpcext.core.saving import must_go
from hpcext.core.silence import look_s
from hpcext.core.values import Action, Alloc, Job, Kind, Snapshot, State, suits


def fits(alloc: Alloc, free: Mapping[str, int]) -> bool:
    """Return whether an allocation can be taken from what is free on each node.

    Parameters
    ----------
    alloc : Alloc
    free : Mapping[str, int]
        GPUs per node.
    """
    return all(free.get(node, 0) >= gpus for node, gpus in alloc.items())


def free_gpus(now: Snapshot, among: Set[str]) -> dict[str, int]:
    """Count the GPUs that no job holds on each of the given nodes that are present.

    Below zero only where a node shrank under its jobs.

    Parameters
    ----------
    now : Snapshot
    among : set of str
        Names of nodes.
    """
    free = {name: now.nodes[name].gpus for name in among if name in now.nodes}
    for job in now.jobs:
        for node in job.held.keys() & free.keys():
            free[node] -= job.held[node]
    return free


def reconcile(now: Snapshot) -> tuple[Action, ...]:
    """Return every action that brings jobs nearer to their goals and is safe at this moment.

    Nothing starts on a GPU that is *held*: held means not acknowledged free, whatever the state of
    the job. Actions that must wait are left out; this is called again after each fact.

    Parameters
    ----------
    now : Snapshot
        Its jobs carry what was granted (`goal`) and what they still have (`held`).

    Returns
    -------
    tuple of Action
        Kills, suspensions and inspections first, then starts and changes of size, each in the
        order of the queue. A start has op 0: the engine numbers it.
    """
    stops = [action for job in now.jobs if (action := _stop(job, now) or _inspect(job, now))]
    goals = [
        job.goal for job in now.jobs if job.goal and (job.run.degraded or job.goal != job.held)
    ]
    if not goals:
        return tuple(stops)
    free = free_gpus(now, {node for goal in goals for node in goal})
    others: list[Action] = []
    for job in now.jobs:
        if action := _start(job, free) or _rescale(job, free, now):
            (stops if action.kind is Kind.SUSPEND else others).append(action)
    return (*stops, *others)


def _start(job: Job, free: dict[str, int]) -> Action | None:
    """Start a job whose goal is free now, and take that."""
    if job.state is not State.PENDING or not job.goal or not fits(job.goal, free):
        return None
    _take(job.goal, free)
    return Action(Kind.START, job.id, 0, job.attempt + 1, alloc=job.goal)


def _rescale(job: Job, free: dict[str, int], now: Snapshot) -> Action | None:
    """Change the size of a job in place, if what it needs more is free now, and take that.

    It goes on training while it waits for its GPUs. A job that must give GPUs back as well does not
    wait, because two such jobs could wait for each other for ever. Nor does a job that has lost a
    node.
    """
    if job.goal is None or (job.goal == job.held and not job.run.degraded) or not can_rescale(job):
        return None
    more, alloc = growth(job), job.goal
    if not fits(more, free):
        gives = any(gpus > job.goal.get(node, 0) for node, gpus in job.held.items())
        if not gives and not job.run.degraded:
            return None
        more, alloc = {}, part(job)
        if not job.run.elastic or not suits(job, alloc):
            return _suspend(job, now)
    _take(more, free)
    number = job.run.resize + 1
    return Action(Kind.RESCALE, job.id, job.op, job.attempt, alloc=alloc, resize=number)


def _take(alloc: Alloc, free: dict[str, int]) -> None:
    for node, gpus in alloc.items():
        free[node] -= gpus


def _suspend(job: Job, now: Snapshot) -> Action | None:
    """Suspend a job, unless it has declined that just now."""
    again_s = job.run.suspend_again_s
    if job.state is State.STOPPING:
        # That was requested; once more only if it has to go, and has declined before.
        wait = again_s is None or now.now_s < again_s
    else:
        wait = again_s is not None and now.now_s < again_s
        wait = wait and not must_go(job, now.nodes, leaving=now.leaving)
    return None if wait else Action(Kind.SUSPEND, job.id, job.op, job.attempt)


def _inspect(job: Job, now: Snapshot) -> Action | None:
    """Have a job looked at that has done no step for long."""
    at_s = look_s(job)
    if at_s is None or now.now_s < at_s:
        return None
    return Action(Kind.INSPECT, job.id, job.op, job.attempt)


def _stop(job: Job, now: Snapshot) -> Action | None:
    """Return what must be done now to make a job let go of its GPUs, if anything."""
    if not job.state.active:
        return None
    overdue = job.deadline_s is not None and now.now_s >= job.deadline_s
    changing = job.state is State.RESCALING
    if (overdue and not changing) or (job.cancelling and not job.run.kills):
        return Action(Kind.KILL, job.id, job.op, job.attempt, force=job.run.kills > 0)
    if changing:
        # It gets another goal when it has answered, but a suspension does not wait for the answer.
        unwanted = overdue or job.goal is None
    else:
        # A starting job is not stopped before it is known to run: its answer is on its way.
        moves = (job.goal != job.held or job.run.degraded) and not can_rescale(job)
        unwanted = (job.state is State.RUNNING and moves) or (
            job.state is State.STOPPING and not job.run.kills
        )
    return _suspend(job, now) if unwanted else None
