"""The PyTorch part of balanced batches: its clock, and the moment when gradients are ready."""

from __future__ import annotations

from typing import cast

import torch

from hpcext.training.balance.balancing import Balancing
from hpcext.training.balance.clock import Clock
from hpcext.training.torch.adapt import Adaptive
from hpcext.training.torch.clock import CudaClock
from hpcext.training.torch.state import TorchState


class Balanced(Balancing, Adaptive):
    """Base class of PyTorch sessions that can balance their batches."""

    _deterministic: bool

    def _check_can_balance(self) -> None:
        if cast(TorchState, self._state).sharded:
            raise ValueError("balance(): the model is sharded; valid are models of parallel(model)")
        if self._deterministic:
            raise ValueError(
                "balance(): the session is deterministic; sums of unequal batches differ in their "
                "last digits from run to run"
            )

    def _make_clock(self) -> Clock:
        clock = CudaClock(self.device) if self.device.type == "cuda" else Clock()
        for optimizer in cast(TorchState, self._state).optimizers():
            optimizer.register_step_pre_hook(lambda *_: clock.exchanged())
        return clock

    def _kind_of_device(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def _check_gradients(self) -> None:
        if len(self._models) != 1:
            raise ValueError(
                f"batches(loader): the session balances, and has {len(self._models)} models "
                "of session.parallel(model); it times the gradients of exactly one"
            )

    def _weight_in_backward(self, *, last: bool) -> float:
        """Return the weight of this rank's gradients; called for each bucket of them."""
        return self._weigh() if last else self._weight_of_batch()

    def _passes(self, samples: int) -> int:
        agent = self._agent
        if agent is None or self._balancing is None:
            return super()._passes(samples)
        return agent.unequal_passes(samples)
