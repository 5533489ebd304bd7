"""Seats on shared GPUs for secondaries, beside any policy that divides the other GPUs.

A job that may share a GPU gets a seat when the policy grants it no GPU, in the order of the queue;
MARBLE (Han et al., §V-C) calls a job that runs on what is left a secondary. The policy sees it as
waiting, so a grant of the policy promotes it: the job leaves its seat for GPUs of its own, as any
job changes GPUs. No job that could have a GPU waits for a seat, and none keeps a GPU from a job
that cannot share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from hpcext.core.values import Grant, Job, Node, Role, Snapshot, State, Target, suits
from hpcext.policies.common import fixed
from hpcext.scaling.identity import of_a_machine


def allocate(now: Snapshot, *, policy: Callable[[Snapshot], Target]) -> Target:
    """Let a policy divide the GPUs that are not shared, and assign the seats.

    The cost is that of the policy, and a check of each job where there are seats.

    Parameters
    ----------
    now : Snapshot
    policy : callable
        It sees no seats, and no job as having one.
    """
    seats = _seats_of(now.nodes)
    if not seats:
        return policy(now)
    seated = [job for job in now.jobs if job.goal and not seats.keys().isdisjoint(job.goal)]
    staying = {job.id for job in seated if fixed(job)}
    own = {name: node for name, node in now.nodes.items() if not node.seats}
    target = policy(_view(now, own, {job.id for job in seated}, staying))
    grants = dict(target.grants)
    free = {name: node.gpus for name, node in seats.items()}
    for job in seated:
        if job.goal and job.ready and job.id not in grants:
            grants[job.id] = Grant(job.goal, Role.SECONDARY, job.why)
            for name in job.goal:
                free[name] -= 1
    for job in now.jobs:
        here = [name for name, left in free.items() if left > 0]
        if not here:
            break
        if job.shares and job.ready and job.id not in grants and suits(job, {here[0]: 1}):
            free[here[0]] -= 1
            why = f"shares a GPU with {seats[here[0]].seats} seats: no whole GPU was free for it"
            grants[job.id] = Grant({here[0]: 1}, Role.SECONDARY, why)
    waits = {job: why for job, why in target.waits.items() if job not in grants}
    return replace(target, grants=grants, waits=waits)


@of_a_machine
def _seats_of(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    return {name: node for name, node in nodes.items() if node.seats}


def _view(
    now: Snapshot, nodes: Mapping[str, Node], seated: set[str], staying: set[str]
) -> Snapshot:
    """Return the policy's view: jobs on seats wait, and jobs that must keep theirs are left out."""

    def seen(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        return tuple(
            replace(job, state=State.PENDING, goal=None, held={}, gpus=(), role=None)
            if job.id in seated
            else job
            for job in jobs
            if job.id not in staying
        )

    busy = None if now.busy is None else tuple(job for job in now.busy if job.id not in seated)
    return replace(now, nodes=nodes, jobs=seen(now.jobs), busy=busy)
