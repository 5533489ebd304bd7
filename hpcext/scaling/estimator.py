"""Estimates of a job's speed and its end, from what the job states and reports.

No other module makes them, live or simulated. Nothing is remembered here: the same
:class:`~hpcext.core.estimate.Estimate` gives the same answer, so that a replayed journal leads to
the same decisions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcext.core.estimate import LEAST_PASS_S, Estimate, GoodputReport, Observed, Throughput
from hpcext.core.history.losses import Point
from hpcext.scaling import convergence, throughput
from hpcext.scaling.curve import interpolate
from hpcext.scaling.fitted import MOST, STEP, Floats, Seen, fit_pollux, modelled, rounded
from hpcext.scaling.goodput import MOST_TIMES, Goodput
from hpcext.scaling.identity import by_identity
from hpcext.scaling.kinds import curve_of


class GpuCounts(NamedTuple):
    """Numbers of GPUs, and of their nodes: two arrays of one shape. 0 GPUs are on 0 nodes."""

    gpus: NDArray[Any]
    nodes: NDArray[np.int64]

    @classmethod
    def on_one_node(cls, gpus: NDArray[Any]) -> GpuCounts:
        """Return these numbers of GPUs, each on one node."""
        return cls(gpus, (gpus > 0).astype(np.int64))


ONE = GpuCounts(np.array([1]), np.array([1]))


def speedups(
    known: Estimate, sizes: GpuCounts, kind: str = "", *, ring: bool = False
) -> Floats | None:
    """Return speeds as multiples of that on one GPU; None if no speed is known.

    If kinds of GPU are distinguished, that one GPU is of the kind on which the job is slowest, so
    that the values of different kinds are comparable. A kind for which nothing is stated is assumed
    to be as slow as that one. Without any statement, a kind that the job has not used is assumed to
    be as fast as the one that it used longest, or on which it last reported its throughput.

    If the job reports its goodput, that is its speed, with the best batch of each size
    (:mod:`~hpcext.scaling.goodput`). It needs the parameters of the throughput: those that the job
    reports, or else those fitted to measurements, if its work is in samples. Only steps with as
    many samples as the report allows count, and without any such step there is no goodput.

    Otherwise the speed is the stated one, interpolated linearly between its points and beyond them
    as in :func:`~hpcext.scaling.curve.interpolate`. Otherwise a model is fitted to measurements:
    Pollux's (:mod:`~hpcext.scaling.throughput`), by which a job is assumed to scale perfectly on
    sizes that it has not tried.

    With `ring` goodput is ignored, and the model is that of Capes et al.
    (:mod:`~hpcext.scaling.allreduce`), which does not consider nodes.

    If a curve does not begin at one GPU, speed is assumed to be proportional below its first point.

    Parameters
    ----------
    known : Estimate
    sizes : GpuCounts
    kind : str
        The kind of the GPUs; empty if kinds are not distinguished.
    ring : bool

    Returns
    -------
    array of float or None
        In the shape of the sizes.

    Examples
    --------
    >>> sizes = GpuCounts.on_one_node(np.array([0, 1, 2, 4]))
    >>> speedups(Estimate(stated={1: 4.0, 2: 6.0}), sizes).tolist()
    [0.0, 1.0, 1.5, 1.5]
    >>> kinds = {"a100": {1: 9.0, 2: 18.0}, "v100": {1: 4.0, 2: 6.0}}
    >>> speedups(Estimate(by_kind=kinds), sizes, "a100").tolist()
    [0.0, 2.25, 4.5, 4.5]
    """
    found, one = _speeds(known, sizes, ring, kind), _alone(known, ring)
    return None if found is None or one is None else found / one


def rate_alone(known: Estimate, *, ring: bool = False) -> float | None:
    """Return work per second on the GPU to which :func:`speedups` relates, or None.

    It is the speed that the job had for longest, scaled down to one GPU. Before a speed is
    measured, the stated curve is taken as work per second.

    Parameters
    ----------
    known : Estimate
    ring : bool
        As for :func:`speedups`.
    """
    if not known.observed:
        return _alone(known, ring)
    longest = max(known.observed, key=lambda each: each.seconds)
    sizes = GpuCounts(np.array([longest.gpus]), np.array([longest.nodes]))
    there = speedups(known, sizes, longest.kind, ring=ring)
    return None if there is None else longest.rate / float(there[0])


class Worth(NamedTuple):
    """The performance of a job that reports its goodput, on its present GPUs.

    Attributes
    ----------
    goodput : float
        Samples per second, converted to those of the initial batch.
    batch : int
        Samples in a step: as reported, or else the best number.
    statistical_efficiency : float
        Progress by a sample in that batch, relative to one in the initial batch.
    gain : float
        Relative gain in goodput with one more GPU, with the best batch of each.
    """

    goodput: float
    batch: int
    statistical_efficiency: float
    gain: float


def worth(known: Estimate, gpus: int, nodes: int, kind: str = "") -> Worth | None:
    """Return a job's goodput on these GPUs, from its reports; None if these do not suffice.

    Parameters
    ----------
    known : Estimate
    gpus, nodes : int
        GPUs in all, and the nodes on which they are.
    kind : str
    """
    model = _goodput(known, kind)
    if model is None or gpus < 1:
        return None
    now, more = _best(model, (gpus, gpus + 1), (nodes, nodes))
    if not now > 0:
        return None
    choice = model.best(gpus, nodes)
    batch = known.goodput.batch if known.goodput else None
    if batch is None:
        most = model.most_batch or MOST_TIMES * model.initial_batch
        batch = min(gpus * int(choice.batch) * (int(choice.accumulation) + 1), most)
    kept = model._replace(initial_batch=batch, most_batch=batch)
    efficiency = float(model.statistical_efficiency(batch))
    goodput = efficiency * float(_best(kept, (gpus,), (nodes,))[0])
    if not (goodput > 0 and math.isfinite(goodput + now + more)):
        return None
    return Worth(goodput, batch, efficiency, float(more / now) - 1.0)


def alone_s(known: Estimate, *, ring: bool = False) -> float | None:
    """Return the seconds until the job would be done on one GPU; None if unknown.

    Parameters
    ----------
    known : Estimate
    ring : bool
        As for :func:`speedups`.
    """
    left, rate = work_left(known), rate_alone(known, ring=ring)
    return None if left is None or rate is None else left / rate


def work_left(known: Estimate) -> float | None:
    """Return the remaining work, in the job's own unit; None if its end is unknown.

    It is as the job states, or else as its loss predicts until it reaches the job's target (Capes
    et al., eq. 1).
    """
    if known.work is not None:
        return max(0.0, known.work - known.done)
    if known.target_loss is None or not known.step:
        return None
    fitted = _convergence(known.losses)
    if fitted is None:
        return None
    steps = fitted.steps_to(known.target_loss).best - known.step
    if not math.isfinite(steps):
        return None
    return max(0.0, steps) * known.done / known.step


def _alone(known: Estimate, ring: bool) -> float | None:
    """Return the speed of `_speeds` on one GPU of the kind on which the job is slowest."""
    curves = known.by_kind.values() or ([known.stated] if known.stated else [])
    if curves and (ring or known.goodput is None):
        # Without arrays, because this is computed for every job in every decision.
        return min(map(_on_one, curves))
    seen = {each.kind for each in known.observed} | known.throughputs.keys()
    kinds = [*known.by_kind] or sorted(seen) or [""]
    found = [_speeds(known, ONE, ring, kind) for kind in kinds]
    return min((float(each[0]) for each in found if each is not None), default=None)


@by_identity
def _on_one(curve: Mapping[int, float]) -> float:
    return interpolate(curve, 1)


@by_identity
def _interpolated(curve: Mapping[int, float], gpus: NDArray[Any]) -> Floats:
    points, speeds = zip((0, 0.0), *sorted(curve.items()), strict=True)
    found: Floats = np.interp(gpus, points, speeds)
    found.setflags(write=False)
    return found


def _observed(known: Estimate, kind: str) -> tuple[Observed, ...]:
    """Return the observations on a kind, or else on the kind that was used longest."""
    seconds: dict[str, float] = {}
    for each in known.observed:
        seconds[each.kind] = seconds.get(each.kind, 0.0) + each.seconds
    if len(seconds) < 2:
        return known.observed
    there = kind if kind in seconds else max(seconds, key=seconds.__getitem__)
    return tuple(each for each in known.observed if each.kind == there)


def _speeds(known: Estimate, sizes: GpuCounts, ring: bool, kind: str) -> Floats | None:
    """Return speeds in any unit that is the same for all sizes and kinds."""
    if not ring and (model := _goodput(known, kind)) is not None:
        return _goodputs(model, sizes)
    if stated := curve_of(known.by_kind, kind) if known.by_kind else known.stated:
        return _interpolated(stated, sizes.gpus)
    if not known.observed:
        return None
    seen = rounded(_observed(known, kind))
    return _one(seen, ring) if sizes is ONE else modelled(seen, *sizes, ring=ring)


@functools.lru_cache(maxsize=4096)
def _one(seen: tuple[Seen, ...], ring: bool) -> Floats:
    """Return the speed to which all others are relative."""
    found = modelled(seen, *ONE, ring=ring)
    found.setflags(write=False)
    return found


def _goodput(known: Estimate, kind: str) -> Goodput | None:
    """Return the model of a job that reports goodput, if it can be predicted; else None."""
    said = known.goodput
    if said is None:
        return None
    if said.throughput is None:
        theta = _fitted(said, _observed(known, kind))
    else:
        theta = _reported(known, said.throughput, kind)
    # The reported parameters may be impossibly fast.
    if theta is None or theta.gradient_s(1.0) < LEAST_PASS_S:
        return None
    model = goodput_of(said, theta)
    return model if _best(model, (_fewest(model),), (1,))[0] > 0 else None


def _reported(known: Estimate, last: Throughput, kind: str) -> throughput.Throughput:
    """Return the throughput that was reported on a kind, or derive it from the last report.

    Only stated curves show how a kind compares on which nothing was reported.
    """
    if kind in known.throughputs:
        return throughput.Throughput(*known.throughputs[kind])
    theta = throughput.Throughput(*last)
    there = next((each for each, said in known.throughputs.items() if said == last), None)
    if there is None or not known.by_kind:
        return theta
    slower = _on_one(curve_of(known.by_kind, there)) / _on_one(curve_of(known.by_kind, kind))
    return theta._replace(alpha_grad=theta.alpha_grad * slower, beta_grad=theta.beta_grad * slower)


def goodput_of(said: GoodputReport, theta: throughput.Throughput) -> Goodput:
    """Return the goodput of a job by its report and the parameters of its throughput.

    Parameters
    ----------
    said : GoodputReport
    theta : Throughput
    """
    return Goodput(
        theta,
        said.noise_scale,
        said.initial_batch,
        said.most_batch,
        said.least_per_gpu,
        said.most_per_gpu,
        said.accumulates,
    )


def _fitted(said: GoodputReport, observed: Sequence[Observed]) -> throughput.Throughput | None:
    """Fit the throughput to steps with an allowed number of samples; None if there are none."""
    most = said.most_batch or MOST_TIMES * said.initial_batch
    # Work of 1 in a step means that the unit of work is steps, or unknown.
    low, high = (1 - STEP) * max(2, said.initial_batch), (1 + STEP) * most
    seen = rounded(tuple(each for each in observed if low <= each.batch <= high))
    return fit_pollux(seen) if seen else None


def _goodputs(model: Goodput, sizes: GpuCounts) -> Floats:
    """Return samples per second with the best batch, converted to those of the initial one.

    A job file may allow sizes on which the job cannot run by its report. There it is assumed to be
    as slow as on the fewest GPUs on which it can, and on fewer GPUs proportionally slower, because
    any size that a job has is of some use to it. Between whole numbers of GPUs, it is interpolated
    linearly.
    """
    low, high = np.floor(sizes.gpus).astype(np.int64), np.ceil(sizes.gpus).astype(np.int64)
    fewest = _fewest(model)
    least = _best(model, (fewest,), (1,))

    def whole(gpus: NDArray[np.int64]) -> Floats:
        nodes = np.clip(sizes.nodes, np.minimum(gpus, 1), gpus)
        found = _best(model, tuple(gpus.tolist()), tuple(nodes.tolist()))
        slower = np.minimum(gpus / fewest, 1.0)
        return np.where(found > 0, found, least * slower)

    below = whole(low)
    found: Floats = below + (sizes.gpus - low) * (whole(high) - below)
    return found


def _fewest(model: Goodput) -> int:
    """Return the fewest GPUs on which the initial batch fits; if none do, the job cannot run."""
    if model.most_per_gpu is None or model.accumulates:
        return 1
    return -(-model.initial_batch // model.most_per_gpu)


@functools.lru_cache(maxsize=4096)
def _best(model: Goodput, gpus: tuple[int, ...], nodes: tuple[int, ...]) -> Floats:
    found: Floats = model.best(np.array(gpus), np.array(nodes)).goodput
    found.setflags(write=False)
    return found


@functools.lru_cache(maxsize=4096)
def _convergence(losses: tuple[Point, ...]) -> convergence.Convergence | None:
    sensible = all(abs(point.loss) <= MOST for point in losses)
    return convergence.fit(losses) if sensible else None
