"""Jobs with measured behaviour: one with the user's batch size, and one that adapts it.

Each is the :class:`~hpcext.sim.replay.physics.TrueSpeed` of one job: the user's training process,
which observes itself and no other job. The adaptive one contains Pollux's agent (Qiao et al.,
section 4.1).
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from hpcext.core.estimate import GoodputReport
from hpcext.scaling.goodput import Goodput
from hpcext.scaling.throughput import Observations, Throughput, fit
from hpcext.sim.replay.measured import MOST_NOISE, Application, Times
from hpcext.sim.replay.physics import SelfReport, Stretch, Where

CONSTANT = 0.5
"""Assumed share of a pass that does not depend on the batch while only one batch size was tried;
from the published agent (AdaptDL, ``goodput.py``), as the paper does not say."""


ALIKE = 0.1
"""Difference in the logarithm below which batches of a GPU count as one measurement; the published
agent keeps each batch, and fits its model again at every one."""


class Split(NamedTuple):
    """The division of a total batch: samples on each GPU in each pass, and passes in a step."""

    batch: int
    passes: int


def split(application: Application, total: int, gpus: int) -> Split:
    """Split a total batch over GPUs, in the fewest passes that fit (section 4.3).

    On a single GPU a batch above the initial one has at least two passes, because the noise scale
    cannot be measured with one (as in AdaptDL).

    Parameters
    ----------
    application : Application
    total : int
        Samples in a step.
    gpus : int
    """
    share = -(-total // gpus)
    passes = -(-share // application.most_per_gpu)
    if gpus == 1 and total > application.initial_batch:
        passes = max(2, passes)
    batch = -(-share // passes)
    return Split(max(1, min(batch, application.most_batch // (gpus * passes))), passes)


def step_s(times: Times, passes: int) -> float:
    """Return the seconds of an optimizer step of several passes, of which the last synchronises.

    Parameters
    ----------
    times : Times
        Of a step of one pass.
    passes : int
    """
    return times.step_s + (passes - 1) * times.pass_s


def packed(gpus: int, per_node: int) -> tuple[int, ...]:
    """Return the placement of GPUs on as few nodes as possible."""
    full, rest = divmod(gpus, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def _shared(rates: tuple[float, float], gpus: float) -> float:
    """Return the speed on a number of GPUs, given those on the whole numbers around it."""
    whole = max(1.0, gpus)
    low, high = rates
    return (low + (whole - math.floor(whole)) * (high - low)) * gpus / whole


class Fixed:
    """A training with one total batch; its work is samples, all of the same worth.

    Parameters
    ----------
    application : Application
    total : int
        Samples in a step.
    most : int, optional
        Largest number of GPUs on which it runs; by default as many as have samples.

    Attributes
    ----------
    work : float
        Samples of the whole training.
    most : int
        Largest number of GPUs on which it runs.
    """

    def __init__(self, application: Application, total: int, most: int | None = None) -> None:
        self._application, self._total = application, total
        fitting = total // application.least_per_gpu
        self.most = fitting if most is None else min(most, fitting)
        self.work = application.steps(total) * total

    def rate(self, gpus: tuple[int, ...]) -> float:
        """Return samples per second on GPUs of each node."""
        return self.stretch(Where(gpus), 0.0).rate

    def stretch(self, where: Where, done: float) -> Stretch:
        """Return a stretch of constant speed, to the end."""
        way = split(self._application, self._total, where.total)
        times = self._application.times(where.gpus, way.batch)
        samples = float(where.total * way.batch * way.passes)
        return Stretch(samples / step_s(times, way.passes), step_work=samples)

    def said(self, where: Where, done: float) -> SelfReport:
        """Return an empty report, because its efficiency does not matter to policies."""
        return SelfReport()

    def alone_s(self, gpus: float, per_node: int) -> float:
        """Return the seconds of the whole training alone on GPUs."""
        whole = max(1.0, gpus)
        low, high = (
            self.rate(packed(min(each, self.most), per_node))
            for each in (math.floor(whole), math.ceil(whole))
        )
        return self.work / _shared((low, high), min(gpus, self.most))


class Adaptive:
    """A training that chooses its batch by its own measurements.

    Its work is samples of the initial batch; other samples count by their relative progress. It
    reviews its measurements whenever it reports, at the end of each epoch, and when it gets other
    GPUs.

    Parameters
    ----------
    application : Application
    total : int, optional
        A fixed total batch; it measures nevertheless.
    most : int, optional
        Largest number of GPUs on which it runs; by default as many as have samples.
    blind : bool
        Whether it counts all samples as equal, whatever the batch: its speed is then its
        throughput.

    Attributes
    ----------
    work : float
        Work of the whole training.
    total : int or None
    most : int
        Largest number of GPUs on which it runs.
    """

    def __init__(
        self,
        application: Application,
        total: int | None = None,
        most: int | None = None,
        *,
        blind: bool = False,
    ) -> None:
        self._application, self.total, self._blind = application, total, blind
        fitting = (total or application.most_batch) // application.least_per_gpu
        self.most = fitting if most is None else min(most, fitting)
        self.work = application.work
        self._profile: dict[tuple[int, int, int], tuple[int, Times]] = {}
        self._theta: Throughput | None = None
        self._noise = 0.0
        self._where: Where | None = None
        self._way = Split(1, 1)
        self._since = 0.0

    def stretch(self, where: Where, done: float) -> Stretch:
        """Review the measurements, and return the stretch to the end of the epoch."""
        if where != self._where:
            # Its work on other GPUs was reviewed when it reported.
            self._where, self._since = where, done
        else:
            self._measure(done)
        self._way = self._chosen(where)
        epoch = self._application.epoch(done)
        times, total = self._times(), self._batch()
        gained = self._application.gain(total, epoch) * self._application.initial_batch
        return Stretch(
            gained / step_s(times, self._way.passes), self._application.end(epoch), gained
        )

    def said(self, where: Where, done: float) -> SelfReport:
        """Return its goodput, as far as it is known."""
        if where == self._where:
            self._measure(done)
        if self._theta is None:
            return SelfReport()
        application = self._application
        report = GoodputReport(
            noise_scale=self._noise,
            initial_batch=self.total or application.initial_batch,
            most_batch=self.total or application.most_batch,
            least_per_gpu=application.least_per_gpu,
            most_per_gpu=application.most_per_gpu,
            throughput=self._theta,
        )
        return SelfReport(report)

    def best_rate(self, gpus: tuple[int, ...], done: float) -> float:
        """Return work per second with the truly best batch, on GPUs of each node.

        Parameters
        ----------
        gpus : tuple of int
            GPUs of each node.
        done : float
            Work done, which determines the epoch.
        """
        application, count = self._application, sum(gpus)
        epoch = application.epoch(done)
        least = max(application.initial_batch, application.least_per_gpu * count)
        totals = np.geomspace(least, max(least, application.most_batch), 50).round().astype(int)
        rates = []
        for total in [self.total] if self.total else dict.fromkeys(totals.tolist()):
            way = split(application, total, count)
            seconds = step_s(application.times(gpus, way.batch), way.passes)
            batch = min(count * way.batch * way.passes, application.most_batch)
            rates.append(application.gain(batch, epoch) * application.initial_batch / seconds)
        return max(rates)

    def alone_s(self, gpus: float, per_node: int) -> float:
        """Return the seconds of the whole training alone, with the best batch of each epoch."""
        if self.total is not None:
            return Fixed(self._application, self.total, self.most).alone_s(gpus, per_node)
        application, whole = self._application, max(1.0, gpus)
        ends = [0.0, *(application.end(epoch) for epoch in range(application.epochs))]
        shapes = [packed(each, per_node) for each in (math.floor(whole), math.ceil(whole))]
        seconds = 0.0
        for begin, end in itertools.pairwise(ends):
            low, high = (self.best_rate(shape, begin) for shape in shapes)
            seconds += (end - begin) / _shared((low, high), gpus)
        return seconds

    def _measure(self, done: float) -> None:
        """Record measurements of the work done since the last review, if any."""
        where = self._where
        if where is None or done <= self._since:
            return
        self._since = done
        epoch = self._application.epoch(done)
        noise = math.inf if self._blind else self._application.noise_scale(self._batch(), epoch)
        self._noise = min(noise, MOST_NOISE)
        batch = self._way.batch
        key = (where.total, len(where.gpus), round(math.log(batch) / ALIKE))
        if key not in self._profile:
            self._profile[key] = batch, self._times()
            self._theta = fit(self._observations(), self._theta, constant=CONSTANT)

    def _chosen(self, where: Where) -> Split:
        """Return the best batch by the measurements (eq. 13); the initial one if there are none."""
        application, gpus = self._application, where.total
        if self.total is not None or self._theta is None:
            least = max(application.initial_batch, application.least_per_gpu * gpus)
            return split(application, self.total or least, gpus)
        model = Goodput(
            self._theta,
            self._noise,
            application.initial_batch,
            application.most_batch,
            application.least_per_gpu,
            application.most_per_gpu,
        )
        best = model.best(gpus, len(where.gpus))
        if not best.batch:
            return split(application, application.initial_batch, gpus)
        return Split(int(best.batch), int(best.accumulation) + 1)

    def _observations(self) -> Observations:
        """Return its measurements: steps of one pass, and the pass without synchronisation.

        Without synchronisation, the latter takes as long as a step on one GPU.
        """
        rows = []
        for (gpus, nodes, _), (batch, times) in self._profile.items():
            rows.append((gpus, nodes, batch, 0, times.step_s))
            rows.append((1, 1, batch, 0, times.pass_s))
        gpus_, nodes_, batch_, accumulation, seconds = map(np.array, zip(*rows, strict=True))
        return Observations(gpus_, nodes_, batch_.astype(float), accumulation, seconds)

    def _times(self) -> Times:
        """Return the times of a step with the present batch and GPUs."""
        assert self._where is not None
        return self._application.times(self._where.gpus, self._way.batch)

    def _batch(self) -> int:
        """Return the samples in a step with the present batch and GPUs."""
        assert self._where is not None
        batch = self._where.total * self._way.batch * self._way.passes
        return min(batch, self._application.most_batch)
