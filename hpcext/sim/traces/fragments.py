"""Statistics of a trace of idle nodes: the figures of BFTrainer's Table 1 and Figure 1."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from hpcext.sim.traces.idle import NodeChange

MINUTES = (1, 2, 5, 10, 20, 30, 40, 50, 60, 90, 120, 240, 480, 1440)
"""Edges of the distribution of fragment lengths; Figure 1 has those of 10 to 120."""

SHORT_MINUTES = 10
"""Length below which the paper calls fragments short."""


class Lengths(msgspec.Struct, frozen=True):
    """The share of fragments that are shorter than a number of minutes.

    Attributes
    ----------
    minutes : int
    by_count, by_time : float
        Shares of the fragments and of their node-time, 0 to 1.
    """

    minutes: int
    by_count: float
    by_time: float


class IdleStats(msgspec.Struct, frozen=True):
    """Statistics of a trace of idle nodes.

    Attributes
    ----------
    start_s, end_s : float
        Times of the first and the last change.
    events : int
        Changes in which some node joined or left.
    inc, dec : int
        Changes in which some node joined, and in which some node left.
    seen : int
        Number of different nodes.
    nodes : int
        Nodes of the machine if that is known, else `seen`.
    most : int
        Largest number of nodes that were idle at once.
    eq_nodes : float
        Mean number of idle nodes over time.
    fragments : int
        Number of idle times of nodes, from joining to leaving, without those that do not end.
    mean_s : float
        Mean length of these.
    lengths : tuple of Lengths
        Their distribution at :data:`MINUTES`.
    """

    start_s: float
    end_s: float
    events: int
    inc: int
    dec: int
    seen: int
    nodes: int
    most: int
    eq_nodes: float
    fragments: int
    mean_s: float
    lengths: tuple[Lengths, ...]

    @property
    def hours(self) -> float:
        """The length of the trace in hours."""
        return (self.end_s - self.start_s) / 3600

    def per_hour(self, count: int) -> float:
        """Return a number of events per hour."""
        return count / self.hours if self.hours else 0.0

    @property
    def ratio(self) -> float:
        """The share of the machine that was idle."""
        return self.eq_nodes / self.nodes if self.nodes else 0.0

    @property
    def short(self) -> Lengths:
        """The shares of the fragments under ten minutes."""
        return next(each for each in self.lengths if each.minutes == SHORT_MINUTES)


class IdleTally:
    """A tally of a trace's changes while they are read; memory is bounded by the nodes."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._seen: set[int] = set()
        self._lengths = _Lengths()
        self._events = self._inc = self._dec = self._most = 0
        self._node_s = self._now_s = 0.0
        self._start_s: float | None = None

    def __call__(self, changes: Iterable[NodeChange]) -> Iterator[NodeChange]:
        """Yield the changes, and count them."""
        for change in changes:
            self._add(change)
            yield change

    def _add(self, change: NodeChange) -> None:
        since = self._since
        if self._start_s is None:
            self._start_s = self._now_s = change.time_s
        self._node_s += len(since) * (change.time_s - self._now_s)
        self._now_s = now_s = change.time_s
        self._events += bool(change.joined or change.left)
        self._inc += bool(change.joined)
        self._dec += bool(change.left)
        self._lengths.add([now_s - since.pop(node) for node in change.left])
        since.update(dict.fromkeys(change.joined, now_s))
        self._seen.update(change.joined)
        self._most = max(self._most, len(since))

    def stats(self, *, nodes: int | None = None, end_s: float | None = None) -> IdleStats:
        """Return the statistics so far; parameters as in :func:`idle_stats`."""
        start_s, ended_s = self._start_s or 0.0, max(self._now_s, end_s or 0.0)
        node_s = self._node_s + len(self._since) * (ended_s - self._now_s)
        span_s, count = ended_s - start_s, self._lengths.count
        return IdleStats(
            start_s, ended_s, self._events, self._inc, self._dec, len(self._seen),
            nodes or len(self._seen), self._most, node_s / span_s if span_s else 0.0,
            count, self._lengths.sum_s / count if count else 0.0, self._lengths.lengths(),
        )  # fmt: skip


def idle_stats(
    changes: Iterable[NodeChange], *, nodes: int | None = None, end_s: float | None = None
) -> IdleStats:
    """Return the statistics of a trace, in one pass.

    Parameters
    ----------
    changes : iterable of NodeChange
    nodes : int, optional
        Nodes of the machine; by default the number of nodes that are ever idle.
    end_s : float, optional
        End of the trace; by default its last change.
    """
    tally = IdleTally()
    deque(tally(changes), maxlen=0)
    return tally.stats(nodes=nodes, end_s=end_s)


class _Lengths:
    """A histogram of lengths with the edges :data:`MINUTES`."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self._edges_s = [60.0 * minutes for minutes in MINUTES]
        self._counts = [0] * (len(MINUTES) + 1)
        self._sums_s = [0.0] * (len(MINUTES) + 1)

    def add(self, lengths_s: list[float]) -> None:
        """Count lengths, many of which are equal."""
        last_s, slot = -1.0, 0
        for length_s in lengths_s:
            if length_s != last_s:
                last_s, slot = length_s, bisect.bisect_right(self._edges_s, length_s)
            self._counts[slot] += 1
            self._sums_s[slot] += length_s
            self.sum_s += length_s
        self.count += len(lengths_s)

    def lengths(self) -> tuple[Lengths, ...]:
        """Return the distribution."""
        found = []
        count, sum_s = 0, 0.0
        for minutes, more, more_s in zip(MINUTES, self._counts, self._sums_s, strict=False):
            count, sum_s = count + more, sum_s + more_s
            by_time = sum_s / self.sum_s if self.sum_s else 0.0
            found.append(Lengths(minutes, count / self.count if self.count else 0.0, by_time))
        return tuple(found)
