"""The baseline: one job at a time on a node, with all its GPUs, as a batch system would.

MARBLE §VII-A compares with it: "LSF scheduler allocates the maximum number of GPUs (e.g., 6 GPUs)
to each DL job … jobs wait in a queue until there are enough GPUs available".
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcext.core.values import Grant, Job, Node, Role, Snapshot, Target, per_node
from hpcext.policies.common import ONE_NODE, keep, largest, movable


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
        fewest, most = job.nodes or ONE_NODE
        nodes = _alike([node for node in free if largest(job, node.gpus)], fewest, most)
        if blocked or len(nodes) < fewest:
            whole = "a whole node" if fewest == 1 else f"{fewest} whole nodes"
            waits[job.id] = f"waits behind {blocked.name}" if blocked else f"waits for {whole}"
            blocked = blocked or job
            continue
        free = [node for node in free if node not in nodes]
        size = min(largest(job, node.gpus) for node in nodes)
        named = " and ".join(node.name for node in nodes)
        why = f"has node {named} to itself, {size} of its {nodes[0].gpus} GPUs"
        alloc = {node.name: size for node in nodes}
        grants[job.id] = Grant(alloc, Role.PRIMARY, why)
    return Target(grants, waits)


def _alike(nodes: Sequence[Node], fewest: int, most: int) -> list[Node]:
    """The first nodes that a job can have, of one kind if they are several."""
    by_kind: dict[str, list[Node]] = {}
    for node in nodes:
        by_kind.setdefault(node.kind, []).append(node)
    return next((each[:most] for each in by_kind.values() if len(each) >= fewest), [])


def _resize(job: Job, grant: Grant, now: Snapshot) -> Grant:
    """Give a job the size that its user asked for, if its node has it."""
    node = min((now.nodes[name] for name in grant.alloc), key=lambda node: node.gpus)
    size = largest(job, node.gpus)
    if per_node(grant.alloc) in job.sizes or not size or not movable(job):
        return grant
    why = f"has node {node.name} to itself, {size} of its {node.gpus} GPUs, as its user asked"
    return Grant(dict.fromkeys(grant.alloc, size), grant.role, why)
