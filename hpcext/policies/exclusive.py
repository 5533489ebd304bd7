"""The baseline: one job at a time on a node, with all its GPUs, as a batch system would.

MARBLE §VII-A compares with it: "LSF scheduler allocates the maximum number of GPUs (e.g., 6 GPUs)
to each DL job … jobs wait in a queue until there are enough GPUs available".
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from hpcext.core.values import Alloc, Grant, Job, Node, Role, Snapshot, Target, per_node
from hpcext.policies.common import (
    AS_ASKED,
    BEHIND,
    ONE_NODE,
    avoided,
    busy,
    keep,
    largest,
    movable,
)
from hpcext.scaling.identity import of_an_allocation


def allocate(now: Snapshot) -> Target:
    """Give each free node to the next job in the queue, as many GPUs as the job can take.

    The cost grows with the nodes, and with the length of the queue for the reason why each waits.
    """
    grants = keep(now, busy(now))
    _resize_some(now, grants)
    waits: dict[str, str] = {}
    taken = set[str]().union(*(grant.alloc for grant in grants.values()))
    free: dict[tuple[int, str], dict[str, Node]] = {}
    if len(taken) < len(now.nodes):
        for name, node in now.nodes.items():
            if name not in taken:
                free.setdefault((node.gpus, node.kind), {})[name] = node
    blocked = False
    for job in now.jobs:
        if job.id in grants or not job.ready:
            continue
        if blocked:
            waits[job.id] = BEHIND
            continue
        fewest, most = job.nodes or ONE_NODE
        nodes = _alike(job, free, fewest, most)
        if not nodes:
            whole = "a whole node" if fewest == 1 else f"{fewest} whole nodes"
            waits[job.id] = f"waits for {whole}"
            blocked = True
            continue
        for node in nodes:
            del free[node.gpus, node.kind][node.name]
        size = min(largest(job, node.gpus) for node in nodes)
        alloc = {node.name: size for node in nodes}
        grants[job.id] = Grant(alloc, Role.PRIMARY, _why(job, nodes, size))
    return Target(grants, waits)


def _alike(
    job: Job, free: Mapping[tuple[int, str], Mapping[str, Node]], fewest: int, most: int
) -> list[Node]:
    """Return the first nodes, all of one kind, on which a job fits.

    `free` are the nodes by their number of GPUs and kind, since a machine has few such groups and
    many nodes in each.
    """
    for left_out in avoided(job):
        by_kind: dict[str, list[Node]] = {}
        for (gpus, kind), nodes in free.items():
            if largest(job, gpus):
                able = (node for node in nodes.values() if node.name not in left_out)
                by_kind.setdefault(kind, []).extend(itertools.islice(able, most))
        if found := next((each for each in by_kind.values() if len(each) >= fewest), []):
            return found[:most]
    return []


def _resize_some(now: Snapshot, grants: dict[str, Grant]) -> None:
    """Give jobs the sizes that their users requested, if they have their nodes to themselves."""
    asked = [job for job in busy(now) if job.id in grants and _has_other(job, grants[job.id])]
    if not asked:
        return
    jobs_on = Counter(node for grant in grants.values() for node in grant.alloc)
    for job in asked:
        if all(jobs_on[node] == 1 for node in grants[job.id].alloc):
            grants[job.id] = _resize(job, grants[job.id], now)


@of_an_allocation
def _size(alloc: Alloc) -> int:
    return per_node(alloc)


def _has_other(job: Job, grant: Grant) -> bool:
    """Return whether a job has another size than its user wants, and can change it."""
    had = _size(grant.alloc) in job.sizes and grant.role is Role.PRIMARY
    return not (had and bool(job.stated) == (AS_ASKED in grant.why)) and movable(job)


def _resize(job: Job, grant: Grant, now: Snapshot) -> Grant:
    """Give a job the size that its user requested, if its node has room."""
    nodes = sorted((now.nodes[name] for name in grant.alloc), key=lambda node: node.gpus)
    size = largest(job, nodes[0].gpus)
    if not size:
        return grant
    return Grant(dict.fromkeys(grant.alloc, size), Role.PRIMARY, _why(job, nodes, size))


def _why(job: Job, nodes: Sequence[Node], size: int) -> str:
    named = " and ".join(node.name for node in nodes)
    asked = f", {AS_ASKED}" if job.stated else ""
    return f"has node {named} to itself and uses {size} of its {nodes[0].gpus} GPUs{asked}"
