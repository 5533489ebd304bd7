"""The feature of a PyTorch session that adapts the batch by :mod:`hpcext.training.adapt`.

A measurement of the noise is summed over the ranks beside the next step, in the control group, and
a new batch size comes with it. So all ranks change at the same boundary, and no step waits.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from hpcext.training.accumulation import apart, samples_of, split
from hpcext.training.adapt import MOST_TIMES, PolluxAgent
from hpcext.training.adapt.configurations import BatchBounds, Split
from hpcext.training.adapt.noise import Squares
from hpcext.training.balance.balancing import Balancing
from hpcext.training.batching import ElasticBatches
from hpcext.training.feature import Feature
from hpcext.training.learning_rate import RULES, Rates, Rule, adascale, legw
from hpcext.training.ranks import Ranks
from hpcext.training.torch.framework import LearningRates, Torch
from hpcext.training.torch.noise import Squared, read

Batch = TypeVar("Batch")

NOISE = ("split", "differenced")
"""Ways to measure the noise in a step that is one pass of one GPU."""

UNPASSED = (
    "session.adapt(): no step goes through session.microbatches(batch), so the batch keeps its "
    "size; make the passes of a step in a loop over that: docs/goodput.md"
)


class Adapting(Feature):
    """The adaptation of the batch of a session, after :meth:`begin` was called.

    Parameters
    ----------
    framework : Torch
    rates : LearningRates
        The learning rates of the session, which follow the batch.
    balancing : Balancing
        The division of a step among unequal ranks.
    report : callable
        The session's ``report_goodput``.

    Attributes
    ----------
    agent : PolluxAgent or None
        The agent that chooses the batch; None: the batch is not adapted.
    clock : callable
        Clock that times steps, in seconds; to be set before :meth:`begin`.
    """

    def __init__(
        self,
        framework: Torch,
        rates: LearningRates,
        balancing: Balancing,
        report: Callable[..., object],
    ) -> None:
        self.agent: PolluxAgent | None = None
        self.clock: Callable[[], float] = time.monotonic
        self._framework, self._rates, self._balancing = framework, rates, balancing
        self._report = report
        self._saved: Mapping[str, Any] | None = None
        self._squared: Squared
        self._differenced = False
        # The measurement of this rank in the present step: the fields of Squares.
        self._mine: tuple[torch.Tensor | float, ...] | None = None
        # Whether the ranks get a message from rank 0 after this step.
        self._hears = False
        self._stepping_s: float | None = None
        self._samples_before = 0
        self._halved = False
        self._counted: Ranks | None = None
        self._passed = False  # by microbatches, or said not to be

    def begin(
        self,
        bounds: BatchBounds,
        *,
        lr_rule: Rule | None,
        warm_up: int,
        noise: str,
        every_s: float,
    ) -> None:
        """Begin to adapt; see :meth:`hpcext.training.torch.Session.adapt`."""
        if self.agent is not None:
            raise ValueError("adapt(): it was called before; call it once")
        if self.loop.walks:
            raise ValueError("adapt(): call it before batch_sampler, whose batches it chooses")
        optimizers = self._framework.state.optimizers()
        if not optimizers:
            raise ValueError("adapt(): give the session its optimizer, Session(optimizer=...)")
        if self._framework.state.sharded:
            raise ValueError("adapt(): the model is sharded; valid: models of parallel(model)")
        if noise not in NOISE:
            raise ValueError(f"adapt(noise={noise!r}): must be one of {', '.join(NOISE)}")
        if not every_s > 0:
            raise ValueError(f"adapt(every_s={every_s}): must be more than 0")
        size, device = self.coordinator.ranks.size, self._framework.device
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        agent = PolluxAgent(bounds, size, every_s, self.clock, kind)
        self._squared = Squared(optimizers, self._loss_scale)
        self._rates.rates = self._rates_for(agent, lr_rule, warm_up)
        self.agent, self._differenced = agent, noise == "differenced"
        optimizers[0].register_step_post_hook(self._optimized)
        if self._saved is not None:
            agent.restore(self._saved)

    def begun(self) -> PolluxAgent:
        """Return the agent; raise RuntimeError if there is none."""
        if self.agent is None:
            raise RuntimeError("the session does not adapt: call session.adapt(...) first")
        return self.agent

    def statistical_epochs(self) -> float:
        """Return the epochs at the first batch that would teach as much as the training so far."""
        agent = self.begun()
        lengths = [walk.length for walk in self.loop.walks if isinstance(walk, ElasticBatches)]
        if not lengths:
            raise RuntimeError("statistical_epochs: without a batch_sampler no epoch has a length")
        return agent.progress * agent.bounds.initial_batch / lengths[0]

    def resize_batches(self) -> None:
        """Make batches of the size that the agent has chosen."""
        for walk in self.loop.walks:
            if isinstance(walk, ElasticBatches) and walk.adapted and self.agent is not None:
                walk.resize_batch(self.agent.split.total)

    # The passes of a step.

    def microbatches(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield the passes of a step; see :meth:`hpcext.training.torch.Session.microbatches`."""
        self._passed = True
        size, models = self.coordinator.ranks.size, self._framework.models
        if size > 1 and not models:
            raise RuntimeError("microbatches(): needs a model from session.parallel(model)")
        samples = samples_of(batch)
        passes, measured = self._passes(samples)
        # Passes are as equal as possible, because some layers need more than one sample.
        parts = split(batch, -(-samples // passes))
        shares = [samples_of(part) / samples for part in parts]
        weight = self.loop.weight() / size
        # The squared norms of the passes' gradients, weighed by their samples.
        norms: list[torch.Tensor] = []
        with contextlib.ExitStack() as measuring:
            if measured:
                self._squared.watch()
                measuring.callback(self._squared.leave)
            for number, (part, share) in enumerate(zip(parts, shares, strict=True), start=1):
                with contextlib.ExitStack() as stack:
                    for model in models if number < len(parts) else ():
                        stack.enter_context(apart(model))
                    yield part, share
                if measured and weight > 0:
                    norms.append(weight * self._squared.take() / share)
        if measured:
            self._mine = self._measured(norms, samples, alone=size == 1 and passes == 1)

    def _passes(self, samples: int) -> tuple[int, bool]:
        """Return the number of passes of a step, and whether to measure the noise in it."""
        agent = self.agent
        if agent is None:
            return 1, False
        unequal = self._balancing.balance is not None
        passes = agent.unequal_passes(samples) if unequal else agent.passes(samples)
        measured = agent.due(self.coordinator.step) and self._squared.ready
        alone = self.coordinator.ranks.size == 1 and passes == 1
        if measured and alone and not self._differenced and agent.halves(samples):
            passes, self._halved = 2, True
        return passes, measured

    def _measured(
        self, norms: list[torch.Tensor], samples: int, *, alone: bool
    ) -> tuple[torch.Tensor | float, ...] | None:
        """Return the measurement of this rank in a step.

        Parameters
        ----------
        norms : list of torch.Tensor
            Weighed squared norms of its passes; none if its samples do not count.
        samples : int
            Samples of its batch.
        alone : bool
            Whether the step is one pass of one GPU, whose noise shows only beside the previous
            step.
        """
        if alone and self._differenced:
            told = self._squared.difference(samples)
            if told is None:
                return self._mine
            spread, mean, both = told
            return 2.0, both, spread, mean
        self._squared.forget()
        # The same on all ranks; rank 0's value is used, so that it is equal to the last bit.
        own = self._squared.gradients() if self.coordinator.ranks.rank == 0 else 0.0
        return float(len(norms)), samples if norms else 0, sum(norms), own

    # The hooks of a feature.

    def facts(self) -> dict[str, Any]:
        """Return the state of the agent."""
        return {"adapted": self.agent.state() if self.agent else self._saved}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Restore the state of the agent."""
        # The key is missing in manifests of releases that could not adapt.
        self._saved = manifest.get("adapted")
        if self.agent is not None and self._saved is not None:
            self.agent.restore(self._saved)
            self.resize_batches()

    def opening(self, loader: object, batches: ElasticBatches | None) -> None:
        """Wait for a running fit, if the loader forks workers."""
        if self.agent is not None and getattr(loader, "num_workers", 0) > 0:
            # A worker forked beside a thread may inherit locks that are never released.
            self.agent.rest()

    def opened(self) -> None:
        """Check that the loader's batches are those of the agent; count the nodes of the ranks."""
        self._stepping_s = None
        agent, batches, ranks = self.agent, self.loop.batches, self.coordinator.ranks
        if agent is None:
            return
        # `is None`, since batches of which none is left, after an epoch's last step, are falsy.
        if batches is None or not batches.adapted:
            raise ValueError(
                "batches(loader): the session adapts, and must choose the batches of this loader; "
                "give it batch_sampler=session.batch_sampler(data), without a size"
            )
        if self._counted is not ranks:
            self._counted = ranks
            agent.on_nodes(max(1, len(set(ranks.gather(platform.node().encode())))))

    def step_ends(self) -> None:
        """Record the samples of a step."""
        if self.agent is not None:
            self._samples_before = self.loop.samples()

    def work(self, samples: int) -> float | None:
        """Return the progress of a step, as samples of the first batch that teach as much.

        So the remaining work does not depend on the batches that are chosen, and its rate is the
        goodput.
        """
        if self.agent is None:
            return None
        return self.agent.progress * self.agent.bounds.initial_batch - self.coordinator.done

    def before_boundary(self) -> bool:
        """Process the measurements of all ranks; return whether the batch changes."""
        agent, step = self.agent, self.coordinator.step
        if agent is None:
            return False
        if not self._passed and step >= 5 and self.coordinator.ranks.rank == 0:
            self._passed = True
            self.coordinator.reporter.note(UNPASSED)
        due, self._hears = agent.due(step - 1), agent.hears(step - 1)
        self._stop_clock(agent, due=due)
        # The second step of a difference is measured next.
        if due and not (self.coordinator.ranks.size == 1 and self._squared.waiting):
            agent.measured(step)
        if self._hears:
            agent.heard(step)
        return self._heard(agent)

    def after_boundary(self, *, reopens: bool, resized: bool) -> None:
        """Send the measurement of this rank to the others, and begin to time the next step."""
        if self.agent is None:
            return
        if self._hears and not resized:
            self.tell(self.agent, self._mine)
        self._mine = None
        if not reopens:
            self._stepping_s = self.clock()

    def regrouped(self) -> None:
        """Adapt to another number of ranks."""
        if self.agent is not None:
            self.agent.resized(self.coordinator.ranks.size)
            self._squared.forget()
            self.resize_batches()

    # Small parts.

    def _stop_clock(self, agent: PolluxAgent, *, due: bool) -> None:
        began_s, self._stepping_s = self._stepping_s, None
        halved, self._halved = self._halved, False
        if self.coordinator.ranks.rank != 0:
            return
        device = self._framework.device
        if device.type == "cuda" and (self._hears or agent.due(self.coordinator.step)):
            # Steps run asynchronously, so wait for them before the window of timed steps ends.
            torch.cuda.synchronize(device)
        if due:
            agent.window()
            if halved and began_s is not None:
                agent.halved(self.clock() - began_s, self._samples_before)
        elif began_s is not None:
            agent.timed(self.clock() - began_s, self._samples_before)
            if self._hears:
                agent.window()

    def _heard(self, agent: PolluxAgent) -> bool:
        """Process the summed measurements; return whether the batch size changes."""
        sums = self.coordinator.ranks.summed()
        if sums is None:
            return False
        *measured, every, hearing, total, per_gpu = sums
        chosen = Split(round(total), round(per_gpu)) if total > 0 else None
        changed = agent.hear(Squares(*measured), chosen, round(every), round(hearing))
        if changed:
            self.resize_batches()
        return changed

    def tell(self, agent: PolluxAgent, mine: tuple[torch.Tensor | float, ...] | None) -> None:
        """Begin to sum the measurements over the ranks, with the choice of rank 0."""
        said: tuple[int, ...] = (0, 0, 0, 0)
        if self.coordinator.ranks.rank == 0:
            chosen = self.choose(agent)
            said = agent.wanted_every(), agent.wanted_hearing(chosen), *(chosen or (0, 0))
        measured = read(*(mine or (0.0, 0.0, 0.0, 0.0)))
        self.coordinator.ranks.begin_sum([float(number) for number in (*measured, *said)])

    def choose(self, agent: PolluxAgent) -> Split | None:
        """Return a better batch, if a fit has found one; report the result of the fit."""
        found = agent.look(self.clock())
        if found is None:
            return None
        told = agent.report(found.throughput)
        if told["noise_scale"] is not None:
            self._report(**told)
        return found.split

    def _loss_scale(self) -> float:
        for value in self._framework.state.objects.values():
            if isinstance(value, torch.amp.GradScaler) and value.is_enabled():
                return float(value.get_scale())
        return 1.0

    def _optimized(self, *_: Any) -> None:
        """Count a step of an optimizer that a gradient scaler did not skip."""
        if self.agent is not None and self.loop.in_step:
            self.agent.made(self.loop.samples())

    def _rates_for(self, agent: PolluxAgent, rule: Rule | None, warm_up: int) -> Rates:
        """Return the learning rates of the session, which follow the batches of the agent."""
        before = self._rates.rates
        if before.follows:
            raise ValueError("adapt(): use lr_rule= here, not Session(learning_rate=...)")
        if rule is None:
            rule = "sqrt" if self._squared.preconditioned else "adascale"
        if rule == "adascale":
            rule = adascale(agent.gain)
        elif rule == "legw":
            if warm_up < 1:
                raise ValueError(f"adapt(lr_rule='legw', warm_up={warm_up}): must be at least 1")
            # LEGW has a warm-up of its own.
            rule, warm_up = legw(lambda: agent.progress, warm_up), 0
        elif not callable(rule) and rule not in RULES:
            valid = ", ".join((*RULES, "adascale", "legw"))
            raise ValueError(f"adapt(lr_rule={rule!r}): must be one of {valid}, or a function")
        rates = Rates(rule, warm_up, agent.bounds.initial_batch)
        rates.restore(before.state())
        return rates


def bounds_of(
    batch_size: int,
    max_batch_size: int | None,
    gpu_batch_bounds: tuple[int, int | None],
    accumulate: bool,
) -> BatchBounds:
    """Return the bounds of a batch; raise ValueError if there are no such batches.

    Parameters
    ----------
    batch_size, max_batch_size, gpu_batch_bounds, accumulate
        As for :meth:`hpcext.training.torch.Session.adapt`.
    """
    least, room = gpu_batch_bounds
    most = MOST_TIMES * batch_size if max_batch_size is None else max_batch_size
    if batch_size < 1:
        raise ValueError(f"adapt(batch_size={batch_size}): must be at least 1")
    if most < batch_size:
        raise ValueError(f"adapt(max_batch_size={most}): must be at least batch_size, {batch_size}")
    if least < 1 or least > most or (room is not None and room < least):
        raise ValueError(
            f"adapt(gpu_batch_bounds={gpu_batch_bounds}): must be the fewest and the most samples "
            f"of a GPU in a pass, from 1 to max_batch_size, {most}"
        )
    return BatchBounds(batch_size, most, least, room, accumulate)
