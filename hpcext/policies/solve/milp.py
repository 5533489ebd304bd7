"""BFTrainer's division as the mixed-integer programme of the paper (Liu et al., Eq. 1-16).

It assigns idle nodes to trainers, with one binary variable for each pair. The optimum depends on
counts only, which :mod:`hpcext.policies.solve.apportion` finds exactly and faster; this module is
its reference in tests and measurements. Constraints that the kernel does not support are in
:mod:`hpcext.policies.solve.counting`, on the same solvers.

Where the paper leaves a choice, or its model works only with a change:

- PuLP silently omits SOS2 sets for CBC and HiGHS: Eq. 11-12 have a binary variable for each segment
  instead, and the weights are those of its two ends.
- The paper allows any M > |N|. Eq. 10 compares the change of a trainer with its opposite, so M is
  twice |N| here: with |N| + 1 no trainer changes by more than half of the nodes, and optima are
  lost. Eq. 4 also needs an M of at least `least`, which may exceed the number of nodes.
- A waiting trainer starts at no cost: f(0) = 0 in Eq. 16, as in the paper.
- Optimal maps are not unique; compare their values.

The paper's solver is Gurobi; here it is HiGHS or CBC, through PuLP. A search ends at a limit that
is the same on every machine, not after a time (section 3.6). It starts from the current map, and
never ends with a worse one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.policies.solve.solvers import NO_LIMIT, Programme, SearchLimit, Solver, find_solver
from hpcext.policies.solve.tables import Floats, Ints, ValueTable

Bools = NDArray[np.bool_]


class Trainer(NamedTuple):
    """A training that runs on any number of nodes between two bounds, or waits.

    Attributes
    ----------
    least, most : int
        N_min and N_max, 1 <= `least` <= `most`.
    speeds : mapping of int to float
        O(N) of Eq. 12 at the discretisation points, linear between them: nodes to samples/s,
        including 0 to 0, and the last at `most` or beyond. Any shape is allowed.
    up_s, down_s : float
        R_up and R_dw, the seconds without progress when it grows or shrinks.
    """

    least: int
    most: int
    speeds: Mapping[int, float]
    up_s: float
    down_s: float

    def speed(self, nodes: Ints | int) -> Floats:
        """Return samples/s on numbers of nodes, in the same shape."""
        points = sorted(self.speeds)
        return np.asarray(np.interp(nodes, points, [self.speeds[point] for point in points]))

    def gain(self, nodes: Ints | int, has: int, forward_s: float) -> Floats:
        """Return its part of Eq. 16, in samples, for numbers of nodes, in the same shape.

        Parameters
        ----------
        nodes : int or array of int
        has : int
            Nodes that it has now, C.
        forward_s : float
            T_fwd.
        """
        nodes = np.asarray(nodes)
        cost_s = np.select([nodes > has, nodes < has], [self.up_s, self.down_s], 0.0)
        gain: Floats = forward_s * self.speed(nodes) - self.speed(has) * cost_s
        return gain


def gain_table(trainer: Trainer, has: int, forward_s: float) -> ValueTable:
    """Return Eq. 16 of one trainer as a table for the exact kernel.

    Parameters
    ----------
    trainer : Trainer
    has : int
        Nodes that it has now, C.
    forward_s : float
        T_fwd, the time in which no node is expected to leave.
    """
    sizes = np.r_[0, trainer.least : trainer.most + 1]
    return ValueTable(sizes, trainer.gain(sizes, has, forward_s))


class MapAnswer(NamedTuple):
    """The result of a search for the best map.

    Attributes
    ----------
    map : array of bool, shape (J, N)
        x of the paper: trainer j has node n.
    counts : tuple of int
        Nodes of each trainer.
    value : float
        Eq. 16, in samples.
    bound : float
        An upper bound on any map; infinite if the solver states none.
    proven : bool
        Whether the map is proven optimal: its value is the bound, to `PROVEN`.
    """

    map: Bools
    counts: tuple[int, ...]
    value: float
    bound: float
    proven: bool


def solve_map(
    trainers: Sequence[Trainer],
    current: Bools,
    forward_s: float,
    limit: SearchLimit = NO_LIMIT,
    solver: Solver | None = None,
) -> MapAnswer:
    """Find the map of nodes to trainers that gains most until the next event (Eq. 16).

    Parameters
    ----------
    trainers : sequence of Trainer
    current : array of bool, shape (J, N)
        c of the paper: trainer j has node n now. A trainer that has lost nodes and has fewer than
        its `least` must have none here.
    forward_s : float
        T_fwd, the seconds in which no node is expected to leave.
    limit : SearchLimit
        If it ends the search, the better of the best map so far and `current` is the answer.
    solver : Solver, optional
        `highs` or `cbc`; by default that of :func:`find_solver`.

    Returns
    -------
    MapAnswer

    Raises
    ------
    ValueError
        A trainer, the map, the time or the limit is not valid; the message says which and why.
    HpcextError
        There is no solver, or it failed.
    """
    current = np.asarray(current)
    _check(trainers, current, forward_s)
    if not trainers:
        return MapAnswer(current, (), 0.0, 0.0, True)
    solver = solver or find_solver()
    programme = Programme()
    nodes = _map(programme, trainers, current, forward_s)
    search = programme.maximize(solver, limit)
    maps = [current]
    if search.found:
        found = [[each.varValue > 0.5 for each in row] for row in nodes]
        maps.append(np.array(found, dtype=bool).reshape(current.shape))
    # By Eq. 16 itself, not by the solver's value; of two equally good maps, nothing moves.
    values = [_gain(trainers, each, current, forward_s) for each in maps]
    value = max(values)
    best = maps[values.index(value)]
    proven = programme.proven(value, search.bound)
    counts = tuple(best.sum(axis=1).tolist())
    return MapAnswer(best, counts, value, max(value, search.bound), proven)


def _gain(trainers: Sequence[Trainer], chosen: Bools, current: Bools, forward_s: float) -> float:
    """Compute Eq. 16."""
    rows = zip(trainers, chosen.sum(axis=1), current.sum(axis=1).tolist(), strict=True)
    return math.fsum(float(each.gain(count, has, forward_s)) for each, count, has in rows)


class _Row(NamedTuple):
    """The symbols of one trainer in the equations: x_jn, c_jn, n_j, C_j, and M."""

    j: int
    trainer: Trainer
    nodes: list[Any]
    held: list[bool]
    count: Any
    has: int
    big: int


def _map(
    programme: Programme, trainers: Sequence[Trainer], current: Bools, forward_s: float
) -> list[list[Any]]:
    """Build the model of section 3.5; return its x_jn."""
    big = _big_m(trainers, current.shape[1])
    rows = []
    for j, (trainer, held) in enumerate(zip(trainers, current.tolist(), strict=True)):
        nodes = [programme.binary(f"x_{j}_{n}", has) for n, has in enumerate(held)]
        count = programme.real(f"n_{j}", len(held), sum(held))
        programme.hold(count == programme.sum(nodes))  # Eq. 2
        row = _Row(j, trainer, nodes, held, count, sum(held), big)
        _size(programme, row)
        _stay(programme, row)
        _speed(programme, row, forward_s)
        _cost(programme, row)
        rows.append(nodes)
    for column in zip(*rows, strict=True):
        programme.hold(programme.sum(column) <= 1)  # Eq. 5
    return rows


def _big_m(trainers: Sequence[Trainer], nodes: int) -> int:
    """Return M: at least twice a trainer's largest change (Eq. 10), and its `least` (Eq. 4)."""
    return max([2 * nodes, *(trainer.least for trainer in trainers)])


