"""The framework for ``model.fit`` on the torch backend of Keras."""

from __future__ import annotations

from typing import Any

from hpcext.training.feature import Framework
from hpcext.training.keras_state import KerasState
from hpcext.training.torch.random import TorchRandom


class KerasOnTorch(Framework):
    """The interface of a session to Keras on PyTorch, in one process."""

    def make_state(self, objects: dict[str, Any]) -> KerasState:
        """Make the state of the objects that the script names."""
        self.state = _TorchBackedState(objects)
        return self.state


class _TorchBackedState(TorchRandom, KerasState):
    """A Keras state with PyTorch's random state: Dropout draws from PyTorch on this backend."""
