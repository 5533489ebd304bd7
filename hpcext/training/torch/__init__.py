"""The session for PyTorch: one process, or DistributedDataParallel under torchrun.

Six lines make a script suspendable and resumable::

    from hpcext.training.torch import Session

    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    model = session.parallel(model)
    loader = DataLoader(data, batch_sampler=session.batch_sampler(data, global_batch=64))
    for epoch in session.epochs(5):
        for x, y in session.batches(loader):
            ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

import torch

from hpcext.training.accumulation import accumulated, microbatches, split
from hpcext.training.adapt import EVERY_S
from hpcext.training.balance.balancing import Balances, Balancing
from hpcext.training.batching import ElasticBatches
from hpcext.training.feature import Parts
from hpcext.training.learning_rate import Rates, Rule
from hpcext.training.session import Session as BaseSession
from hpcext.training.torch.adapt import Adapting, bounds_of
from hpcext.training.torch.balance import Weighing
from hpcext.training.torch.framework import FirstSteps, LearningRates, Torch
from hpcext.training.torch.mending import Guard
from hpcext.training.torch.resizing import InPlace
from hpcext.training.torch.sharding import Sharding, shard

Batch = TypeVar("Batch")

__all__ = ["Session", "accumulated", "microbatches", "shard", "split"]


class Session(Balances, BaseSession):
    """A session that makes a PyTorch training loop resumable.

    See :class:`hpcext.training.session.Session`. Under torchrun it joins the process group, unless
    the script has done so before (then make the session after ``init_process_group``;
    :meth:`parallel` is not needed if the script wraps its model itself).

    Parameters
    ----------
    deterministic : bool
        Whether weights are bit-identical however often training is interrupted at one number of
        ranks: with deterministic algorithms, DDP without the rebuilding of its buckets after the
        first step, and the number of threads with which the training began. This is slower.
    learning_rate : {"linear", "sqrt", "none"} or callable, optional
        How the learning rates follow the global batch of a :meth:`batch_sampler`, see
        :class:`~hpcext.training.learning_rate.Rescale`. By default they do not change.
    warm_up : int
        Steps over which a larger learning rate is reached.
    copy_every_steps : int, optional
        Steps between two copies of a sharded model in the memory of other ranks, from which it goes
        on when ranks die, if they are replaced: so many steps may be made again. By default as few
        as take at most 3 % more time.
    on_resize : iterable of callables
        Called with this session on every rank when the number of ranks has changed in place.
    **options
        Options of the base class, and objects to save by name: ``model=``, ``optimizer=``,
        ``scheduler=``, ``scaler=``, generators, any object with ``state_dict`` and
        ``load_state_dict``.

    See Also
    --------
    adapt : chooses the batch while training.
    balance : divides each step so that unequal ranks finish together.

    Attributes
    ----------
    device : torch.device
        The device of this rank.
    """

    kind_of_adapting: type[Adapting] = Adapting

    def __init__(
        self,
        *,
        deterministic: bool = False,
        learning_rate: Rule | None = None,
        warm_up: int = 0,
        copy_every_steps: int | None = None,
        on_resize: Iterable[Callable[[Session], object]] = (),
        **options: Any,
    ) -> None:
        if copy_every_steps is not None and copy_every_steps < 1:
            raise ValueError(f"copy_every_steps={copy_every_steps}: at least 1, or None")
        self._torch = Torch(deterministic=deterministic)
        self.device = self._torch.device
        self._sharding = Sharding(self._torch, copy_every_steps)
        self.rates = LearningRates(self._torch, Rates(learning_rate, warm_up))
        self._guard = Guard(self._torch, self._sharding, self.rates, self._why_not_again)
        self._torch.guard = self._guard
        self.balancing = Balancing(self._torch)
        self.adapting = self.kind_of_adapting(
            self._torch, self.rates, self.balancing, self.report_goodput
        )
        self._on_resize = tuple(functools.partial(each, self) for each in on_resize)
        super().__init__(**options)

    def compose(self) -> Parts:
        """Return the parts: PyTorch, resizing in place, and the further features."""
        self._resizing = InPlace(self._torch, self._sharding, self._guard, self._on_resize)
        return Parts(
            self._torch,
            self._resizing,
            (
                self._guard,
                self._sharding,
                FirstSteps(self._torch),
                self.rates,
                Weighing(self._torch, self.balancing),
                self.balancing,
                self.adapting,
            ),
        )

    def _why_not_again(self) -> str:
        """Return why a step that a dead rank breaks cannot be made again; empty if it can."""
        if self.training.keeper is None:
            return "nothing is saved"
        if self.device.type == "cuda":
            return "the ranks communicate by NCCL"
        if why := self._sharding.why_no_copies():
            return why
        if self._torch.deterministic:
            return "a deterministic step exchanges more than gradients"
        if self.adapting.agent is not None or self.balancing.balance is not None:
            return "the batches of ranks follow measurements"
        return self._resizing.why_not()

    def parallel(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move the model to this rank's device, and wrap it in DDP if there are other ranks.

        The optimizers of the session follow. The ranks average their gradients, and each gets a
        part of the batch.

        Parameters
        ----------
        model : torch.nn.Module

        Returns
        -------
        torch.nn.Module
            The model, or its DistributedDataParallel.
        """
        return self._torch.parallel(model, joining=self.training.resizing.joining)

    def rate(self, lr: float) -> float:
        """Return the learning rate of the next step.

        Parameters
        ----------
        lr : float
            The rate of the schedule.
        """
        return self.rates.rates.rate(lr)

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
        """Choose the batch while training, for the best goodput on the present GPUs.

        Call it before :meth:`batch_sampler`, which then needs no size, and make the passes of a
        step in a loop over :meth:`microbatches`. The batch changes between two steps, on all ranks
        at once; each sample is still trained once in an epoch.

        Parameters
        ----------
        batch_size : int
            Samples in a step on all ranks for which the learning rate is meant: the first batch,
            and the smallest.
        max_batch_size : int, optional
            Largest number of samples in a step; by default 32 times the first batch.
        gpu_batch_bounds : tuple of int
            Smallest and largest number of samples of a rank in a pass; the largest is limited by
            its memory. None: no bound, but no pass is more than twice as large as earlier ones.
        accumulate : bool
            Whether a step may have several passes. It has them if the first batch does not fit in
            one.
        lr_rule : {"adascale", "sqrt", "linear", "legw", "none"} or callable, optional
            How the learning rate follows, see :mod:`~hpcext.training.learning_rate`. By default
            "sqrt" if the first optimizer is Adam or similar, else "adascale".
        warm_up : int
            Steps over which a larger rate is reached. For "legw", which needs it, the steps at the
            first batch over which the first rate is reached.
        noise : {"split", "differenced"}
            How the noise of gradients is measured, occasionally, if a step is one pass of one GPU.
            "split": by making it in two passes, if each has the smallest number of samples.
            "differenced": by the difference from the previous step, which overestimates it in small
            problems.
        every_s : float
            Seconds between two choices and reports; at the beginning they are more frequent.

        Raises
        ------
        ValueError
            A parameter is not valid, or this session cannot adapt.
        """
        self.adapting.begin(
            bounds_of(batch_size, max_batch_size, gpu_batch_bounds, accumulate),
            lr_rule=lr_rule,
            warm_up=warm_up,
            noise=noise,
            every_s=every_s,
        )

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples; None until it is known."""
        return self.adapting.agent.noise.phi() if self.adapting.agent else None

    @property
    def adapted_batch(self) -> int:
        """The samples in a step on all ranks that :meth:`adapt` has chosen."""
        return self.adapting.begun().split.total

    @property
    def progress(self) -> float:
        """The steps made, as initial-batch steps that teach as much; over all attempts."""
        return self.adapting.begun().progress

    @property
    def statistical_epochs(self) -> float:
        """The epochs at the first batch that would teach as much as the training so far."""
        return self.adapting.statistical_epochs()

    def batch_sampler(self, data: Sized | int, **options: Any) -> ElasticBatches:
        """Make batches for this rank; without a size, :meth:`adapt` chooses it.

        Parameters
        ----------
        data : Sized or int
            The data set, or its length.
        **options
            Options of the base class.
        """
        agent = self.adapting.agent
        if agent is None or "global_batch" in options or "gpu_batch" in options:
            return super().batch_sampler(data, **options)
        agent.limit(data if isinstance(data, int) else len(data))
        batches = super().batch_sampler(data, global_batch=agent.split.total, **options)
        batches.adapted = True
        return batches

    def microbatches(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield the passes of a step, each with its share of the samples of this rank's batch.

        Multiply the mean loss of each by its share. Run both the forward and the backward pass
        inside the loop; operations on the whole step (clipping, the optimizer) come after it.

        Parameters
        ----------
        batch : tensor, or tuple, list or dict with tensors
            Tensors of shape (samples, ...).

        Yields
        ------
        part
            Of the same type as `batch`.
        share : float
            The samples of the part divided by those of `batch`.
        """
        return self.adapting.microbatches(batch)
