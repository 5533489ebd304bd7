"""When there is room: the free units of a machine over time, as far as ends are stated.

A *column* is a group of alike nodes, whose units are the nodes that are free; or, where jobs share
nodes, one node, whose units are its free GPUs. A row is what is free from an instant on, until that
of the next row. Both backfilling policies and the simulated main queue plan with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Wanted(NamedTuple):
    """What a job wants.

    Attributes
    ----------
    nodes : int
    gpus : int
        GPUs on each node; they count only where a column is one node.
    columns : sequence of array of int
        The columns that it may use together, such as those of one kind of GPU; the first in each
        that have room are taken. Of several such sets it uses the one where it starts first.
    avoids : collection of int
        Columns that it gets last, where each is one node.
    """

    nodes: int
    gpus: int
    columns: Sequence[Ints]
    avoids: Collection[int] = ()


class Slot(NamedTuple):
    """When a job can start, and the units that it then takes of some columns."""

    start_s: float
    columns: Ints
    units: Ints


class Changes(NamedTuple):
    """Changes of the free units: at an instant so many more, or less, in a column."""

    times_s: Floats
    columns: Ints
    units: Ints


class Availability:
    """The free units of each column, from now on.

    Parameters
    ----------
    now_s : float
    free : array of int
        What is free now, by column.
    changes : Changes
        What becomes free, and when, all later than now. What is held by jobs that state no end
        never does.
    nodes : bool
        Whether each column is one node.
    """

    def __init__(self, now_s: float, free: Ints, changes: Changes, *, nodes: bool = False) -> None:
        self._nodes = nodes
        times, rows = np.unique(np.append(now_s, changes.times_s), return_inverse=True)
        self._times: Floats = times
        self._free: Ints = np.zeros((len(times), len(free)), dtype=np.int64)
        self._free[0] = free
        np.add.at(self._free, (rows[1:], changes.columns), changes.units)
        np.cumsum(self._free, axis=0, out=self._free)

    @property
    def idle(self) -> bool:
        """Whether anything is free now."""
        return bool((self._free[0] > 0).any())

    def earliest(self, wanted: Wanted, lasts_s: float) -> Slot | None:
        """Return the first slot for a job; None if that depends on jobs that state no end.

        Parameters
        ----------
        wanted : Wanted
        lasts_s : float
            Seconds that it holds what it takes; infinite if it does not state its end.
        """
        best: Slot | None = None
        for columns in wanted.columns:
            found = self._earliest(wanted, columns, lasts_s)
            if found is not None and (best is None or found.start_s < best.start_s):
                best = found
        return best

    def at(self, start_s: float, wanted: Wanted, lasts_s: float) -> Slot | None:
        """Return a slot for a job at this instant, if there is one; as for :meth:`earliest`."""
        first = int(self._times.searchsorted(start_s, side="right")) - 1
        for columns in wanted.columns:
            if len(chosen := self._choose(first, start_s + lasts_s, wanted, columns)):
                return _slot(start_s, columns, chosen)
        return None

    def now(self, wanted: Wanted, lasts_s: float) -> Slot | None:
        """Return a slot for a job that starts now; as for :meth:`earliest`."""
        if all(self._places(self._free[0, each], wanted) < wanted.nodes for each in wanted.columns):
            return None
        return self.at(float(self._times[0]), wanted, lasts_s)

    def take(self, slot: Slot, lasts_s: float) -> None:
        """Give a slot to a job."""
        first, stop = self._row(slot.start_s), self._row(slot.start_s + lasts_s)
        self._free[first:stop, slot.columns] -= slot.units

    def close(self, wanted: Wanted) -> None:
        """Keep everything that a job may use for it, since it is not known when it can start."""
        for columns in wanted.columns:
            self._free[:, columns] = np.minimum(self._free[:, columns], 0)

    def _earliest(self, wanted: Wanted, columns: Ints, lasts_s: float) -> Slot | None:
        times, size = self._times, len(self._times)
        enough = self._places(self._free[:, columns], wanted) >= wanted.nodes
        # For each row the next one, from it on, that has too little room.
        short = np.where(enough, size, np.arange(size))
        short = np.minimum.accumulate(short[::-1])[::-1]
        until_s = np.append(times, math.inf)[short]
        for row in np.flatnonzero(enough & (until_s >= times + lasts_s)):
            # Each row has room, but several columns must have it all the time.
            start_s = float(times[row])
            if len(chosen := self._choose(int(row), start_s + lasts_s, wanted, columns)):
                return _slot(start_s, columns, chosen)
        return None

    def _places(self, free: Ints, wanted: Wanted) -> Ints:
        """Count the nodes with room, in one row or in each."""
        if self._nodes:
            return np.asarray((free >= wanted.gpus).sum(axis=-1))
        return np.asarray(free.sum(axis=-1))

    def _choose(self, first: int, end_s: float, wanted: Wanted, columns: Ints) -> Ints:
        """Return the units to take of each column from a row on; empty if there are too few."""
        stop = max(int(self._times.searchsorted(end_s)), first + 1)
        least: Ints = self._free[first:stop, columns].min(axis=0)
        if self._nodes:
            usable = np.flatnonzero(least >= wanted.gpus)
            if len(usable) < wanted.nodes:
                return least[:0]
            # Those where it leaves the fewest free GPUs.
            tight, avoided = least[usable], np.isin(columns[usable], list(wanted.avoids))
            usable = usable[np.lexsort((tight, avoided))[: wanted.nodes]]
            chosen = np.zeros_like(least)
            chosen[usable] = wanted.gpus
            return chosen
        if least.sum() < wanted.nodes:
            return least[:0]
        before: Ints = np.cumsum(least) - least
        return np.clip(wanted.nodes - before, 0, least)

    def _row(self, when_s: float) -> int:
        """Return the row that begins at an instant, made if necessary; their number at no end."""
        at = int(self._times.searchsorted(when_s))
        if when_s < math.inf and (at == len(self._times) or self._times[at] != when_s):
            self._times = np.insert(self._times, at, when_s)
            self._free = np.insert(self._free, at, self._free[at - 1], axis=0)
        return at


def _slot(start_s: float, columns: Ints, chosen: Ints) -> Slot:
    taken = np.flatnonzero(chosen)
    return Slot(start_s, columns[taken], chosen[taken])
