"""The weighing of gradients of unequal batches, when ranks average them."""

from __future__ import annotations

import weakref

import torch

from hpcext.training.balance.balancing import Balancing
from hpcext.training.feature import Feature
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.weights import attach_to_output


class Weighing(Feature):
    """The weighing of gradients by the samples of each rank, whether a session balances or not.

    Parameters
    ----------
    framework : Torch
    balancing : Balancing
        Receives the time at which the gradients of this rank are ready.
    """

    def __init__(self, framework: Torch, balancing: Balancing) -> None:
        self._framework = framework
        self._balancing = balancing
        self._sharded: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def opened(self) -> None:
        """Weigh the gradients of models whose batches follow the number of ranks."""
        if self.loop.batches is None:
            return
        for model in self._framework.models:
            if not model.weighed:
                model.weigh(self._weight)
        state = self._framework.state
        for sharded in state.fsdp_modules() if state.data_parallel else ():
            if sharded not in self._sharded:
                self._sharded.add(sharded)
                attach_to_output(sharded, self.loop.weight)

    def _weight(self, *, last: bool) -> float:
        """Return the weight of this rank's gradients; called for each bucket of them."""
        return self._balancing.weigh() if last else self.loop.weight()
