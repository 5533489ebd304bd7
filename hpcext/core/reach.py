"""Jobs that can still run on nodes of which some are gone, or set aside."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from hpcext.core.values import Job, Node, Snapshot, State
from hpcext.text import are, counted

LEFT = "left of its allocation"


def lacks(job: Job, nodes: Mapping[str, Node], left: str = LEFT) -> str:
    """Explain why a job can never run on the nodes that are left; empty if it can.

    Parameters
    ----------
    job : Job
    nodes : Mapping[str, Node]
    left : str
        What these are to the user.
    """
    least = job.sizes[0]
    if job.nodes is None:
        fewest, what = least, "GPU"
        there = sum(node.gpus for node in nodes.values())
    else:
        # One that needs several has them all of one kind.
        kinds = collections.Counter(node.kind for node in nodes.values() if node.gpus >= least)
        fewest, what = job.nodes[0], "node"
        there = max(kinds.values(), default=0)
    if there >= fewest:
        return ""
    return f"needs {counted(fewest, what)}, and {there} {are(there)} {left}"


def within(now: Snapshot) -> Snapshot:
    """Return a snapshot in which no job is ready that lacks nodes: nothing waits behind it."""

    def seen(jobs: Iterable[Job]) -> tuple[Job, ...]:
        return tuple(
            replace(job, ready=False)
            if job.ready and job.state is State.PENDING and lacks(job, now.nodes)
            else job
            for job in jobs
        )

    busy = None if now.busy is None else seen(now.busy)
    return replace(now, jobs=seen(now.jobs), busy=busy)


def stranded(jobs: Iterable[Job], nodes: Mapping[str, Node]) -> bool:
    """Return whether no unfinished job runs, or ever will on the nodes that are left.

    Parameters
    ----------
    jobs : iterable of Job
        All that are unfinished.
    nodes : Mapping[str, Node]
    """
    waiting = {job.id: job for job in jobs}
    if any(job.state.active for job in waiting.values()):
        return False
    stuck = {job.id for job in waiting.values() if lacks(job, nodes)}
    if not stuck:
        return False
    stuck |= {job.id for job in waiting.values() if job.on_hold}
    dependents: dict[str, list[str]] = {}
    for job in waiting.values():
        for need in job.after:
            dependents.setdefault(need, []).append(job.id)
    found = list(stuck)
    while found:
        more = set(dependents.get(found.pop(), ())) - stuck
        stuck |= more
        found += more
    return stuck == waiting.keys()
