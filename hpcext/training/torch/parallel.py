"""DistributedDataParallel whose process group can be replaced while training goes on."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcext.training.torch.weights import Catcher, WeightOf, attach


class Parallel(DistributedDataParallel):
    """A model that averages its gradients over any number of ranks.

    The script keeps this one object. :meth:`form` rebuilds it for the present process group,
    because the reducer of a normal DistributedDataParallel stays in the group in which it was made.
    With one rank, or before the first group, it behaves as the bare model.

    Parameters
    ----------
    module : torch.nn.Module
    guard : Catcher, optional
        Asked about errors of communication.
    **options
        Options of DistributedDataParallel.
    """

    def __init__(
        self, module: torch.nn.Module, *, guard: Catcher | None = None, **options: Any
    ) -> None:
        torch.nn.Module.__init__(self)
        self.module = module
        self.training = module.training
        self._options = options
        self._formed = False
        self._weight_of: WeightOf | None = None
        self._guard = guard

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
        weight_of, guard = self._weight_of, self._guard
        try:
            super().__init__(module, init_sync=not equal, **options)
            self._formed = True
        finally:
            # Of a rank that has died meanwhile the next group is formed without.
            self._weight_of, self._guard = weight_of, guard
            self._forward_pre_hooks, self._forward_hooks = hooks
            self._options, self.training = options, training
            self.module = module
            if not self._formed:
                self._forget_group()
        if weight_of is not None or guard is not None:
            attach(self, self._weight, guard)

    def weigh(self, weight_of: WeightOf) -> None:
        """Average over samples instead of ranks; see :mod:`hpcext.training.torch.weights`."""
        self._weight_of = weight_of
        if self._formed and self._guard is None:
            attach(self, self._weight)

    def _weight(self, *, last: bool) -> float:
        return 1.0 if self._weight_of is None else self._weight_of(last=last)

    @property
    def weighed(self) -> bool:
        """Whether the average is over samples."""
        return self._weight_of is not None

    def dissolve(self) -> None:
        """Become the bare model again, without a reference to the process group."""
        if self._formed:
            self._forget_group()
            self._formed = False

    def _forget_group(self) -> None:
        # Deleting the reducer removes the hooks of the old group from the parameters.
        for name in ("reducer", "logger", "process_group"):
            self.__dict__.pop(name, None)
        self.__dict__.get("_comm_hooks", []).clear()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of the model."""
        if not self._formed:
            return self.module(*inputs, **named)
        try:
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            # Buffers are sent before the forward pass.
            if self._guard is None or not self._guard.caught(error):
                raise
        self.dissolve()
        return self.module(*inputs, **named)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Do not average the gradients inside this context, for their accumulation."""
        return super().no_sync() if self._formed else contextlib.nullcontext()
