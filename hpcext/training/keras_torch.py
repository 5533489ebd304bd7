"""The session for ``model.fit`` on the torch backend of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcext.training.keras_state import KerasState
from hpcext.training.session import Session as BaseSession
from hpcext.training.state import Tree


class Session(BaseSession):
    """One process; see :class:`hpcext.training.session.Session`."""

    def _make_state(self, objects: dict[str, Any]) -> KerasState:
        return _TorchBackedState(objects)


class _TorchBackedState(KerasState):
    """With the random numbers of PyTorch: on this backend Dropout draws from them, and not from
    its seed generator."""

    def random(self) -> Tree:
        """The random states of this process: Python, NumPy, PyTorch, its GPU."""
        states = {**super().random(), "torch": torch.get_rng_state().tolist()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states["cuda"] = torch.cuda.get_rng_state().tolist()
        return states

    def set_random(self, states: Tree) -> None:
        """Set the random numbers to states that :meth:`random` gave."""
        super().set_random(states)
        torch.set_rng_state(_bytes(states["torch"]))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(_bytes(states["cuda"]))

    def seed(self, seed: int) -> None:
        """Seed the global sources."""
        super().seed(seed)
        torch.manual_seed(seed)


def _bytes(numbers: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.uint8))
