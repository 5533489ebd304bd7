"""The generation of traces of idle nodes, after BFTrainer's Table 1 and Figure 1.

The figures of a machine are in :class:`MachineModel`. The rest follows from them:

- Changes are on a grid of ten seconds, the interval at which Summit was observed (section 2.1). In
  each of its steps nodes join, or leave, or both, with the probabilities by INC/h, DEC/h and
  events/h.
- The length of a fragment is a minute, the shortest in the real week, plus a Weibull time, with the
  two parameters for which 58 % of the fragments are under ten minutes and have 10 % of the
  node-time (Figure 1). With the week's own 59.5 and 13.3 % this gives the distribution of the week:
  at no length between 5 minutes and 4 hours is it off by more than 2.5 % of all fragments or
  node-time.
- Nodes join in groups of log-normal sizes: in the real week the 25th, 50th, 75th, 90th, 95th and
  99th
  percentile are 1, 4, 16, 50, 100 and 512, which means a sigma of 2. Their mean follows from
  eq-Nodes.
- A group leaves as a whole or in parts, as often as in the real week, where a group of g nodes had
  1 + 0.42 ln g parts on average and the largest was 83 % of it. A part leaves at that instant, of
  those at which nodes leave at all, that is nearest to the end of its time. So parts of several
  groups leave together, like nodes that one job takes.

The node numbers are random: in the real week those of a group are no more in sequence than random
ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcext.checks import unknown
from hpcext.sim.traces.idle import NodeChange
from hpcext.text import listed

STEP_S = 10.0
SHORTEST_S = 60.0
LONGEST_S = 7 * 86_400.0
"""Longest fragment; longer ones, one in two million, are shortened to this."""

GROUP_SIGMA = 2.0
LARGEST_GROUP = 0.6
"""Largest group as a share of the machine: 2,780 of 4,734 nodes in the real week."""

PARTS = 0.42
MOST_SHARE = 0.5
"""Largest share of the rest of a group that goes to the next part."""

WARM_UP_S = 86_400.0
"""Seconds for which the machine has run when the trace begins."""

CHUNK = 4096

TRIAL, ROUNDS = 50_000, 6
"""Groups in a trial of a machine, and number of trials to match its figures."""

Ints = NDArray[np.int64]


class MachineModel(msgspec.Struct, frozen=True):
    """The known figures of the idle nodes of a machine.

    Attributes
    ----------
    nodes : int
    inc_h, dec_h : float
        Number of times per hour that nodes join, and that nodes leave.
    eq_nodes : float
        Mean number of idle nodes.
    events_h : float or None
        Number of times per hour that either happens; None: as if the two were independent.
    short : float
        Share of the fragments that are under ten minutes.
    short_time : float
        Share of the node-time in these.
    """

    nodes: int
    inc_h: float
    dec_h: float
    eq_nodes: float
    events_h: float | None = None
    short: float = 0.58
    short_time: float = 0.10

    def resized(self, nodes: int) -> MachineModel:
        """Return the machine with another number of nodes, of which the same share is idle."""
        eq_nodes = self.eq_nodes * nodes / self.nodes
        return msgspec.structs.replace(self, nodes=nodes, eq_nodes=eq_nodes)


MACHINES = {
    # Section 2.1: 22,883 events in two weeks; in 14,049 of them nodes joined, in 10,573 some left.
    "summit": MachineModel(4608, 14_049 / 336, 10_573 / 336, 407, 22_883 / 336),
    # Table 1. It has no figures of the other machines' fragments: Figure 1 is Summit's.
    "summit-2-months": MachineModel(4608, 41.7, 28.6, 524),
    # From the published events of the first of these two weeks, which has fewer idle nodes.
    "summit-week-1": MachineModel(4608, 42.65, 31.24, 344.8, 68.31, 0.595, 0.133),
    "theta": MachineModel(4360, 6.3, 6.2, 547),
    "mira": MachineModel(49_152, 2.8, 2.4, 5071),
}
"""Machines by name; Theta and Mira have the nodes that follow from their eq-Nodes and ratio."""


def find_machine(name: str) -> MachineModel:
    """Return one of :data:`MACHINES`.

    Raises
    ------
    InputError
        There is no such machine.
    """
    if name not in MACHINES:
        raise unknown("machine", name, MACHINES, valid=listed(MACHINES))
    return MACHINES[name]


def generate(machine: MachineModel, seed: int, hours: float = math.inf) -> Iterator[NodeChange]:
    """Generate a trace of idle nodes.

    Parameters
    ----------
    machine : MachineModel
    seed : int
        Seed; equal seeds give equal traces.
    hours : float
        Length of the trace; it has no end by default.

    Yields
    ------
    NodeChange
        The first has the nodes that are idle at 0 s. Memory is bounded by the machine.
    """
    pool = _Pool(machine.nodes, np.random.default_rng([seed, 1]))
    end_s = WARM_UP_S + 3600 * hours
    begun = False
    for time_s, joined, left in _flow(machine, np.random.default_rng([seed, 0]), pool):
        if time_s > end_s:
            return
        if begun:
            yield NodeChange(time_s - WARM_UP_S, _ascending(joined), _ascending(left))
        elif time_s > WARM_UP_S:
            begun = True
            yield NodeChange(0.0, _ascending(pool.idle()), ())


def _ascending(parts: list[Ints]) -> tuple[int, ...]:
    if not parts:
        return ()
    nodes = np.concatenate(parts)
    nodes.sort()
    return tuple(nodes.tolist())


class _Pool:
    """The nodes of a machine: the busy ones in an array, the idle ones by the time they leave."""

    def __init__(self, nodes: int, rng: np.random.Generator) -> None:
        self._busy = rng.permutation(nodes)
        self._count = nodes
        self._rng = rng
        self._leaving: dict[float, list[Ints]] = {}

    def take(self, count: int, leave_s: float) -> Ints | None:
        """Make `count` nodes idle until `leave_s`; fewer, or None, if not enough are busy."""
        count = min(count, self._count)
        if not count:
            return None
        # Neighbours in the array, from a random position on; the last nodes fill the gap.
        first = int(self._rng.random() * (self._count - count + 1))
        taken: Ints = self._busy[first : first + count].copy()
        last = self._busy[max(first + count, self._count - count) : self._count]
        self._busy[first : first + len(last)] = last
        self._count -= count
        self._leaving.setdefault(leave_s, []).append(taken)
        return taken

    def release(self, now_s: float) -> list[Ints]:
        """Return the nodes that leave now, and make them busy again."""
        parts = self._leaving.pop(now_s, [])
        for part in parts:
            self._busy[self._count : self._count + len(part)] = part
            self._count += len(part)
        return parts

    def idle(self) -> list[Ints]:
        """Return all idle nodes."""
        return [part for parts in self._leaving.values() for part in parts]


def _flow(
    machine: MachineModel, rng: np.random.Generator, pool: _Pool
) -> Iterator[tuple[float, list[Ints], list[Ints]]]:
    """Yield the instants of changes without end, as (seconds, joined, left)."""
    model = _Model(machine)
    steps = _Steps(model, rng)
    while True:
        chunk = steps.next()
        sizes = model.sizes(rng, len(chunk.times))
        parts = 1 + rng.poisson(PARTS * np.log(sizes))
        lives = iter(model.lives(rng, int(parts[chunk.joins].sum())).tolist())
        shares = iter((MOST_SHARE * rng.random(int((parts - 1).sum()))).tolist())
        columns = (chunk.times, chunk.joins, sizes, parts)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for now_s, joins, size, count in rows:
            left = pool.release(now_s)
            joined = []
            if joins:
                for part in _cut(size, count, shares):
                    taken = pool.take(part, steps.leaving(now_s, next(lives)))
                    joined += [] if taken is None else [taken]
            if joined or left:
                yield now_s, joined, left


def _cut(size: int, count: int, shares: Iterator[float]) -> list[int]:
    """Cut a group into at most `count` parts; the first is usually the largest."""
    parts = []
    for _ in range(count - 1):
        part = round(size * next(shares))
        size -= part
        parts.append(part)
    return [part for part in (size, *parts) if part]


class _Model:
    """The distributions that follow from a machine's figures."""

    def __init__(self, machine: MachineModel) -> None:
        self._scale_s, self._shape = _fit_lives(machine.short, machine.short_time)
        self._most = max(1.0, LARGEST_GROUP * machine.nodes)
        self._inc_h = machine.inc_h
        self.slots_h, self._size_mu = machine.dec_h, 0.0
        # At some of the instants of leaving no node leaves, and fragments end a little earlier or
        # later than drawn. The differences, and the sizes that match the other figures, are found
        # by trial.
        for _ in range(ROUNDS):
            used, mean_h = self._trial()
            self._size_mu = _fit_sizes(machine.eq_nodes / machine.inc_h / mean_h, self._most)
            self.slots_h = machine.dec_h / used
        both_h = machine.inc_h * machine.dec_h * STEP_S / 3600
        if machine.events_h is not None:
            both_h = machine.inc_h + machine.dec_h - machine.events_h
        both_h /= used
        self.rates_h = (machine.inc_h - both_h, self.slots_h - both_h, both_h)

    def _trial(self) -> tuple[float, float]:
        """Return the share of instants at which some part leaves, and the mean fragment (hours)."""
        rng = np.random.default_rng(0)
        joins_s = np.cumsum(rng.exponential(3600 / self._inc_h, TRIAL))
        parts = 1 + rng.poisson(PARTS * np.log(self.sizes(rng, TRIAL)))
        begin_s = np.repeat(joins_s, parts)
        lives_s = self.lives(rng, len(begin_s))
        count = int(1.1 * joins_s[-1] * self.slots_h / 3600) + 100
        slots_s = np.cumsum(rng.exponential(3600 / self.slots_h, count))
        place = np.clip(slots_s.searchsorted(begin_s + lives_s), 1, len(slots_s) - 1)
        before_s, after_s = slots_s[place - 1], slots_s[place]
        nearer = (before_s > begin_s) & (2 * (begin_s + lives_s) < before_s + after_s)
        used = np.unique(np.where(nearer, place - 1, place)).size
        there = int(slots_s.searchsorted(joins_s[-1]))
        mean_s = (np.where(nearer, before_s, after_s) - begin_s).mean()
        return min(1.0, used / there), float(mean_s) / 3600

    def lives(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw the seconds for which parts of groups stay idle."""
        drawn = SHORTEST_S + self._scale_s * rng.weibull(self._shape, count)
        return np.asarray(np.minimum(drawn, LONGEST_S))

    def sizes(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw the sizes of groups."""
        from scipy.special import ndtr, ndtri  # noqa: PLC0415  (slow to import)

        top = ndtr((math.log(self._most) - self._size_mu) / GROUP_SIGMA)
        drawn = np.exp(self._size_mu + GROUP_SIGMA * ndtri(top * rng.random(count)))
        sizes: Ints = np.maximum(1, np.rint(drawn)).astype(np.int64)
        return sizes


def _fit_lives(short: float, short_time: float) -> tuple[float, float]:
    """Fit the scale, in seconds, and the shape of the Weibull part of a fragment's length."""
    from scipy.optimize import brentq  # noqa: PLC0415  (slow to import)
    from scipy.special import gamma, gammainc  # noqa: PLC0415

    edge_s = 600 - SHORTEST_S
    power = -math.log1p(-short)  # (edge / scale) ^ shape

    def scale_s(shape: float) -> float:
        return float(edge_s / power ** (1 / shape))

    def off(shape: float) -> float:
        # The partial expectation of a Weibull below its quantile is mean * P(1 + 1 / shape, power).
        mean_s = scale_s(shape) * gamma(1 + 1 / shape)
        carried = SHORTEST_S * short + mean_s * gammainc(1 + 1 / shape, power)
        return float(carried - short_time * (SHORTEST_S + mean_s))

    shape = float(brentq(off, 0.2, 5))
    return scale_s(shape), shape


def _fit_sizes(mean: float, most: float) -> float:
    """Fit the mu of the log-normal distribution, truncated at `most`, that has this mean."""
    from scipy.optimize import brentq  # noqa: PLC0415  (slow to import)
    from scipy.special import log_ndtr  # noqa: PLC0415

    def off(mu: float) -> float:
        edge = (math.log(most) - mu) / GROUP_SIGMA
        return float(
            mu + GROUP_SIGMA**2 / 2
            + log_ndtr(edge - GROUP_SIGMA) - log_ndtr(edge) - math.log(mean)
        )  # fmt: skip

    return float(brentq(off, -20, math.log(most) + 20))


class _Chunk(msgspec.Struct):
    """Instants, and masks of those at which groups join, and at which parts may leave."""

    times: NDArray[np.float64]
    joins: NDArray[np.bool_]
    leaves: NDArray[np.bool_]


class _Steps:
    """The instants of possible changes, drawn ahead up to the longest fragment."""

    def __init__(self, model: _Model, rng: np.random.Generator) -> None:
        total_h = sum(model.rates_h)
        self._chance = min(1.0, total_h * STEP_S / 3600)
        self._kinds = np.cumsum(model.rates_h) / total_h
        # A generator of its own, so that drawing further ahead does not change other results.
        self._rng = rng.spawn(1)[0]
        self._chunks: list[_Chunk] = []
        self._slots: NDArray[np.float64] = np.empty(0)
        self._last_s = 0.0

    def next(self) -> _Chunk:
        """Return the next few thousand instants."""
        while not self._chunks or self._last_s < self._chunks[0].times[-1] + 2 * LONGEST_S:
            gaps = STEP_S * self._rng.geometric(self._chance, CHUNK)
            times = self._last_s + np.cumsum(gaps)
            kind = np.searchsorted(self._kinds, self._rng.random(CHUNK), side="right")
            self._chunks.append(_Chunk(times, kind != 1, kind != 0))
            self._last_s = float(times[-1])
        self._slots = np.concatenate([chunk.times[chunk.leaves] for chunk in self._chunks])
        return self._chunks.pop(0)

    def leaving(self, now_s: float, life_s: float) -> float:
        """Return the instant of leaving after `now_s` that is nearest to the end of a life."""
        place = int(self._slots.searchsorted(now_s + life_s))
        after_s = float(self._slots[place])
        before_s = float(self._slots[place - 1]) if place else 0.0
        nearer = before_s > now_s and now_s + life_s - before_s < after_s - now_s - life_s
        return before_s if nearer else after_s
