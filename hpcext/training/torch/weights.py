"""Averaging gradients over samples if the ranks have unequal batches.

DistributedDataParallel averages the gradients of the ranks as if their batches were equal. The hook
here first multiplies each by the rank's weight, see
:meth:`hpcext.training.batching.ElasticBatches.weight`; the training loop stays the same.

Limits
------
The loss must be a mean over the samples of a rank, as PyTorch's losses are by default. If a step
has several backward passes under ``no_sync()``, their sum gets one weight, that of the last one.
That is right for parts of one batch (:mod:`hpcext.training.accumulation`), but not for several
batches of different weights. A model of FSDP2 is weighed where its gradients begin, at its output,
so its loss must depend on parameters only by that. BatchNorm computes its statistics from the
samples of one rank, refuses a single one ("Expected more than 1 value per channel"), and counts a
sample of weight 0 like any other. So with BatchNorm avoid a small last batch (``last="carried"`` or
``"dropped"``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from hpcext.training.torch.surviving import Survivor


class WeightOf(Protocol):
    """A function that returns the weight of this rank's batch."""

    def __call__(self, *, last: bool) -> float:
        """Return the weight, the same for each bucket of a step's gradients.

        Parameters
        ----------
        last : bool
            Whether it is called for the last bucket.
        """


class Averaging:
    """An averaging of gradients that need not end: the step then has no effect.

    Parameters
    ----------
    gradients : torch.Tensor

    Attributes
    ----------
    future : torch.futures.Future
        The gradients, averaged or not.
    work : dist.Work or None
        What the backend does.
    """

    work: dist.Work | None = None

    def __init__(self, gradients: torch.Tensor) -> None:
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._gradients = gradients
        self._ending = threading.Lock()

    def free(self) -> torch.futures.Future[torch.Tensor]:
        """End it with the gradients of this rank, unless it has ended; any thread calls it."""
        with self._ending:
            if not self.future.done():
                self.future.set_result(self._gradients)
        return self.future

    def done(self, work: Any, averaged: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        """End it with what the backend has made of it."""
        with self._ending:
            if self.future.done():
                return
            try:
                self.future.set_result(averaged(work, self._gradients))
            except Exception as error:  # the backward pass raises it
                cast(Any, self.future).set_exception(error)


class Catcher(Survivor, Protocol):
    """What decides whether the training survives an error of communication."""

    def caught(self, error: RuntimeError) -> bool:
        """Return whether to go on as if there were no error; the step then has no effect."""

    def waits_for(self, averaging: Averaging) -> None:
        """Take note of an averaging, which is freed if it does not end."""


def attach(
    model: DistributedDataParallel, weight_of: WeightOf, guard: Catcher | None = None
) -> None:
    """Make this model average its gradients over the samples of all ranks.

    With equal batches (every weight 1) the result is bit for bit the same as without this hook.

    Parameters
    ----------
    model : DistributedDataParallel
        A model without a communication hook, before its first backward pass. All ranks attach.
    weight_of : WeightOf
        Returns the weight of this rank's batch in the present step; it is called in the backward
        pass, for each bucket of gradients.
    guard : Catcher, optional
        Asked about errors; if it catches one, the gradients of this rank stay as they are.

    Raises
    ------
    RuntimeError
        The model has a hook (PyTorch's own error).
    """
    group = model.process_group
    size = dist.get_world_size(group)

    def average(bucket: Any) -> Any:
        gradients, weight = bucket.buffer(), weight_of(last=bucket.is_last())
        if weight == 0.0:
            # Not by multiplication, since a NaN in a batch of weight 0 must not count (NaN * 0 is
            # NaN).
            gradients.zero_()
        else:
            gradients.mul_(weight / size)
        if guard is None:
            work = dist.all_reduce(gradients, group=group, async_op=True)
            return work.get_future().then(lambda done: averaged(done, gradients))
        found = Averaging(gradients)
        try:
            work = dist.all_reduce(gradients, group=group, async_op=True)
        except RuntimeError as error:
            if not guard.caught(error):
                raise
            return found.free()
        found.work = work
        guard.waits_for(found)
        work.get_future().add_done_callback(lambda done: found.done(done, averaged))
        return found.future

    def averaged(done: Any, gradients: torch.Tensor) -> torch.Tensor:
        try:
            return cast(torch.Tensor, done.value()[0])
        except RuntimeError as error:
            if guard is None or not guard.caught(error):
                raise
            return gradients

    # PyTorch checks the annotations of a hook, which a lambda does not have.
    model.register_comm_hook(None, lambda state, bucket: average(bucket))


def attach_to_output(model: torch.nn.Module, weight_of: Callable[[], float]) -> None:
    """Make a model of FSDP2, which has no such hook, average over the samples of all ranks.

    With equal batches (every weight 1) the result is bit for bit the same as without it.

    Parameters
    ----------
    model : torch.nn.Module
        The outermost wrapped module.
    weight_of : callable
        Returns the weight of this rank's batch in the present step; it is called in the forward
        pass.
    """

    def weigh(_model: torch.nn.Module, _inputs: Any, output: Any) -> None:
        weight = weight_of()
        if weight == 1.0:
            return
        for value in tree_leaves(output):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                # Not by multiplication if it is 0, as above.
                cast(Any, value).register_hook(
                    lambda gradient: gradient * weight if weight else torch.zeros_like(gradient)
                )

    model.register_forward_hook(weigh)
