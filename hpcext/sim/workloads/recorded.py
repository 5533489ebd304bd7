"""The jobs of a recording (:mod:`hpcext.sim.pilots.recording`), each as measured."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict, replace

from hpcext.core.estimate import Estimate, GoodputReport
from hpcext.core.values import Job
from hpcext.scaling.estimator import goodput_of as reported
from hpcext.scaling.goodput import MOST_TIMES, Goodput
from hpcext.scaling.throughput import Throughput
from hpcext.sim.pilots.recording import Adapting, CompletedJob, Recording
from hpcext.sim.replay.physics import Physics, SelfReport, Stretch, Where

FURTHER = 2
"""Factor by which a pass may exceed all before it (``hpcext.training.adapt``)."""


ROUNDING = 1e-9
"""Relative tolerance within which work has reached a point, because the rest takes no time."""


class BatchChoice(NamedTuple):
    """A batch: samples on all GPUs, samples on a GPU in a pass, passes before the last."""

    total: int
    per_gpu: int
    accumulation: int


def model_of(said: GoodputReport, noise: float) -> Goodput:
    """Return the goodput that a training reports, at a noise scale.

    Parameters
    ----------
    said : GoodputReport
        With its throughput.
    noise : float
        Noise scale, in samples.
    """
    assert said.throughput is not None
    return reported(said, Throughput(*said.throughput))._replace(noise_scale=noise)


def kept(model: Goodput, total: int, gpus: int, nodes: int) -> BatchChoice | None:
    """Return the fastest division of steps of `total` samples; None if there is none.

    Parameters
    ----------
    model : Goodput
    total : int
        Samples in a step.
    gpus, nodes : int
        GPUs in all, and their nodes.
    """
    best = model._replace(initial_batch=total, most_batch=total).best(gpus, nodes)
    per_gpu = int(best.batch)
    return BatchChoice(total, per_gpu, int(best.accumulation)) if per_gpu else None


def goodput_of(model: Goodput, choice: BatchChoice, gpus: int, nodes: int) -> float:
    """Return samples per second, converted to those of the initial batch.

    Parameters
    ----------
    model : Goodput
    choice : BatchChoice
    gpus, nodes : int
        GPUs in all, and their nodes.
    """
    step_s = model.throughput.step_s(gpus, nodes, choice.per_gpu, choice.accumulation)
    return float(choice.total * model.statistical_efficiency(choice.total) / step_s)


class Trained:
    """A training that chooses its batch, like a live one (:mod:`hpcext.training.adapt`).

    It uses its initial batch until it has measured as much as the recorded one had at its first
    report of its goodput. With each report after that, a pass may be twice as large as before.
    """

    def __init__(self, adapting: Adapting, work: float) -> None:
        self._said, self._pace = adapting.goodput, adapting.pace
        self._from = [done for done, _ in adapting.noise]
        self._models = [model_of(adapting.goodput, noise) for _, noise in adapting.noise]
        self._known_from, self._work = adapting.known_from, work
        self._tried = 1
        self._choice = BatchChoice(self._said.initial_batch, 1, 0)

    def stretch(self, where: Where, done: float) -> Stretch:
        """Return a stretch with the present best batch, until the noise changes."""
        done *= 1 + ROUNDING
        gpus, nodes, model = where.total, len(where.gpus), self._model(done)
        self._choice = self._chosen(model, gpus, nodes, known=done >= self._known_from)
        self._tried = max(self._tried, self._choice.per_gpu)
        rate = self._pace * goodput_of(model, self._choice, gpus, nodes)
        total = self._choice.total
        after = bisect.bisect_right(self._from, done)
        until = self._from[after] if after < len(self._from) else math.inf
        if done < self._known_from:
            until = min(until, self._known_from)
        return Stretch(rate, until, float(total * model.statistical_efficiency(total)))

    def said(self, where: Where, done: float) -> SelfReport:
        """Return its goodput, once that is known."""
        if done * (1 + ROUNDING) < self._known_from:
            return SelfReport()
        noise = self._model(done).noise_scale
        return SelfReport(replace(self._said, noise_scale=noise, batch=self._choice.total))

    def alone_s(self, gpus: float, per_node: int) -> float:
        """Return the seconds of the whole training alone, with the best batch at all times."""
        whole = max(1.0, gpus)
        counts = np.array([math.floor(whole), math.ceil(whole)])
        nodes = -(-counts // per_node)
        seconds, begins = 0.0, [0.0, *self._from[1:]]
        for begin, end in zip(begins, [*begins[1:], math.inf], strict=True):
            low, high = self._pace * self._model(begin).best(counts, nodes).goodput
            rate = (low + (whole - counts[0]) * (high - low)) * gpus / whole
            seconds += max(0.0, min(end, self._work) - begin) / float(rate)
        return seconds

    def _chosen(self, model: Goodput, gpus: int, nodes: int, *, known: bool) -> BatchChoice:
        most = model.most_batch or MOST_TIMES * model.initial_batch
        least = min(max(model.initial_batch, model.least_per_gpu * gpus), most)
        first = kept(model, least, gpus, nodes) or BatchChoice(least, max(1, -(-least // gpus)), 0)
        if not known:
            return first
        room = max(FURTHER * self._tried, first.per_gpu)
        if model.most_per_gpu is not None:
            room = min(room, model.most_per_gpu)
        best = model._replace(most_per_gpu=max(room, model.least_per_gpu)).best(gpus, nodes)
        per_gpu, accumulation = int(best.batch), int(best.accumulation)
        if not per_gpu:
            return first
        return BatchChoice(min(gpus * per_gpu * (accumulation + 1), most), per_gpu, accumulation)

    def _model(self, done: float) -> Goodput:
        return self._models[max(0, bisect.bisect_right(self._from, done) - 1)]


def recorded_jobs(recording: Recording) -> Iterator[tuple[Job, Physics]]:
    """Yield the jobs of a recording, each with its physics."""
    for order, ran in enumerate(recording.jobs):
        yield _job(ran, order), _physics(ran)


def _job(ran: CompletedJob, order: int) -> Job:
    stated = ran.stated
    known = Estimate(
        stated=stated.scaling, work=stated.work, up_s=stated.up_s, down_s=stated.down_s
    )
    return Job(
        ran.id,
        ran.name,
        order,
        ran.sizes,
        ran.optimal,
        nodes=ran.nodes,
        priority=ran.priority,
        weight=ran.weight,
        after=ran.after,
        suspend_timeout_s=ran.suspend_timeout_s,
        submitted_s=ran.submitted_s,
        estimate=known,
    )


def _physics(ran: CompletedJob) -> Physics:
    speed = ran.speed if ran.adapting is None else Trained(ran.adapting, ran.work)
    return Physics(speed, ran.work, **asdict(ran.costs))
