"""The question of an engine to a policy, and the part of the answer that can be carried out.

The driver of an engine has a policy answer the question, at once or while the world goes on; the
answer comes back as a fact.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from hpcext.core.values import Alloc, Grant, Job, Node, Role, Snapshot, Target, suits, total

PATIENCE_S = 1.0
"""Seconds for which actions that follow from old goals wait for an answer, counted from the
question. Most policies need a few milliseconds; the grace of a preemption is 10 s and more."""


class Question(msgspec.Struct, frozen=True):
    """An engine's question for a target.

    Attributes
    ----------
    number : int
        The answer carries it.
    now : Snapshot
    """

    number: int
    now: Snapshot


class OpenQuestion(msgspec.Struct, frozen=True):
    """A question that has not been answered yet, as a world remembers it.

    Attributes
    ----------
    number : int
    at_s : float
    cause : int
        Why it was asked, see :class:`~hpcext.core.values.Cause`.
    again : int
        Why the policy must be asked again afterwards; 0: nothing relevant has happened since.
    """

    number: int
    at_s: float
    cause: int
    again: int = 0


def refusal(now: Snapshot, target: Target, jobs: Mapping[str, Job]) -> str:
    """Explain why a target cannot be carried out; empty if it can.

    A target must name unfinished, ready jobs, of all `jobs`, and known nodes, give each job a size
    that it can run on (or what it has), and fit the nodes.

    Parameters
    ----------
    now : Snapshot
        The one that the target was made for, with the nodes of today.
    target : Target
    jobs : Mapping[str, Job]
        All jobs, by id.
    """
    changed: list[Alloc] = []
    for job_id, grant in target.grants.items():
        job = jobs.get(job_id)
        if job is None or job.state.final:
            return f"grants GPUs to job {job_id}, which is unknown or finished"
        if not job.ready:
            return f"grants GPUs to job {job_id}, which is not ready"
        if grant.alloc is job.goal:
            continue
        changed.append(grant.alloc)
        if grant.alloc != job.goal and not suits(job, grant.alloc):
            takes = f"{job.sizes}" + (f" on {job.nodes} nodes" if job.nodes else "")
            return f"grants {total(grant.alloc)} GPUs to job {job_id}, which takes {takes}"
    # Goals that stay as they are fit together.
    used: dict[str, int] = {}
    touched = {name for alloc in changed for name in alloc}
    for job_id, grant in target.grants.items():
        if grant.alloc is jobs[job_id].goal:
            for name in grant.alloc.keys() & touched:
                used[name] = used.get(name, 0) + grant.alloc[name]
    for alloc in changed:
        for name, gpus in alloc.items():
            node, taken = now.nodes.get(name), used.get(name, 0)
            if node is None:
                return f"grants GPUs on node {name}, which does not exist"
            if gpus < 1 or taken + gpus > node.gpus:
                return f"grants {gpus} GPUs on node {name}, which has {node.gpus - taken} left"
            used[name] = taken + gpus
    return ""


def brought_up_to_date(
    target: Target, jobs: Mapping[str, Job], nodes: Mapping[str, Node]
) -> Target:
    """Leave out of a target what has become impossible since its snapshot was taken.

    Otherwise all answers of a slow policy would be refused if something happens more often than it
    decides. A job whose grant is left out keeps its previous grant, if it has one;
    :func:`refusal` checks whether all grants fit together.

    Parameters
    ----------
    target : Target
    jobs : Mapping[str, Job]
        All jobs as they are now, by id.
    nodes : Mapping[str, Node]
        The nodes as they are now.
    """
    grants = {}
    for job_id, grant in target.grants.items():
        job = jobs.get(job_id)
        if job is None or job.state.final or not job.ready:
            continue
        there = all(0 < gpus <= _offered(nodes, name) for name, gpus in grant.alloc.items())
        if there and (grant.alloc == job.goal or suits(job, grant.alloc)):
            grants[job_id] = grant
        elif job.goal:
            grants[job_id] = Grant(job.goal, job.role or Role.PRIMARY, job.why)
    return replace(target, grants=grants)


def _offered(nodes: Mapping[str, Node], name: str) -> int:
    return nodes[name].gpus if name in nodes else 0


def left_of(job: Job, nodes: Mapping[str, Node]) -> Alloc | None:
    """Return the GPUs on which an elastic job that loses nodes can go on until the next decision.

    Returns
    -------
    Alloc or None
        None where it loses none, or has been granted something, or cannot go on with the rest.
    """
    if job.goal is not None or not (job.run.elastic and job.ready) or job.cancelling:
        return None
    rest = {name: gpus for name, gpus in job.held.items() if gpus <= _offered(nodes, name)}
    if not rest or len(rest) == len(job.held) or not suits(job, rest):
        return None
    return rest
