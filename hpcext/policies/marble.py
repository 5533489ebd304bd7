"""MARBLE: share a node's GPUs among jobs that scale sublinearly (Han et al., §V-C, Algorithm 1).

A *primary* runs on the number of GPUs that is best for it, a *secondary* on what was left. When
GPUs come free, running secondaries are promoted first, then the next jobs of the queue start.
The queue is first in, first out; a job whose dependencies are not complete is passed over.

What the paper leaves open, and what is done here: a secondary is promoted only to its best size,
never in between (line 6 asks for ``GPU_optimal``); several secondaries are promoted in the order of
the queue; a job that cannot run on what is left (more GPUs are its least) keeps those behind it
waiting, since FIFO is kept; with several nodes, a primary goes where it fits most tightly, a
secondary where most is left. A running secondary that would end no sooner for it, as far as its
speeds and the cost of growing are known, is not promoted.
"""

from __future__ import annotations

from hpcext.core.values import Grant, Job, Role, Snapshot, State, Target
from hpcext.policies.common import fixed, keep, largest, named


def allocate(now: Snapshot) -> Target:
    """Promote running secondaries, then start what is next (Algorithm 1).

    The cost grows with the jobs that run times the nodes, and with the length of the queue only
    for saying why each job waits.
    """
    grants = keep(now)
    free = {name: node.gpus for name, node in now.nodes.items()}
    for grant in grants.values():
        for node, gpus in grant.alloc.items():
            free[node] -= gpus
    for job in now.jobs:
        if job.id in grants:
            grants[job.id] = _revise(job, grants[job.id], now, free)
    return Target(grants, _run_multiple_jobs(now, grants, free))


def _best(job: Job, gpus: int) -> int:
    """The size a job runs best on where a node has so many GPUs (§V-D)."""
    return largest(job, min(job.optimal, gpus)) or largest(job, gpus)


def _revise(job: Job, grant: Grant, now: Snapshot, free: dict[str, int]) -> Grant:
    """Lines 5-9: promote a secondary if its own GPUs and the free ones are enough.

    The same step gives a job the size that its user asked for (``hpcext resize``).
    """
    (node, has), *others = grant.alloc.items()
    best = _best(job, now.nodes[node].gpus)
    if others or has == best:
        return grant
    if not best:
        why = f"stays on {has} GPUs: {node} is too small for the size that was asked for"
        return Grant(grant.alloc, grant.role, why)
    asked = has not in job.sizes
    if grant.role is Role.PRIMARY and not asked:
        return grant
    if free[node] + has < best:
        short = f"{best - has} more needed, {free[node]} free"
        return Grant(grant.alloc, grant.role, f"runs on {has} of {best} GPUs: {short}")
    if reason := fixed(job) or ("" if asked else _not_worth_it(job, has, best)):
        return Grant(grant.alloc, grant.role, f"stays on {has} of {best} GPUs: {reason}")
    free[node] -= best - has
    how = "resized" if asked else "promoted"
    return Grant({node: best}, Role.PRIMARY, f"{how} from {has} to {named(best)}, its best size")


def _not_worth_it(job: Job, has: int, best: int) -> str:
    """Why a running secondary is not promoted: it would end no sooner, as far as is known.

    The paper promotes whenever it can; its jobs ran for so long that the cost did not count.
    """
    known = job.estimate
    stays_s, grows_s = known.left_s(has), known.left_s(best, like=has)
    if job.state is not State.RUNNING or known.up_s is None or stays_s is None or grows_s is None:
        return ""
    if stays_s > known.up_s + grows_s:
        return ""
    return f"it ends in {stays_s:.0f} s as it is, and to grow takes {known.up_s:.3g} s"


def _run_multiple_jobs(
    now: Snapshot, grants: dict[str, Grant], free: dict[str, int]
) -> dict[str, str]:
    """Lines 14-21: start the next jobs of the queue while GPUs are available."""
    waits: dict[str, str] = {}
    blocked: Job | None = None
    for job in now.jobs:
        if job.id in grants or not job.ready:
            continue
        grant = None if blocked else _place(job, now, free)
        if grant is None:
            waits[job.id] = f"waits behind {blocked.name}" if blocked else _waits(job, free)
            blocked = blocked or job
            continue
        grants[job.id] = grant
        for node, gpus in grant.alloc.items():
            free[node] -= gpus
    return waits


def _place(job: Job, now: Snapshot, free: dict[str, int]) -> Grant | None:
    """As a primary if some node has enough left, else as a secondary on what there is."""
    best = {name: _best(job, node.gpus) for name, node in now.nodes.items()}
    fitting = [name for name in free if 0 < best[name] <= free[name]]
    if fitting:
        node = min(fitting, key=lambda name: free[name])
        why = f"runs on {named(best[node])}, its best size"
        return Grant({node: best[node]}, Role.PRIMARY, why)
    node = max(free, key=lambda name: largest(job, free[name]), default="")
    size = largest(job, free[node]) if node else 0
    if not size:
        return None
    why = f"runs on {size} of {best[node]} GPUs: no more were free on {node}"
    return Grant({node: size}, Role.SECONDARY, why)


def _waits(job: Job, free: dict[str, int]) -> str:
    left = max(free.values(), default=0)
    if not left:
        return "next in the queue; waits for a GPU to come free"
    return f"next in the queue; needs at least {min(job.sizes)} GPUs where {left} are free"