def _size(programme: Programme, row: _Row) -> None:
    """Add Eq. 4: no node, or N_min to N_max."""
    count, big = row.count, row.big
    low, high = (programme.binary(f"{name}_{row.j}", not row.has) for name in ("yl", "yu"))
    programme.hold(
        count >= row.trainer.least - big * low,
        count <= big * (1 - low),
        row.trainer.most >= count - big * high,
        count <= big * (1 - high),
    )


def _stay(programme: Programme, row: _Row) -> None:
    """Add Eq. 9-10: a trainer gains nodes or loses some, never both."""
    changes = [programme.binary(f"u_{row.j}_{n}", False) for n in range(len(row.nodes))]
    for x, c, u in zip(row.nodes, map(int, row.held), changes, strict=True):
        programme.hold(u <= x + c, u >= x - c, u >= c - x, u <= 2 - x - c)
    shrinks = programme.binary(f"z_{row.j}", False)
    grows = programme.sum(row.nodes) - row.has
    changed = programme.sum(changes)
    programme.hold(grows >= changed - row.big * shrinks, grows <= row.big * (1 - shrinks) - changed)


def _speed(programme: Programme, row: _Row, forward_s: float) -> None:
    """Add Eq. 11-12 and the first sum of Eq. 16: weights of the two points around n_j."""
    points = sorted(row.trainer.speeds)
    starts = [float(np.interp(row.has, points, unit)) for unit in np.eye(len(points))]
    weights = [programme.real(f"w_{row.j}_{i}", 1, start) for i, start in enumerate(starts)]
    # The segment that contains it; on a point, the one that begins there, if any.
    on = min(int(np.flatnonzero(starts)[0]), len(points) - 2)
    segments = [programme.binary(f"s_{row.j}_{i}", i == on) for i in range(len(points) - 1)]
    programme.hold(
        programme.sum(weights) == 1,
        programme.sum(weights, points) == row.count,
        programme.sum(segments) == 1,
    )
    for i, (weight, point) in enumerate(zip(weights, points, strict=True)):
        programme.hold(weight <= programme.sum(segments[max(0, i - 1) : i + 1]))
        programme.gain(weight, forward_s * row.trainer.speeds[point])


