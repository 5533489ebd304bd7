"""MARBLE: share a node's GPUs among jobs that scale sublinearly (Han et al., §V-C, Algorithm 1).

A *primary* runs on its best number of GPUs, a *secondary* on what was left. When GPUs come free,
running secondaries are promoted first, then the next jobs of the queue start. The queue is first
in, first out; a job whose dependencies are not complete is skipped.

Choices that the paper leaves open: a secondary is promoted only to its best size, never to one in
between (line 6 asks for ``GPU_optimal``); several secondaries are promoted in the order of the
queue; a job that cannot run on the remaining GPUs (its smallest size is larger) blocks those behind
it, to preserve FIFO; with several nodes, a primary goes where it fits most tightly, a secondary
where most GPUs are left. A running secondary is not promoted if, by its speeds and the cost of
growing, it would not end sooner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hpcext.core.values import Alloc, Grant, Job, Node, Role, Snapshot, State, Target, per_node
from hpcext.policies.common import (
    AS_ASKED,
    BEHIND,
    ONE_NODE,
    busy,
    fixed,
    free_beside,
    its_size,
    keep,
    kinds_of,
    largest,
    named,
    take,
)
from hpcext.scaling.identity import of_an_allocation
from hpcext.text import are


def allocate(now: Snapshot) -> Target:
    """Promote running secondaries, then start the next jobs (Algorithm 1).

    The cost grows with the nodes; with the running jobs; for each job that starts, with the nodes
    that have a free GPU; and with the length of the queue only for the reason why each job waits.
    """
    grants = keep(now, busy(now))
    free = free_beside(now, grants)
    for job in busy(now):
        if job.id in grants:
            grants[job.id] = _revise(job, grants[job.id], now, free)
    return Target(grants, _run_multiple_jobs(now, grants, free))


class _Has(NamedTuple):
    """The GPUs that an allocation has on each node (0: they differ), and the widths of these."""

    per_node: int
    widths: frozenset[int]


@of_an_allocation
def _has(alloc: Alloc, nodes: Mapping[str, Node]) -> _Has:
    return _Has(per_node(alloc), frozenset(nodes[name].gpus for name in alloc))


def _best(job: Job, gpus: int) -> int:
    """Return a job's best size on a node of `gpus` GPUs (§V-D)."""
    return largest(job, min(job.optimal, gpus)) or largest(job, gpus)


def _revise(job: Job, grant: Grant, now: Snapshot, free: dict[str, int]) -> Grant:
    """Promote a secondary if its own GPUs and the free ones are enough (lines 5-9).

    The same step gives a job the size that its user requested (``hpcext resize``).
    """
    has, widths = _has(grant.alloc, now.nodes)
    best = min(_best(job, gpus) for gpus in widths)
    if has == best:
        return _as_it_is(job, grant)
    nodes = list(grant.alloc)
    if not best:
        small = min(nodes, key=lambda node: now.nodes[node].gpus)
        why = f"stays on {named(has)}: {small} is too small for the requested size"
        return Grant(grant.alloc, grant.role, why)
    asked = has not in job.sizes
    if grant.role is Role.PRIMARY and not asked:
        return grant
    least = min(free[node] for node in nodes)
    if least + has < best:
        short = f"{best - has} more needed, {least} free"
        return Grant(grant.alloc, grant.role, f"runs on {has} of {best} GPUs: {short}")
    dear = "" if asked or best < has else _not_worth_it(job, has * len(nodes), best * len(nodes))
    if reason := fixed(job) or dear:
        return Grant(grant.alloc, grant.role, f"stays on {has} of {best} GPUs: {reason}")
    for node in nodes:
        free[node] -= best - has
    how = "resized" if asked or best < has else "promoted"
    why = f"{how} from {has} to {_on(best, nodes)}, {its_size(job)}"
    return Grant(dict.fromkeys(nodes, best), Role.PRIMARY, why)


def _as_it_is(job: Job, grant: Grant) -> Grant:
    """Keep a job's size; update the reason if its user has set a size, or undone that, since."""
    if bool(job.stated) == (AS_ASKED in grant.why):
        return grant
    why = f"runs on {_on(per_node(grant.alloc), list(grant.alloc))}, {its_size(job)}"
    return Grant(grant.alloc, Role.PRIMARY, why)


def _not_worth_it(job: Job, has: int, best: int) -> str:
    """Return why a running secondary is not promoted: it would not end sooner.

    `has` and `best` are GPUs on all its nodes. The paper promotes whenever possible; its jobs ran
    so long that the cost did not matter.
    """
    known = job.estimate
    stays_s, grows_s = known.left_s(has), known.left_s(best, like=has)
    if job.state is not State.RUNNING or known.up_s is None or stays_s is None or grows_s is None:
        return ""
    if stays_s > known.up_s + grows_s:
        return ""
    return f"it will end in {stays_s:.0f} s as it is, and growing takes {known.up_s:.3g} s"


