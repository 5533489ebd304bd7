"""DistributedDataParallel whose process group can be replaced while training goes on."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcext.training.torch.weights import WeightOf, attach


class Parallel(DistributedDataParallel):
    """A model that averages its gradients over any number of ranks.

    The script keeps this one object. :meth:`form` rebuilds it for the present process group,
    because the reducer of a normal DistributedDataParallel stays in the group in which it was made.
    With one rank, or before the first group, it behaves as the bare model.

    Parameters
    ----------
    module : torch.nn.Module
    **options
        Options of DistributedDataParallel.
    """

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module = module
        self.training = module.training
        self._options = options
        self._formed = False
        self._weight_of: WeightOf | None = None

    def form(self, *, equal: bool) -> None:
        """Average over the ranks of the present process group from now on.

        Parameters
        ----------
        equal : bool
            Whether the ranks hold the same weights; otherwise all get those of rank 0.
        """
        self.dissolve()
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        module, options, training = self.module, self._options, self.training
        hooks = self._forward_pre_hooks, self._forward_hooks
        weight_of = self._weight_of
        super().__init__(module, init_sync=not equal, **options)
        self._weight_of = weight_of
        self._forward_pre_hooks, self._forward_hooks = hooks
        self._options, self._formed, self.training = options, True, training
        if weight_of is not None:
            self.weigh(weight_of)

    def weigh(self, weight_of: WeightOf) -> None:
        """Average over samples instead of ranks; see :mod:`hpcext.training.torch.weights`."""
        self._weight_of = weight_of
        if self._formed:
            attach(self, weight_of)

    @property
    def weighed(self) -> bool:
        """Whether the average is over samples."""
        return self._weight_of is not None

    def dissolve(self) -> None:
        """Become the bare model again, without a reference to the process group."""
        if self._formed:
            # Deleting the reducer removes the hooks of the old group from the parameters.
            del self.reducer, self.logger, self.process_group
            self._comm_hooks.clear()
            self._formed = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of the model."""
        if not self._formed:
            return self.module(*inputs, **named)
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    def no_sync(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Do not average the gradients inside this context, for their accumulation."""
        return super().no_sync() if self._formed else contextlib.nullcontext()
