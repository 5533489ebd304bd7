"""The baseline: one job at a time on a node, with all its GPUs, as a batch system would.

MARBLE §VII-A compares with it: "LSF scheduler allocates the maximum number of GPUs (e.g., 6 GPUs)
to each DL job … jobs wait in a queue until there are enough GPUs available".
"""

from __future__ import annotations

from hpcext.core.values import Grant, Job, Role, Snapshot, Target, total
from hpcext.policies.common import keep, largest, movable


def allocate(now: Snapshot) -> Target:
    """Give each free node to the next job in the queue, as many GPUs as the job can take."""
    grants = keep(now)
    for job in now.jobs:
        if job.id in grants:
            grants[job.id] = _resize(job, grants[job.id], now)
    waits: dict[str, str] = {}
    taken = {node for grant in grants.values() for node in grant.alloc}
    free = [node for name, node in now.nodes.items() if name not in taken]
    blocked: Job | None = None
    for job in now.jobs:
        if job.id in grants or not job.ready:
            continue
        node = next((node for node in free if largest(job, node.gpus)), None)
        if blocked or node is None:
            waits[job.id] = f"waits behind {blocked.name}" if blocked else "waits for a whole node"
            blocked = blocked or job
            continue
        free.remove(node)
        size = largest(job, node.gpus)
        why = f"has node {node.name} to itself, {size} of its {node.gpus} GPUs"
        grants[job.id] = Grant({node.name: size}, Role.PRIMARY, why)
    return Target(grants, waits)


def _resize(job: Job, grant: Grant, now: Snapshot) -> Grant:
    """Give a job the size that its user asked for, if its node has it."""
    node = now.nodes[next(iter(grant.alloc))]
    size = largest(job, node.gpus)
    if total(grant.alloc) in job.sizes or not size or not movable(job):
        return grant
    why = f"has node {node.name} to itself, {size} of its {node.gpus} GPUs, as its user asked"
    return Grant({node.name: size}, grant.role, why)