def _run_multiple_jobs(
    now: Snapshot, grants: dict[str, Grant], free: dict[str, int]
) -> dict[str, str]:
    """Start the next jobs of the queue while GPUs are available (lines 14-21)."""
    waits: dict[str, str] = {}
    blocked = False
    # No job can use a node without a free GPU, and on a busy machine most have none.
    some = {name: gpus for name, gpus in free.items() if gpus > 0}
    for job in now.jobs:
        if job.id in grants or not job.ready:
            continue
        grant = None if blocked else _place(job, now, some)
        if grant is None:
            waits[job.id] = BEHIND if blocked else _waits(job, some)
            blocked = True
            continue
        grants[job.id] = grant
        take(some, grant.alloc)
        for name in grant.alloc:
            if not some[name]:
                del some[name]
    return waits


def _place(job: Job, now: Snapshot, free: dict[str, int]) -> Grant | None:
    """Place a job as a primary if some node has enough GPUs left, else as a secondary.

    A job on several nodes needs the same number on each of them, all of one kind, and takes as many
    nodes as it can use. Of several kinds it gets the one on which it is a primary, or has the most.
    """
    kinds = [] if (job.nodes or ONE_NODE)[1] == 1 else kinds_of(now)
    if len(kinds) < 2:
        return _place_on(job, now, free)
    parts = ({name: free[name] for name in free if now.nodes[name].kind == kind} for kind in kinds)
    grants = [grant for part in parts if (grant := _place_on(job, now, part))]
    return max(
        grants,
        key=lambda grant: (grant.role is Role.PRIMARY, sum(grant.alloc.values())),
        default=None,
    )


def _place_on(job: Job, now: Snapshot, free: dict[str, int]) -> Grant | None:
    """Place a job on these nodes, all of one kind, as a primary or a secondary."""
    fewest, most = job.nodes or ONE_NODE
    widths = {name: now.nodes[name].gpus for name in free}
    # A machine has few widths and many nodes.
    by_width = {gpus: _best(job, gpus) for gpus in set(widths.values())}
    best = {name: by_width[gpus] for name, gpus in widths.items()}
    failed_on = frozenset(job.failed_on)
    fits = [name for name, gpus in free.items() if 0 < best[name] <= gpus]
    fitting = sorted(fits, key=lambda name: (name in failed_on, free[name]))
    if len(fitting) >= fewest:
        size = sorted((best[name] for name in fitting), reverse=True)[fewest - 1]
        chosen = [name for name in fitting if best[name] >= size][:most]
        why = f"runs on {_on(size, chosen)}, {its_size(job)}"
        return Grant(_each(chosen, size, now), Role.PRIMARY, why)
    by_free = {gpus: largest(job, gpus) for gpus in set(free.values())}
    usable = {name: by_free[gpus] for name, gpus in free.items()}
    ranked = sorted(usable, key=lambda name: (not usable[name], name in failed_on, -usable[name]))
    size = min(usable[name] for name in ranked[:fewest]) if len(ranked) >= fewest else 0
    if not size:
        return None
    chosen = [name for name in ranked if usable[name] >= size][:most]
    short = min(chosen, key=lambda name: free[name])
    why = f"runs on {size} of {best[short]} GPUs: no more were free on {short}"
    return Grant(_each(chosen, size, now), Role.SECONDARY, why)


def _each(chosen: list[str], size: int, now: Snapshot) -> dict[str, int]:
    """Return `size` GPUs on each chosen node, in the order of the nodes."""
    if len(chosen) == 1:
        return {chosen[0]: size}
    those = frozenset(chosen)
    return {name: size for name in now.nodes if name in those}


def _on(size: int, nodes: list[str]) -> str:
    """Return ``3 GPUs``, ``3 GPUs on each of 2 nodes``."""
    return named(size) + (f" on each of {len(nodes)} nodes" if len(nodes) > 1 else "")


def _waits(job: Job, free: dict[str, int]) -> str:
    left = max(free.values(), default=0)
    fewest, _ = job.nodes or ONE_NODE
    if fewest > 1:
        return f"next in the queue; needs {named(min(job.sizes))} on each of {fewest} nodes"
    if not left:
        return "next in the queue; waits for a free GPU"
    least = f"with a gpus.min of {left} it could start now"
    if job.stated:
        # Its job file does not count: its user has set one size.
        do = "hpcext resize to auto undoes its fixed size"
        least = f"{do}, and it could start now" if job.stated[0] <= left else do
    return (
        f"next in the queue; waits for {named(min(job.sizes))} on one node, and {left} {are(left)} "
        f"free; {least}"
    )
