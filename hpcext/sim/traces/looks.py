"""The changes of a machine between periodic observations of its idle nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcext.sim.traces.idle import NodeChange
from hpcext.sim.traces.slurm import IdleSample

NOBODY: frozenset[int] = frozenset()


def changes(looks: Iterable[IdleSample]) -> Iterator[NodeChange]:
    """Yield the nodes that became idle and those that were taken.

    A node that is idle in one observation only, and not in those before and after it, is between
    two jobs and does not count (BFTrainer, section 2.1). The first and the last observation always
    yield a change, as beginning and end of the trace; others do so only if a node changed.

    Parameters
    ----------
    looks : iterable of IdleSample
        In the order of time.

    Yields
    ------
    NodeChange
    """
    idle = before = NOBODY
    now: IdleSample | None = None
    first = True
    for after in looks:
        if now is not None:
            steady = now.idle & (before | after.idle)
            if first or steady != idle:
                yield _change(now.time_s, idle, steady)
            first = False
            idle, before = steady, now.idle
        now = after
    if now is not None:
        yield _change(now.time_s, idle, now.idle & before)


def _change(time_s: float, was: frozenset[int], now: frozenset[int]) -> NodeChange:
    return NodeChange(time_s, tuple(sorted(now - was)), tuple(sorted(was - now)))
