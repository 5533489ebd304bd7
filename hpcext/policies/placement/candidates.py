"""The jobs that may be given GPUs: their shapes on the nodes, and their speeds on these."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.core.values import Job, Snapshot
from hpcext.policies.common import ONE_NODE
from hpcext.policies.placement.machine import Widths, machine_of
from hpcext.policies.placement.place import Shape
from hpcext.scaling.estimator import GpuCounts, speedups
from hpcext.scaling.identity import by_identity

Counts = NDArray[np.int64]
Values = NDArray[np.float64]

Gpus = Mapping[str, int]
"""Number of GPUs by kind; see :class:`~hpcext.core.values.Node`."""


class On(NamedTuple):
    """The kind of GPUs that a value is for.

    Attributes
    ----------
    kind : str
    has : str
        The kind that the job has now; empty if it has no GPU.
    """

    kind: str = ""
    has: str = ""


class Candidate(NamedTuple):
    """A job that may be given GPUs: it has at least one shape.

    Attributes
    ----------
    job : Job
    shapes : Mapping[int, Shape]
        Shapes that it may have by their total number of GPUs, ascending.
    by_kind : Mapping[str, Mapping[int, Shape]]
        The shapes for each kind of GPU on which it may run; empty if all GPUs are alike.
    has : str
        The kind of GPU that it has now, as in :class:`On`.
    """

    job: Job
    shapes: Mapping[int, Shape]
    by_kind: Mapping[str, Mapping[int, Shape]] = {}
    has: str = ""

    @property
    def sizes(self) -> GpuCounts:
        """The sizes that the job may have, and 0."""
        return _sizes(self.shapes)

    def on(self, kind: str | None) -> Mapping[int, Shape]:
        """Return the shapes that the job may have on a kind; on any if it is None."""
        return self.by_kind.get(kind, {}) if self.by_kind and kind is not None else self.shapes

    def sizes_on(self, kind: str | None) -> GpuCounts:
        """Return the sizes that the job may have on a kind, and 0."""
        return _sizes(self.on(kind))

    def most(self, limit: int) -> int:
        """Return the largest size of the job within a limit; 0 if it has none."""
        return max((size for size in self.shapes if size <= limit), default=0)


@by_identity
def _sizes(shapes: Mapping[int, Shape]) -> GpuCounts:
    """Return the sizes as read-only arrays, which all jobs with the same shapes share."""
    gpus = np.array([0, *shapes], dtype=np.int64)
    nodes = np.array([0, *(shape.nodes for shape in shapes.values())], dtype=np.int64)
    gpus.setflags(write=False)
    nodes.setflags(write=False)
    return GpuCounts(gpus, nodes)


def only(kinds: Collection[str]) -> str:
    """Return the kind of all GPUs; empty if there are several."""
    return next(iter(kinds)) if len(kinds) == 1 else ""


def speeds(job: Job, sizes: GpuCounts, kind: str = "") -> Values:
    """Return a job's speeds on sizes, as multiples of its speed on one GPU.

    A job of unknown speed is assumed to scale linearly up to its best size.

    Parameters
    ----------
    job : Job
    sizes : GpuCounts
    kind : str
        The kind of the GPUs; empty if all are alike.
    """
    known = speedups(job.estimate, sizes, kind)
    if known is not None:
        return known
    most = job.optimal * (job.nodes or ONE_NODE)[1]
    return np.asarray(np.minimum(sizes.gpus, most), dtype=np.float64)


def asks_of(now: Snapshot, but: Collection[str] = ()) -> list[Candidate]:
    """Return the ready jobs except some, including those without a shape.

    Parameters
    ----------
    now : Snapshot
    but : collection of str
        Ids of the excepted jobs.
    """
    parts = machine_of(now.nodes).parts
    return [_ask(job, now, parts) for job in now.jobs if job.ready and job.id not in but]


def ask_of(job: Job, now: Snapshot) -> Candidate:
    """Return one job with its shapes, which may be none."""
    return _ask(job, now, machine_of(now.nodes).parts)


def _ask(job: Job, now: Snapshot, parts: Mapping[str, Widths]) -> Candidate:
    has = next((now.nodes[node].kind for node in job.goal or {}), "")
    by_kind = {
        kind: found
        for kind, widths in parts.items()
        if (found := _shapes(job.sizes, job.nodes or ONE_NODE, widths))
    }
    if len(parts) < 2:
        return Candidate(job, next(iter(by_kind.values()), {}), has=has)
    shapes: dict[int, Shape] = {}
    for each in by_kind.values():
        for size, shape in each.items():
            shapes[size] = min(shape, shapes.get(size, shape), key=lambda shape: shape.nodes)
    return Candidate(job, dict(sorted(shapes.items())), by_kind, has)


@functools.lru_cache(maxsize=1024)
def _shapes(sizes: tuple[int, ...], nodes: tuple[int, int], widths: Widths) -> Mapping[int, Shape]:
    """Return shapes by their total, ascending; of equal totals the one on the fewest nodes."""
    fewest, most = nodes
    wide = {size: sum(count for width, count in widths if width >= size) for size in sizes}
    found: dict[int, Shape] = {}
    for several in range(fewest, min(most, max(wide.values(), default=0)) + 1):
        for gpus in sizes:
            if several <= wide[gpus]:
                found.setdefault(gpus * several, Shape(gpus, several))
    return dict(sorted(found.items()))
