"""The part of a PyTorch session that adapts the batch; :mod:`hpcext.training.adapt` chooses it.

A measurement of the noise is summed over the ranks beside the next step, in the control group; a
new batch size comes with it. So all ranks change at the same boundary, and no step waits.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar, cast

import torch

from hpcext.training.accumulation import apart, samples_of, split
from hpcext.training.adapt import EVERY_S, MOST_TIMES, Agent
from hpcext.training.adapt.noise import Squares
from hpcext.training.adapt.ways import Bounds, Split
from hpcext.training.batching import ElasticBatches
from hpcext.training.learning_rate import RULES, Rates, Rule, adascale, legw
from hpcext.training.ranks import Ranks
from hpcext.training.session import Session as BaseSession
from hpcext.training.torch.noise import Squared
from hpcext.training.torch.parallel import Parallel
from hpcext.training.torch.state import TorchState

Batch = TypeVar("Batch")

NOISE = ("split", "differenced")
"""Ways to measure the noise in a step that is one pass of one GPU."""


class Adaptive(BaseSession):
    """Base class of PyTorch sessions that can adapt the batch."""

    device: torch.device
    _models: list[Parallel]
    _rates: Rates
    _agent: Agent | None = None
    _saved_agent: Mapping[str, Any] | None = None
    _squared: Squared
    _differenced = False
    # What this rank measured in the present step: the fields of Squares.
    _mine: tuple[float, float, float, float] | None = None
    _stepping_s: float | None = None
    _halved = False
    # Clock that times steps.
    _now: Callable[[], float] = staticmethod(time.monotonic)
    _counted: Ranks | None = None

    def adapt(
        self,
        batch_size: int,
        *,
        max_batch_size: int | None = None,
        gpu_batch_bounds: tuple[int, int | None] = (1, None),
        accumulate: bool = True,
        lr_rule: Rule | None = None,
        warm_up: int = 0,
        noise: str = "split",
        every_s: float = EVERY_S,
    ) -> None:
        """Choose the batch while training, for the best goodput on the GPUs at hand.

        Call it before :meth:`batch_sampler`, which then needs no size, and make the passes of a
        step in a loop over :meth:`microbatches`. The batch changes between two steps, on all ranks
        at once; each sample is still trained once in an epoch.

        Parameters
        ----------
        batch_size : int
            Samples in a step of all ranks for which the learning rate is meant: the first batch,
            and the smallest.
        max_batch_size : int, optional
            Most samples in a step; by default 32 times the first batch.
        gpu_batch_bounds : tuple of int
            Fewest and most samples of a rank in a pass; the most is what its memory has room for.
            None: no bound, but no pass is made more than twice as large as those before.
        accumulate : bool
            Whether a step may have several passes. It has where the first batch does not fit in
            one.
        lr_rule : {"adascale", "sqrt", "linear", "legw", "none"} or callable, optional
            How the learning rate follows, see :mod:`~hpcext.training.learning_rate`. By default
            "sqrt" where the first optimizer is Adam or alike, else "adascale".
        warm_up : int
            Steps over which a larger rate is reached. For "legw", which needs it, those of the
            first batch over which its own rate is reached.
        noise : {"split", "differenced"}
            How the noise of gradients is measured in a step that is one pass of one GPU, now and
            then. "split": by making it in two passes, if each has its fewest samples.
            "differenced": by the difference from the step before, which overestimates it in small
            problems.
        every_s : float
            Seconds between two choices and reports; at the beginning they are closer together.

        Raises
        ------
        ValueError
            A parameter is not valid, or this session cannot adapt.
        """
        if self._agent is not None:
            raise ValueError("adapt(): it has been called before")
        if self._walks:
            raise ValueError("adapt(): call it before batch_sampler, whose batches it chooses")
        state = cast(TorchState, self._state)
        optimizers = state.optimizers()
        if not optimizers:
            raise ValueError("adapt(): give the session its optimizer, Session(optimizer=...)")
        if state.sharded:
            raise ValueError("adapt(): the model is sharded; valid are models of parallel(model)")
        if noise not in NOISE:
            raise ValueError(f"adapt(noise={noise!r}): must be one of {', '.join(NOISE)}")
        if not every_s > 0:
            raise ValueError(f"adapt(every_s={every_s}): must be more than 0")
        bounds = _bounds(batch_size, max_batch_size, gpu_batch_bounds, accumulate)
        agent = Agent(bounds, self.world_size, every_s, self._now)
        self._squared = Squared(optimizers, self._loss_scale)
        self._follow_rates(agent, lr_rule, warm_up)
        self._agent, self._differenced = agent, noise == "differenced"
        optimizers[0].register_step_post_hook(self._optimized)
        if self._saved_agent is not None:
            self._agent.restore(self._saved_agent)

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples; None until it is known."""
        return self._agent.noise.phi() if self._agent else None

    @property
    def adapted_batch(self) -> int:
        """Samples in a step of all ranks, as :meth:`adapt` has chosen."""
        return self._adapting().split.total

    @property
    def progress(self) -> float:
        """Steps made, as initial-batch steps that teach as much; over all attempts."""
        return self._adapting().progress

    @property
    def statistical_epochs(self) -> float:
        """Epochs that would teach as much as the training so far at the first batch."""
        agent = self._adapting()
        lengths = [walk.length for walk in self._walks if isinstance(walk, ElasticBatches)]
        if not lengths:
            raise RuntimeError("statistical_epochs: no batch_sampler says how long an epoch is")
        return agent.progress * agent.bounds.initial_batch / lengths[0]

    def batch_sampler(self, data: Sized | int, **options: Any) -> ElasticBatches:
        """Make batches for this rank; without a size they are those that :meth:`adapt` chooses.

        Parameters
        ----------
        data : Sized or int
            The data set, or its length.
        **options
            Those of the base class.
        """
        agent = self._agent
        if agent is None or "global_batch" in options or "gpu_batch" in options:
            return super().batch_sampler(data, **options)
        agent.limit(data if isinstance(data, int) else len(data))
        batches = super().batch_sampler(data, global_batch=agent.split.total, **options)
        batches.adapted = True
        return batches

    def microbatches(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield the passes of a step, each with its share of the samples of this rank's batch.

        Multiply the mean loss of each by its share. Run both the forward and the backward pass
        inside the loop; what concerns the whole step (clipping, the optimizer) comes after it.

        Parameters
        ----------
        batch : tensor, or tuple, list or dict with tensors
            Tensors of shape (samples, ...).

        Yields
        ------
        part
            Of the same type as `batch`.
        share : float
            Its samples divided by those of `batch`.
        """
        agent = self._agent
        if self.world_size > 1 and not self._models:
            raise RuntimeError("microbatches(): needs a model from session.parallel(model)")
        samples = samples_of(batch)
        passes = self._passes(samples)
        measured = agent is not None and agent.due(self.step) and self._squared.ready
        alone = self.world_size == 1 and passes == 1
        if agent and measured and alone and not self._differenced and agent.halves(samples):
            passes, alone, self._halved = 2, False, True
        # Passes as even as possible: some layers need more than one sample.
        parts = split(batch, -(-samples // passes))
        counts = [samples_of(part) for part in parts]
        weight = self._weight_of_batch() / self.world_size
        pieces = spread = 0.0
        if measured:
            self._squared.watch()
        try:
            for number, part in enumerate(parts, start=1):
                share = counts[number - 1] / samples
                with contextlib.ExitStack() as stack:
                    for model in self._models if number < len(parts) else ():
                        stack.enter_context(apart(model))
                    yield part, share
                if measured and weight > 0:
                    pieces += 1.0
                    spread += weight * self._squared.take() / share
        finally:
            if measured:
                self._squared.leave()
        if measured and alone and self._differenced:
            self._by_difference(samples)
        elif measured:
            self._squared.forget()
            # The same on all ranks; rank 0's value is used, so that it agrees to the last bit.
            mean = self._squared.gradients() if self.rank == 0 else 0.0
            self._mine = pieces, samples if weight > 0 else 0, spread, mean

    def _by_difference(self, samples: int) -> None:
        told = self._squared.difference(samples)
        if told is not None:
            spread, mean, both = told
            self._mine = 2.0, both, spread, mean

    # At boundaries.

    def _boundary(self) -> bool:
        agent = self._agent
        if agent is None:
            return super()._boundary()
        due, hears = agent.due(self.step - 1), agent.hears(self.step - 1)
        self._stop_clock(agent, due=due, hears=hears)
        if due and not self._between_two():
            agent.measured(self.step)
        if hears:
            agent.heard(self.step)
        changed = self._heard(agent)
        regrouped = super()._boundary()
        if hears and not regrouped:
            self._tell(agent)
        self._mine = None
        if not changed and not regrouped:
            self._stepping_s = self._now()
        return changed or regrouped

    def _between_two(self) -> bool:
        """Return whether the next step is the second one of a difference."""
        return self.world_size == 1 and self._squared.waiting

    def _stop_clock(self, agent: Agent, *, due: bool, hears: bool) -> None:
        began_s, self._stepping_s = self._stepping_s, None
        halved, self._halved = self._halved, False
        if self.rank != 0:
            return
        if self.device.type == "cuda" and (hears or agent.due(self.step)):
            # Steps run asynchronously: wait for them before the window of timed steps ends.
            torch.cuda.synchronize(self.device)
        if due:
            agent.window()
            if halved and began_s is not None:
                agent.halved(self._now() - began_s, self._samples_before)
        elif began_s is not None:
            agent.timed(self._now() - began_s, self._samples_before)
            if hears:
                agent.window()

    def _heard(self, agent: Agent) -> bool:
        """Take in the summed measurements; return whether the batch size changes."""
        sums = self._ranks.summed()
        if sums is None:
            return False
        *measured, every, hearing, total, per_gpu = sums
        chosen = Split(round(total), round(per_gpu)) if total > 0 else None
        changed = agent.hear(Squares(*measured), chosen, round(every), round(hearing))
        if changed:
            self._resize_batches(agent)
        return changed

    def _tell(self, agent: Agent) -> None:
        """Begin to sum the measurements over the ranks, with the choice of rank 0."""
        measured = self._mine or (0.0, 0.0, 0.0, 0.0)
        said: tuple[int, ...] = (0, 0, 0, 0)
        if self.rank == 0:
            split = self._choose(agent)
            said = agent.wanted_every(), agent.wanted_hearing(split), *(split or (0, 0))
        self._ranks.begin_sum([float(number) for number in (*measured, *said)])

    def _choose(self, agent: Agent) -> Split | None:
        found = agent.look(self._now())
        if found is None:
            return None
        told = agent.report(found.throughput)
        if told["noise_scale"] is not None:
            self.report_goodput(**told)
        return found.split

    def _resize_batches(self, agent: Agent) -> None:
        for walk in self._walks:
            if isinstance(walk, ElasticBatches) and walk.adapted:
                walk.resize_batch(agent.split.total)

    def _end_turn(self) -> None:
        if self._turn is not None and self._agent is not None:
            self._samples_before = self._samples_of_turn()
        super()._end_turn()

    def _open(self, loader: Iterable[Batch]) -> tuple[Callable[[int], int], Iterator[Batch]]:
        if self._agent is not None and getattr(loader, "num_workers", 0) > 0:
            # A worker forked beside a thread may inherit locks that nobody releases.
            self._agent.rest()
        return super()._open(loader)

    def _work(self, samples: int) -> float:
        """Return the progress of a step, as samples of the first batch that teach as much.

        So the work that is left is the same whatever batches are chosen, and its rate is the
        goodput.
        """
        if self._agent is None:
            return super()._work(samples)
        return self._agent.progress * self._agent.bounds.initial_batch - self._done

    def _opened(self) -> None:
        super()._opened()
        self._stepping_s = None
        agent = self._agent
        # `is None`, because batches of which none is left, after an epoch's last step, are falsy.
        if agent is not None and (self._elastic is None or not self._elastic.adapted):
            raise ValueError(
                "batches(loader): the session adapts, and must choose the batches of this loader; "
                "give it batch_sampler=session.batch_sampler(data), without a size"
            )
        if agent is not None and self._counted is not self._ranks:
            self._counted = self._ranks
            agent.on_nodes(max(1, len(set(self._ranks.gather(platform.node().encode())))))

    def _follow_ranks(self) -> None:
        """Adapt to another number of ranks."""
        if self._agent is not None:
            self._agent.resized(self.world_size)
            self._squared.forget()
            self._resize_batches(self._agent)

    # Small parts.

    _samples_before = 0

    def _adapting(self) -> Agent:
        if self._agent is None:
            raise RuntimeError("the session does not adapt: call session.adapt(...) first")
        return self._agent

    def _passes(self, samples: int) -> int:
        """Return in how many passes this rank processes `samples` samples."""
        return self._agent.passes(samples) if self._agent else 1

    def _loss_scale(self) -> float:
        for value in cast(TorchState, self._state).objects.values():
            if isinstance(value, torch.amp.GradScaler) and value.is_enabled():
                return float(value.get_scale())
        return 1.0

    def _optimized(self, *_: Any) -> None:
        """Count a step of an optimizer; a gradient scaler did not skip it."""
        if self._agent is not None and self._turn is not None:
            self._agent.made(self._samples_of_turn())

    def _follow_rates(self, agent: Agent, rule: Rule | None, warm_up: int) -> None:
        if self._rates.follows:
            raise ValueError("adapt(): say lr_rule= here, and not Session(learning_rate=...)")
        if rule is None:
            rule = "sqrt" if self._squared.preconditioned else "adascale"
        if rule == "adascale":
            rule = adascale(agent.gain)
        elif rule == "legw":
            if warm_up < 1:
                raise ValueError(f"adapt(lr_rule='legw', warm_up={warm_up}): must be at least 1")
            # LEGW warms up by itself.
            rule, warm_up = legw(lambda: agent.progress, warm_up), 0
        elif not callable(rule) and rule not in RULES:
            valid = ", ".join((*RULES, "adascale", "legw"))
            raise ValueError(f"adapt(lr_rule={rule!r}): must be one of {valid}, or a function")
        rates = Rates(rule, warm_up, agent.bounds.initial_batch)
        rates.restore(self._rates.state())
        self._rates = rates

    def _facts(self) -> dict[str, Any]:
        adapted = self._agent.state() if self._agent else self._saved_agent
        return {**super()._facts(), "adapted": adapted}

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        super()._restore_facts(manifest)
        # The key is missing where a release that could not adapt wrote the manifest.
        self._saved_agent = manifest.get("adapted")
        if self._agent is not None and self._saved_agent is not None:
            self._agent.restore(self._saved_agent)
            self._resize_batches(self._agent)


def _bounds(
    batch_size: int,
    max_batch_size: int | None,
    gpu_batch_bounds: tuple[int, int | None],
    accumulate: bool,
) -> Bounds:
    least, room = gpu_batch_bounds
    most = MOST_TIMES * batch_size if max_batch_size is None else max_batch_size
    if batch_size < 1:
        raise ValueError(f"adapt(batch_size={batch_size}): must be at least 1")
    if most < batch_size:
        raise ValueError(f"adapt(max_batch_size={most}): must be at least batch_size, {batch_size}")
    if least < 1 or least > most or (room is not None and room < least):
        raise ValueError(
            f"adapt(gpu_batch_bounds={gpu_batch_bounds}): must be fewest and most samples of a "
            f"GPU in a pass, from 1 to max_batch_size, {most}"
        )
    return Bounds(batch_size, most, least, room, accumulate)
