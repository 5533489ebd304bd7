"""Measured trainings: the time of their steps, and the progress by a step.

The format is that of the measurements published with Pollux (Qiao et al., OSDI 2021; section 5.3,
"simulator construction"). A folder has, for one model,

- ``placements.csv``, ``placement,local_bsz,step_time,sync_time``: seconds of an optimizer step and
  the part of them spent waiting for the synchronisation, by GPUs of each node (``24``: two of one
  node, four of another) and samples on each GPU;
- ``scalability.csv``, ``num_nodes,num_replicas,local_bsz,step_time,sync_time``: the same on more
  nodes, where only the number of GPUs is known;
- ``validation-BATCH.csv``, ``progress,iteration,metric,grad_sqr,grad_var``: a row for each epoch of
  a whole training with that total batch. ``progress`` is in steps of the smallest batch M0 that
  would have got as far, ``grad_var / grad_sqr * M0`` is the gradient noise scale.

All values are interpolated linearly between measurements.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcext.core.errors import InputError
from hpcext.scaling.throughput import Floats
from hpcext.sim.traces.lines import TableRow, place, table_of
from hpcext.text import clean
from hpcext.textfiles import read_text

PLACED = ("placement", "local_bsz", "step_time", "sync_time")
SCALED = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
VALIDATED = ("progress", "iteration", "metric", "grad_sqr", "grad_var")

MOST_COUNT = 1_000_000
"""Largest number of nodes, and of GPUs, in a measurement."""

MOST_NOISE = 1e12
"""Noise scale, in samples, for a measured gradient that is nothing but noise."""

ROUNDING = 1e-9
"""Relative tolerance for the end of an epoch."""


class Times(NamedTuple):
    """Seconds of an optimizer step of one pass, and of its synchronisation."""

    step_s: float
    sync_s: float

    @property
    def pass_s(self) -> float:
        """The seconds of a pass without synchronisation."""
        return self.step_s - self.sync_s


class Curve(NamedTuple):
    """Step and synchronisation times, seconds, by samples on each GPU, ascending."""

    batch: Floats
    step_s: Floats
    sync_s: Floats

    def at(self, batch: float) -> Times:
        """Interpolate linearly; extrapolate with the outermost segments."""
        if len(self.batch) == 1:
            return Times(float(self.step_s[0]), float(self.sync_s[0]))
        high = int(np.clip(np.searchsorted(self.batch, batch), 1, len(self.batch) - 1))
        low = high - 1
        share = (batch - self.batch[low]) / (self.batch[high] - self.batch[low])
        step_s, sync_s = (
            float(each[low] + share * (each[high] - each[low]))
            for each in (self.step_s, self.sync_s)
        )
        return Times(step_s, min(max(sync_s, 0.0), step_s))


class Gradients(NamedTuple):
    """Measurements of gradients over whole trainings.

    Attributes
    ----------
    batches : sequence of int
        Total batches of these trainings, ascending.
    ends : array of float, shape (epochs,)
        Progress at the end of each epoch, in steps of the smallest batch.
    sqr, var : array of float, shape (batches, epochs)
        Squared norm and variance of the gradient, the latter with the smallest batch.
    """

    batches: Sequence[int]
    ends: Floats
    sqr: Floats
    var: Floats


class Application:
    """A measured model.

    Parameters
    ----------
    name : str
    placed : Mapping[tuple of int, Curve]
        Curve by the GPUs on each node.
    spread : Mapping[int, Mapping[int, Curve]]
        Curve by number of nodes, then by total GPUs.
    gradients : Gradients
    most_per_gpu : int, optional
        Largest number of samples that fit on a GPU, if fewer than were measured.

    Attributes
    ----------
    initial_batch, most_batch : int
        The smallest and the largest total batch.
    least_per_gpu, most_per_gpu : int
        Samples on a GPU in a pass.
    widest : int
        GPUs of the largest node.
    most_nodes : int
    """

    def __init__(
        self,
        name: str,
        placed: Mapping[tuple[int, ...], Curve],
        spread: Mapping[int, Mapping[int, Curve]],
        gradients: Gradients,
        *,
        most_per_gpu: int | None = None,
    ) -> None:
        self.name = name
        self._placed, self._spread = placed, spread
        self._batches, self._ends, self._sqr, self._var = gradients
        self.initial_batch, self.most_batch = self._batches[0], self._batches[-1]
        self.least_per_gpu = int(min(curve.batch[0] for curve in placed.values()))
        measured = int(max(curve.batch[-1] for curve in placed.values()))
        self.most_per_gpu = min(measured, most_per_gpu or measured)
        self.widest = max(max(gpus) for gpus in placed)
        self.most_nodes = max(spread)
        self._times: dict[tuple[tuple[int, ...], int], Times] = {}

    @property
    def work(self) -> float:
        """The work of a whole training, in samples of the smallest batch."""
        return float(self._ends[-1]) * self.initial_batch

    @property
    def epochs(self) -> int:
        """The number of epochs of a whole training."""
        return len(self._ends)

    def epoch(self, done: float) -> int:
        """Return the epoch, from 0 on, of a training that has done this work."""
        progress = done / self.initial_batch * (1 + ROUNDING)
        return min(int(np.searchsorted(self._ends, progress, side="right")), self.epochs - 1)

    def end(self, epoch: int) -> float:
        """Return the work that is done at the end of an epoch."""
        return float(self._ends[epoch]) * self.initial_batch

    def gain(self, batch: float, epoch: int) -> float:
        """Return the progress by a step with a total batch, in steps of the smallest (eq. 6).

        Parameters
        ----------
        batch : float
            Samples in a step.
        epoch : int
        """
        sqr, var = self._gradient(batch, epoch)
        scale = batch / self.initial_batch
        rest = var / scale + sqr
        return (var + sqr) / rest if rest > 0 else 1.0

    def noise_scale(self, batch: float, epoch: int) -> float:
        """Return the measured noise scale with a total batch, in samples (eq. 5).

        Parameters
        ----------
        batch : float
            Samples in a step.
        epoch : int
        """
        sqr, var = self._gradient(batch, epoch)
        noise = var / sqr * self.initial_batch if sqr > 0 else math.inf
        return min(noise, MOST_NOISE)

    def steps(self, batch: float) -> float:
        """Return the steps of a whole training with a total batch."""
        lengths = np.diff(self._ends, prepend=0.0)
        gains = [self.gain(batch, epoch) for epoch in range(self.epochs)]
        return float(np.sum(lengths / np.array(gains)))

    def times(self, gpus: tuple[int, ...], batch: int) -> Times:
        """Return the times of a step on a placement.

        Parameters
        ----------
        gpus : tuple of int
            GPUs of each node, in any order.
        batch : int
            Samples on each GPU.
        """
        key = (gpus, batch)
        if key not in self._times:
            curve = self._placed.get(_turned(gpus))
            self._times[key] = curve.at(batch) if curve else self._between(gpus, batch)
        return self._times[key]

    def _between(self, gpus: tuple[int, ...], batch: int) -> Times:
        """Return the times on a placement that was not measured.

        They are interpolated between measured numbers of nodes with the same mean GPUs on each.
        """
        nodes, per_node = len(gpus), sum(gpus) / len(gpus)
        known = sorted(self._spread)
        if nodes >= known[-1]:
            return self._even(known[-1], per_node, batch)
        high = next(each for each in known if each >= nodes)
        low = max(each for each in known if each <= nodes)
        above, below = self._even(high, per_node, batch), self._even(low, per_node, batch)
        share = (nodes - low) / (high - low) if high > low else 0.0
        return _mixed(below, above, share)

    def _even(self, nodes: int, per_node: float, batch: int) -> Times:
        """Return the times on a measured number of nodes."""
        curves = self._spread[nodes]
        known, wanted = sorted(curves), per_node * nodes
        high = next((each for each in known if each >= wanted), known[-1])
        low = max((each for each in known if each <= wanted), default=high)
        share = (wanted - low) / (high - low) if high > low else 0.0
        return _mixed(curves[low].at(batch), curves[high].at(batch), share)

    def _gradient(self, batch: float, epoch: int) -> tuple[float, float]:
        """Interpolate squared norm and variance between the two nearest measured batches."""
        sqr, var = (
            float(np.interp(batch, self._batches, each[:, epoch]))
            for each in (self._sqr, self._var)
        )
        return sqr, var


def _mixed(below: Times, above: Times, share: float) -> Times:
    step_s, sync_s = (low + share * (high - low) for low, high in zip(below, above, strict=True))
    return Times(step_s, sync_s)


def _turned(gpus: tuple[int, ...]) -> tuple[int, ...]:
    """Rotate a ring of nodes to begin at its smallest number, as files name it."""
    return min(gpus[at:] + gpus[:at] for at in range(len(gpus)))


def read_application(folder: Path, *, most_per_gpu: int | None = None) -> Application:
    """Read the measurements of one model.

    Parameters
    ----------
    folder : pathlib.Path
    most_per_gpu : int, optional
        Largest number of samples that fit on a GPU, if fewer than were measured.

    Raises
    ------
    InputError
        A file is missing, or a line is not a measurement.
    """
    placed = _placements(folder / "placements.csv")
    means: dict[int, dict[int, list[Curve]]] = {}
    for gpus, curve in placed.items():
        means.setdefault(len(gpus), {}).setdefault(sum(gpus), []).append(curve)
    spread = {
        nodes: {gpus: _mean(curves) for gpus, curves in by_gpus.items()}
        for nodes, by_gpus in means.items()
    }
    for nodes, further in _scalability(folder / "scalability.csv").items():
        spread.setdefault(nodes, {}).update(further)
    gradients = _validations(folder)
    return Application(folder.name, placed, spread, gradients, most_per_gpu=most_per_gpu)


def _placements(path: Path) -> dict[tuple[int, ...], Curve]:
    points: dict[tuple[int, ...], list[tuple[float, ...]]] = {}
    for row in _rows(path, PLACED):
        text = row.cells["placement"]
        if not re.fullmatch(r"[1-9]+", text, re.ASCII):
            raise row.wrong("placement", "the GPUs of each node as digits, such as 24")
        points.setdefault(_turned(tuple(map(int, text))), []).append(_times(row))
    return {gpus: _curve(each, str(path)) for gpus, each in points.items()}


def _scalability(path: Path) -> dict[int, dict[int, Curve]]:
    points: dict[tuple[int, int], list[tuple[float, ...]]] = {}
    for row in _rows(path, SCALED):
        nodes, gpus = (row.whole(name, MOST_COUNT) for name in SCALED[:2])
        if gpus < nodes:
            raise InputError(
                f"{gpus} GPUs on {nodes} nodes", where=row.where, valid="at least one on each node"
            )
        points.setdefault((nodes, gpus), []).append(_times(row))
    found: dict[int, dict[int, Curve]] = {}
    for (nodes, gpus), each in points.items():
        found.setdefault(nodes, {})[gpus] = _curve(each, str(path))
    return found


def _times(row: TableRow) -> tuple[float, ...]:
    """Return the batch of a GPU, and the seconds of its step and of its synchronisation."""
    batch, step_s = (row.number(name, above=True) for name in ("local_bsz", "step_time"))
    return batch, step_s, row.number("sync_time")


def _validations(folder: Path) -> Gradients:
    named = {
        int(found[1]): path
        for path in folder.glob("validation-*.csv")
        if (found := re.fullmatch(r"validation-([1-9][0-9]{0,8})\.csv", path.name, re.ASCII))
    }
    if not named:
        where = clean(str(folder))
        raise InputError(
            "it has no validation-BATCH.csv", where=where, do="give another folder with --data"
        )
    progress, sqr, var = [], [], []
    for _, path in sorted(named.items()):
        rows = list(_rows(path, VALIDATED))
        progress.append([row.number("progress", above=True) for row in rows])
        _ascending(progress[-1], [row.where for row in rows])
        sqr.append([row.number("grad_sqr") for row in rows])
        var.append([row.number("grad_var") for row in rows])
    epochs = min(map(len, progress))
    arrays = (np.array([each[:epochs] for each in every]) for every in (progress, sqr, var))
    ends, sqrs, variances = arrays
    # Up to the progress of the slowest of them.
    return Gradients(sorted(named), ends.min(axis=0), sqrs, variances)


def _ascending(values: Sequence[float], places: Sequence[str]) -> None:
    for before, value, where in zip(values, values[1:], places[1:], strict=False):
        if value <= before:
            raise InputError(f"progress {value:g}", where=where, valid=f"more than {before:g}")


def _curve(points: Sequence[tuple[float, ...]], where: str) -> Curve:
    batch, step_s, sync_s = (np.array(each) for each in zip(*sorted(points), strict=True))
    if len(np.unique(batch)) < len(batch):
        raise InputError("a batch was measured twice on one placement", where=clean(where))
    return Curve(batch, step_s, np.minimum(sync_s, step_s))


def _mean(curves: Sequence[Curve]) -> Curve:
    """Average curves of placements with equal GPUs and nodes, on the batches that all have."""
    batch = functools.reduce(np.intersect1d, [curve.batch for curve in curves])
    if not len(batch):
        return curves[0]
    every = [
        [each[np.searchsorted(curve.batch, batch)] for each in (curve.step_s, curve.sync_s)]
        for curve in curves
    ]
    step_s, sync_s = np.mean(every, axis=0)
    return Curve(batch, step_s, sync_s)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[TableRow]:
    """Yield the rows of a file; check its header, and that it has rows."""
    table = table_of(path, enumerate(read_text(path).splitlines(), 1))
    if tuple(table.columns) != tuple(columns):
        what = f"its first line is {clean(','.join(table.columns))[:80]!r}"
        raise InputError(what, where=table.where, valid=",".join(columns))
    some = False
    for row in table.rows:
        some = True
        yield row
    if not some:
        raise InputError("it has no measurement", where=place(path, 2))
