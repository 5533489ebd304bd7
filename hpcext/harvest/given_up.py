"""The nodes that leases gave up to other jobs, and that are still on their way there."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hpcext.batch.leasing import Other

KEPT_S = 60.0
"""Seconds after which a node that was given up and not taken counts as idle again: the interval in
which a batch system looks at its queue; slurm.conf(5), sched_interval."""


class GivenUp:
    """The nodes that any harvester has given up, and that no job has taken yet.

    A job that preempts several leases begins when the last of them has ended. Until then the nodes
    of the others look idle, and Slurm may begin a lease there, as its plan may name other nodes
    than those that it had freed: the job would then preempt one more, and wait for that.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def add(self, node: str, now_s: float) -> None:
        """Note that a lease of ours has ended there, since somebody wants its node."""
        self._since[node] = now_s

    def on_their_way(
        self, idle: Collection[str], others: Iterable[Other], now_s: float
    ) -> frozenset[str]:
        """Return the idle nodes on which a job may be about to begin.

        Parameters
        ----------
        idle : collection of str
            Nodes; others have been taken.
        others : iterable of Other
            Leases of all harvesters. Why one has ended they do not say.
        now_s : float
        """
        # Neither of these is to come; if it seems so, the clock was set back.
        since = {node: min(at, now_s) for node, at in self._since.items() if node in idle}
        self._since = {node: at for node, at in since.items() if now_s - at < KEPT_S}
        ended = {
            each.node
            for each in others
            if each.until_s is not None and abs(now_s - each.until_s) < KEPT_S
        }
        return frozenset(ended.intersection(idle) | self._since.keys())
