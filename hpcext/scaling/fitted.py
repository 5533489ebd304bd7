"""Speeds by models that are fitted to what steps of a job took.

Observations are rounded first, so that a model is not fitted again for a difference that no
scheduler could use, and each fit is made once.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.core.estimate import Observed
from hpcext.scaling import allreduce, throughput

Floats = NDArray[np.float64]

STEP = 0.02
"""Relative difference below which speeds are the same observation: no model is fitted again for a
difference that a scheduler could not use (:data:`hpcext.scaling.curve.NEAR_BEST`)."""

MOST = 1e15
"""Largest speed, batch, loss, and inverse of a speed; anything beyond is a mistake."""


class Seen(NamedTuple):
    """An observation at the precision that matters: the logarithm of the speed is rounded."""

    gpus: int
    nodes: int
    rate: float
    batch: float


@functools.lru_cache(maxsize=4096)
def rounded(observed: tuple[Observed, ...]) -> tuple[Seen, ...]:
    """Return observations at the precision that matters."""

    def step(number: float) -> float:
        # A job may report any number; an absurd one must not break a decision for all jobs.
        number = min(max(number, 1 / MOST), MOST)
        return math.exp(STEP * round(math.log(number) / STEP))

    return tuple(
        Seen(each.gpus, each.nodes, step(each.rate), step(each.batch)) for each in observed
    )


def modelled(
    seen: tuple[Seen, ...], gpus: NDArray[Any], nodes: NDArray[np.int64], *, ring: bool
) -> Floats:
    """Return work per second by the model that is fitted to observations.

    Parameters
    ----------
    seen : tuple of Seen
        At least one.
    gpus, nodes : array, of one shape
    ring : bool
        Whether the model is that of Capes et al. instead of that of Pollux.
    """
    running = np.maximum(gpus, 1)
    if ring:
        found = _ring(seen).speed(running)
    else:
        batches = _batch(seen, running)
        model = fit_pollux(seen)
        found = model.samples_per_s(running, np.maximum(nodes, 1), batches / running)
    return np.where(gpus > 0, found, 0.0)


@functools.lru_cache(maxsize=4096)
def fit_pollux(seen: tuple[Seen, ...]) -> throughput.Throughput:
    """Fit the throughput model of Pollux, section 3.2."""
    gpus = np.array([each.gpus for each in seen])
    batches = np.array([each.batch for each in seen])
    steps = throughput.Observations(
        gpus,
        nodes=np.array([each.nodes for each in seen]),
        batch=batches / gpus,
        accumulation=np.zeros(len(seen), dtype=np.int64),
        step_s=batches / np.array([each.rate for each in seen]),
    )
    found = throughput.fit(steps)
    alone = _batch(seen, np.ones(1))
    if float(found.samples_per_s(1, 1, alone)[0]) <= max(each.rate for each in seen) or 1 in gpus:
        return found
    # A job never seen on one GPU may seem to do nothing but synchronise, and would be infinitely
    # fast on one. In that case all of the measured time is attributed to computing.
    one = np.ones_like(gpus)
    return throughput.fit(steps._replace(gpus=one, nodes=one))


@functools.lru_cache(maxsize=4096)
def _ring(seen: tuple[Seen, ...]) -> allreduce.AllReduce:
    return allreduce.fit(
        np.array([each.gpus for each in seen]), np.array([each.rate for each in seen])
    )


def _batch(seen: tuple[Seen, ...], gpus: Floats) -> Floats:
    """Return the work of a step on numbers of GPUs, interpolated between measured ones.

    It may be constant, proportional to the GPUs, or anything else. Beyond the observations it stays
    constant, or proportional if it has been so far.
    """
    known = {each.gpus: each.batch for each in seen}
    points = sorted(known)
    if max(known.values()) == min(known.values()):
        return np.full(len(gpus), known[points[0]])
    per_gpu = [known[point] / point for point in points]
    if len(points) > 1 and max(per_gpu) - min(per_gpu) <= STEP * max(per_gpu):
        return per_gpu[0] * gpus
    found: Floats = np.interp(gpus, points, [known[point] for point in points])
    return found
