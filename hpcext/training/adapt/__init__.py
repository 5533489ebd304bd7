"""The agent of Pollux, section 4.1: chooses the batch size of a training from measurements.

It measures the noise scale of the gradients, and the time of steps by number of GPUs, nodes,
samples in a pass and passes. From these a thread repeatedly fits the throughput model of section
3.2, and finds the batch size with the highest goodput on the present GPUs (eq. 13).

The noise scale and the progress are the same on all ranks, because learning rates depend on them.
Timing, fitting and choosing happen on rank 0 alone, which tells the others. No framework is needed.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from hpcext.training.adapt.choice import Fit, best
from hpcext.training.adapt.configurations import BatchBounds, Configuration, Split, ceil
from hpcext.training.adapt.noise import LEAST, NoiseScale, Squares
from hpcext.training.adapt.timing import Timing
from hpcext.training.checkpoint import warn
from hpcext.training.checkpoint.staging import Writer

EVERY = 20
"""Steps between two measurements of the noise, after the first ones."""

LEAST_EVERY, LOOK_S = 5, 10.0
"""Fewest steps, and seconds, between two messages of rank 0 if steps are long."""

COST = 0.02
"""Share of the time that measurements may cost if a measured step is made in two passes instead of
one: if the time of a pass hardly depends on its batch, such a step takes twice as long."""

EVERY_S = 30.0
"""Seconds between two fits and reports, once the training has run for four times as long."""

SOON = 1
"""Steps between two messages of rank 0 while a fit is running or a new batch size is timed."""

SOONEST_S = 0.25
"""Seconds between two fits in a training that has just begun."""

REST_S = 0.002
"""Seconds between two checks for the end of a fit."""

MOST_TIMES = 32
"""Section 3.1: total batches up to this multiple of the initial one work well in most cases."""


class PolluxAgent:
    """The agent of one training: measures it, and chooses its batch size.

    Parameters
    ----------
    bounds : BatchBounds
    gpus : int
        Number of GPUs at the start.
    every_s : float
        Seconds between two fits and reports.
    clock : Callable[[], float]
        Clock that times steps, in seconds.
    device : str
        Kind of the GPUs; step times on one kind do not apply to another.

    Attributes
    ----------
    noise : NoiseScale
    split : Split
        The present division of steps.
    progress : float
        Steps made, as the number of initial-batch steps that teach as much (scale-invariant
        iterations).
    """

    def __init__(
        self,
        bounds: BatchBounds,
        gpus: int,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        device: str = "",
    ) -> None:
        self.bounds = bounds
        self._device = device
        self.noise = NoiseScale()
        self.progress = 0.0
        self.split = bounds.split(bounds.initial_batch, gpus)
        self._gpus, self._nodes = gpus, 1
        self._tried = self.split.per_gpu
        self._every_s = every_s
        self._taken, self._next_step, self._every = 0, 0, EVERY
        self._next_hearing, self._hearing = 0, EVERY
        self.timing = Timing()
        self._throughput: tuple[float, ...] | None = None
        # Measurements on other kinds of GPU, such as those in a checkpoint.
        self._elsewhere: dict[str, dict[str, Any]] = {}
        self._began_s = clock()
        self._look_at_s = 0.0
        self._thread = Writer("hpcext-fit")
        self._found: Fit | None = None
        self._complained = False

    # On all ranks alike.

    def due(self, step: int) -> bool:
        """Return whether to measure the noise in this step."""
        return step >= self._next_step

    def measured(self, step: int) -> None:
        """Record that the noise was measured; `step` is the next step.

        The first measurements are made in consecutive steps, then at growing intervals, because a
        batch cannot be chosen without a noise scale.
        """
        self._taken += 1
        first = max(self._taken, self.noise.count) < LEAST
        gap = 0 if first else 4 * max(1, self.noise.count + 1 - LEAST)
        self._next_step = step + min(self._every, gap)

    def hears(self, step: int) -> bool:
        """Return whether the ranks get a message from rank 0 after this step."""
        return step >= min(self._next_hearing, self._next_step)

    def heard(self, step: int) -> None:
        """Record that the ranks got a message from rank 0; `step` is the next step."""
        self._next_hearing = step + self._hearing

    def made(self, samples: int) -> None:
        """Record that the optimizer made a step of `samples` samples."""
        self.progress += self.gain(samples)

    def gain(self, samples: float, initial_batch: float | None = None) -> float:
        """Return the number of initial-batch steps that a step of `samples` samples is worth.

        Parameters
        ----------
        samples : float
        initial_batch : float, optional
            By default that of the bounds.
        """
        return self.noise.gain(samples, initial_batch or self.bounds.initial_batch)

    def passes(self, samples: int) -> int:
        """Return the number of passes in which a rank processes `samples` samples."""
        return ceil(samples, self.split.per_gpu)

    def unequal_passes(self, samples: int) -> int:
        """Return the number of passes of a step if ranks have unequal batches.

        It is the same as with equal batches, unless the largest batch needs more.
        """
        room = self.bounds.most_per_gpu or samples
        return max(self.split.passes(self._gpus), ceil(samples, room))

    def halves(self, samples: int) -> bool:
        """Return whether `samples` samples are enough for two passes."""
        return samples // 2 >= self.bounds.least_per_gpu

    def hear(
        self, squares: Squares, split: Split | None, every: int = EVERY, hearing: int = EVERY
    ) -> bool:
        """Process what all ranks measured together and what rank 0 chose.

        Parameters
        ----------
        squares : Squares
            Sums over all ranks.
        split : Split or None
            A new division of steps; None to keep the present one.
        every, hearing : int
            Steps until the next measurement, and until the next message.

        Returns
        -------
        bool
            Whether the batch size changes.
        """
        self.noise.add(squares)
        # If rank 0 asks for an earlier message, the ranks bring the next one forward.
        self._next_hearing += min(0, hearing - self._hearing)
        self._every, self._hearing = every, hearing
        if split is None or split == self.split:
            return False
        self._use_split(split)
        return True

    def resized(self, gpus: int) -> None:
        """Adapt to another number of GPUs; the total batch is kept as far as possible."""
        self._gpus = gpus
        self._use_split(self.bounds.split(self.split.total, gpus, self._tried))
        # The best choice depends on the number of GPUs, so fit again now.
        self._look_at_s = 0.0

    def limit(self, samples: int) -> None:
        """Limit the total batch to the number of samples in the data set."""
        most = max(self.bounds.initial_batch, min(self.bounds.most_batch, samples))
        self.bounds = self.bounds._replace(most_batch=most)
        if self.split.total > most:
            self._use_split(self.bounds.split(most, self._gpus, self._tried))

    # On rank 0.

    def on_nodes(self, nodes: int) -> None:
        """Record the number of nodes that the GPUs are on."""
        self._nodes = nodes

    def timed(self, step_s: float, samples: int) -> None:
        """Record the duration of a step without a measurement.

        Parameters
        ----------
        step_s : float
            Seconds of the step.
        samples : int
            Samples of all GPUs in the step.
        """
        if samples == self.split.total:
            self.timing.timed(step_s)

    def halved(self, step_s: float, samples: int) -> None:
        """Record the duration of a measured step that one GPU made in two passes.

        It shows which part of the time of a pass does not depend on its batch size, before another
        size is tried.

        Parameters
        ----------
        step_s : float
            Seconds of the step.
        samples : int
            Samples of all GPUs in the step.
        """
        if samples == self.split.total:
            self.timing.halved(step_s, self._half())

    def window(self) -> None:
        """Add the mean duration of the steps since the last call to the profile."""
        accumulation = self.split.passes(self._gpus) - 1
        self.timing.add(Configuration(self._gpus, self._nodes, self.split.per_gpu, accumulation))

    def _half(self) -> Configuration:
        return Configuration(1, 1, ceil(self.split.per_gpu, 2), 1)

    def wanted_every(self) -> int:
        """Return the steps between two measurements that suit the duration of steps."""
        step_s = self.timing.last_s
        if not step_s > 0:
            return EVERY
        every = max(LEAST_EVERY, int(min(LOOK_S / step_s, EVERY)))
        halved_s = self.timing.halves.times().get(self._half())
        if halved_s is None or self._gpus > 1 or self.split.passes(1) > 1:
            return every
        return max(every, math.ceil((halved_s / step_s - 1.0) / COST))

    def wanted_hearing(self, chosen: Split | None = None) -> int:
        """Return the number of steps after which rank 0 should send its next message.

        It is small while a fit may end, or while the batch size that was chosen last has not been
        timed.
        """
        known = self._throughput is not None and not self.timing.fresh and chosen is None
        pending = self._thread.busy() or self._found is not None or not known
        return SOON if pending else EVERY

    def look(self, now_s: float) -> Fit | None:
        """Return the result of a fit that has ended since the last call; begin one that is due.

        It never waits and never raises: if a fit fails, the training keeps its batch size.
        """
        found = None
        if self._thread.ended():
            try:
                self._thread.wait()
                found, self._found = self._found, None
            except Exception as error:
                self._complain(f"the batch keeps its size: no model fits the step times ({error})")
        elif self._thread.busy():
            return None
        if found is not None:
            self._throughput = found.throughput
            if found.gpus != self._gpus:
                found = found._replace(split=None)
        self._begin(now_s)
        return found

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            warn(text)

    def rest(self) -> None:
        """Wait until no fit is running."""
        while self._thread.busy():
            time.sleep(REST_S)

    def _begin(self, now_s: float) -> None:
        phi, times = self.noise.phi(), self.timing.times()
        here = any(way.gpus == self._gpus for way in times)
        if now_s < self._look_at_s or phi is None or not here:
            return
        age_s = max(0.0, now_s - self._began_s)
        self._look_at_s = now_s + min(self._every_s, max(SOONEST_S, age_s / 4))
        question = functools.partial(
            best,
            times,
            self._throughput,
            bounds=self.bounds,
            phi=phi,
            gpus=self._gpus,
            nodes=self._nodes,
            now=self.split,
        )

        def answer() -> None:
            self._found = question()

        self._thread.start(answer)

    def report(self, throughput: tuple[float, ...]) -> dict[str, Any]:
        """Return the keyword arguments for ``report_goodput``."""
        return {
            "noise_scale": self.noise.phi(),
            "throughput": throughput,
            "batch": self.split.total,
            **self.bounds._asdict(),
        }

    def _use_split(self, split: Split) -> None:
        self.split, self._tried = split, max(self._tried, split.per_gpu)
        self.timing.change()

    # In checkpoints.

    def state(self) -> dict[str, Any]:
        """Return the state of the agent as JSON values."""
        return {
            "noise": self.noise.state(),
            "progress": self.progress,
            "gpus": self._gpus,
            "split": list(self.split),
            "tried": self._tried,
            "taken": self._taken,
            "next_step": self._next_step,
            "every": self._every,
            "next_hearing": self._next_hearing,
            "hearing": self._hearing,
            "device": self._device,
            **self._measured(),
            "elsewhere": self._elsewhere,
        }

    def _measured(self) -> dict[str, Any]:
        return {**self.timing.state(), "throughput": self._throughput}

    def _restore_measured(self, saved: Mapping[str, Any]) -> None:
        self.timing.restore(saved)
        told = saved["throughput"]
        self._throughput = None if told is None else tuple(told)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, for the present GPUs and bounds."""
        self.noise = NoiseScale.of(saved["noise"])
        self.progress = saved["progress"]
        self.split, self._tried = Split(*saved["split"]), saved["tried"]
        # An earlier release did not count the measurements that it had begun.
        self._taken = saved.get("taken", self.noise.count)
        self._next_step, self._every = saved["next_step"], saved["every"]
        self._next_hearing, self._hearing = saved["next_hearing"], saved["hearing"]
        # An earlier release did not record the kind of GPU on which it measured.
        there = saved.get("device", self._device)
        self._elsewhere = dict(saved.get("elsewhere", {}))
        here = saved if there == self._device else self._elsewhere.pop(self._device, None)
        if here is not saved:
            self._elsewhere[there] = {key: saved[key] for key in self._measured()}
        if here is not None:
            self._restore_measured(here)
        low, high = self.bounds.initial_batch, self.bounds.most_batch
        room = self.bounds.most_per_gpu or self.split.per_gpu
        fits = low <= self.split.total <= high and self.split.per_gpu <= room
        if saved["gpus"] != self._gpus or not fits:
            self.resized(self._gpus)
