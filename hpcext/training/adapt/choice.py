"""The choice of a batch: a fit of the throughput model to timed steps, and its best goodput.

It follows Pollux, sections 3.2 and 4.1, and runs in a thread of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hpcext.training.adapt.configurations import BatchBounds, Configuration, Split

CONSTANT = 0.5
"""Assumed share of a pass's time that does not depend on its batch size, while only one size has
been tried; from the published agent (AdaptDL, ``goodput.py``). With 0, no larger batch would ever
look better."""

FURTHER = 2
"""Factor by which a pass may exceed the largest one so far, because neither its time nor its memory
is known."""

BETTER = 1.05
"""Factor over the present goodput that another batch size must be predicted to reach, because the
first steps after a change are slower, and fits vary."""


class Fit(NamedTuple):
    """The result of a fit.

    Attributes
    ----------
    throughput : tuple of float
        Parameters of :class:`hpcext.scaling.throughput.Throughput`.
    split : Split or None
        A better division of steps on these GPUs; None: the present one is as good.
    gpus : int
        Number of GPUs for which the fit was made.
    """

    throughput: tuple[float, ...]
    split: Split | None
    gpus: int


def best(
    times: Mapping[Configuration, float],
    start: tuple[float, ...] | None,
    *,
    bounds: BatchBounds,
    phi: float,
    gpus: int,
    nodes: int,
    now: Split,
) -> Fit:
    """Fit the throughput model, and find the best batch size for these GPUs.

    Parameters
    ----------
    times : Mapping[Configuration, float]
        Seconds per step; at least one entry.
    start : tuple of float or None
        Parameters of an earlier fit, from which to start.
    bounds : BatchBounds
    phi : float
        The noise scale.
    gpus, nodes : int
    now : Split
        The present division of steps on these GPUs.
    """
    # Imported here, since trainings that never fit, and ranks other than 0, need no SciPy.
    from hpcext.scaling.goodput import Goodput  # noqa: PLC0415
    from hpcext.scaling.throughput import Observations, Throughput, fit  # noqa: PLC0415

    columns = [np.array(column) for column in zip(*times, strict=True)]
    theta = fit(
        Observations(
            columns[0], columns[1], columns[2] * 1.0, columns[3], np.array(list(times.values()))
        ),
        Throughput(*start) if start else None,
        constant=CONSTANT,
        # The threads belong to the training.
        own_threads=False,
    )
    # Perhaps no pass as large as the present ones was timed, only halves of them.
    tried = max(now.per_gpu, *(way.per_gpu for way in times))
    room = max(FURTHER * tried, bounds.least_per_gpu)
    if bounds.most_per_gpu is not None:
        room = min(room, bounds.most_per_gpu)
    model = Goodput(theta, phi, *bounds._replace(most_per_gpu=room))
    choice = model.best(gpus, nodes)
    passes = now.passes(gpus)
    step_s = theta.step_s(gpus, nodes, now.per_gpu, passes - 1)
    goodput = float(now.total * model.statistical_efficiency(now.total) / step_s)
    split = None
    if float(choice.goodput) > BETTER * goodput:
        per_gpu, passes = int(choice.batch), int(choice.accumulation) + 1
        split = Split(min(gpus * per_gpu * passes, bounds.most_batch), per_gpu)
    return Fit(tuple(float(each) for each in theta), split, gpus)