def _cost(programme: Programme, row: _Row) -> None:
    """Add Eq. 13-15 and the second sum of Eq. 16."""
    count, has, big = row.count, row.has, row.big
    up, down = (programme.binary(f"{name}_{row.j}", False) for name in ("zu", "zd"))
    programme.hold(
        count <= has + (big - has) * up,
        count >= (has + 1) * up,
        count <= has - 1 + (big - (has - 1)) * (1 - down),
        count >= has * (1 - down),
    )
    lost = float(row.trainer.speed(has))
    programme.gain(up, -lost * row.trainer.up_s)
    programme.gain(down, -lost * row.trainer.down_s)


def _check(trainers: Sequence[Trainer], current: Bools, forward_s: float) -> None:
    """Check the assumptions of the model."""
    if not (math.isfinite(forward_s) and forward_s >= 0):
        raise ValueError(f"forward_s is {forward_s}: must be finite, 0 or more")
    if current.ndim != 2 or len(current) != len(trainers) or current.dtype != np.bool_:
        raise ValueError(
            f"the current map is {current.dtype} of shape {current.shape}: must be bool, with a row"
            f" for each of {len(trainers)} trainers"
        )
    for j, (trainer, has) in enumerate(zip(trainers, current.sum(axis=1).tolist(), strict=True)):
        _check_trainer(j, trainer)
        if has and not trainer.least <= has <= trainer.most:
            raise ValueError(
                f"trainer {j} has {has} nodes: must be {trainer.least} to {trainer.most}, or none"
            )
    several = np.flatnonzero(current.sum(axis=0) > 1)
    if several.size:
        raise ValueError(
            f"node {several[0]} has {current[:, several[0]].sum()} trainers: at most 1"
        )


def _check_trainer(j: int, trainer: Trainer) -> None:
    least, most, speeds, *costs_s = trainer
    if not 1 <= least <= most:
        raise ValueError(f"trainer {j} runs on {least} to {most} nodes: must be 1 <= least <= most")
    if speeds.get(0) != 0 or min(speeds) < 0 or max(speeds) < most:
        raise ValueError(
            f"trainer {j} has speeds at {sorted(speeds)}: must be 0 to {most} nodes, none at 0"
        )
    if not all(math.isfinite(each) and each >= 0 for each in (*speeds.values(), *costs_s)):
        raise ValueError(f"trainer {j}: speeds and costs must be finite, 0 or more")
