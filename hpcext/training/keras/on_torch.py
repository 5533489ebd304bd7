"""The session for ``model.fit`` on the torch backend of Keras."""

from __future__ import annotations

from typing import Any

from hpcext.training.keras_state import KerasState
from hpcext.training.session import Session as BaseSession
from hpcext.training.torch.random import TorchRandom


class Session(BaseSession):
    """A session of one process; see :class:`hpcext.training.session.Session`."""

    def _make_state(self, objects: dict[str, Any]) -> KerasState:
        return _TorchBackedState(objects)


class _TorchBackedState(TorchRandom, KerasState):
    """A Keras state with PyTorch's random state: Dropout draws from PyTorch on this backend."""
