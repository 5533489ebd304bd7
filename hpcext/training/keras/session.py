"""The session of ``model.fit``, driven by a callback."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint.position import AFTER, EPOCH, Position
from hpcext.training.checkpoint.state import Tree
from hpcext.training.feature import Feature, Framework, Parts, Resizing
from hpcext.training.keras.data import Data
from hpcext.training.keras_state import KerasState
from hpcext.training.session import Session

BACKEND: str = keras.backend.backend()


class KerasFramework(Framework):
    """The interface of a session to Keras on a backend with one process."""

    def make_state(self, objects: dict[str, Any]) -> KerasState:
        """Make the state of the objects that the script names."""
        self.state = KerasState(objects)
        return self.state


def _framework() -> Framework:
    """Return the framework of the backend that Keras uses."""
    if BACKEND == "tensorflow":
        from hpcext.training.tensorflow.framework import TensorFlow  # noqa: PLC0415

        return TensorFlow()
    if BACKEND == "torch":
        from hpcext.training.keras.on_torch import KerasOnTorch  # noqa: PLC0415

        return KerasOnTorch()
    return KerasFramework()


class FitSession(Session):
    """The session of a model that ``fit`` trains: its state, and its place in the data.

    Parameters
    ----------
    model : keras.Model
        Built and compiled, with a built optimizer.
    **options
        Options of the base class.
    """

    def __init__(self, model: keras.Model, **options: Any) -> None:
        self._model = model
        self._metrics = _Metrics(model)
        self._position: Callable[[int], int] = int
        self._turns = 0
        self._at_work = False
        self._stepped = False
        self._arrived: Tree | None = None
        self._asked = 0
        super().__init__(
            model=model,
            optimizer=model.optimizer,
            metrics=self._metrics,
            history=_History(model),
            **options,
        )

    def compose(self) -> Parts:
        """Return the parts: the framework of the backend, and the metrics."""
        return Parts(_framework(), Resizing(), (self._metrics,))

    @property
    def seed(self) -> int:
        """The seed from which the orders of samples are drawn."""
        return self.training.seed or 0

    def begin(self, epochs: int) -> int:
        """Begin ``fit``; return the epoch with which it begins.

        Parameters
        ----------
        epochs : int
            Number of epochs in all.

        Raises
        ------
        RuntimeError
            An earlier ``fit`` with this callback has made all of them.
        """
        if self.training.loop.place.phase == AFTER and epochs <= self._asked:
            raise RuntimeError(
                f"fit(epochs={epochs}): an earlier fit with this callback has made all of these "
                "epochs, so that this one would train nothing; make a Callback for each fit (with "
                "a checkpoint_dir of its own), or give more epochs, the number in all"
            )
        self._asked = max(self._asked, epochs)
        self.training.begin(epochs)
        self._at_work = False
        return self.training.loop.place.epoch

    def open_epoch(self, epoch: int, data: Data) -> bool:
        """Begin an epoch at the place of the checkpoint, or stop if requested.

        Returns
        -------
        bool
            Whether a part of the epoch was already done.

        Raises
        ------
        CheckpointError
            ``fit`` has begun with another epoch than that of the checkpoint.
        """
        if self.training.resume is not None and epoch != self.training.loop.place.epoch:
            raise CheckpointError(
                f"fit begins with epoch {epoch}, but the checkpoint is of epoch "
                f"{self.training.loop.place.epoch}",
                do="leave out initial_epoch of fit",
            )
        resumed = self.training.resume is not None
        if self.training.loop.place.phase == AFTER:
            # More epochs than before: the state is that of the end, and the metrics begin again.
            self.training.arrive()
            self._model.reset_metrics()
        self.training.begin_epoch(epoch)
        self._position, _ = self.training.open(data)
        self._turns = 0
        self._arrived = self.training.state.random() if resumed else None
        if self._at_work:
            self.training.boundary()
        self._at_work, self._stepped = True, False
        return self.training.loop.place.samples > 0

    def stepped(self, turns: int) -> None:
        """Record that `turns` batches of the epoch are done in this attempt."""
        while self._turns < turns:
            self._turns += 1
            self.training.loop.begin_step(self._position, self._turns)
            self.training.end_step()
        self._stepped = True

    def between(self) -> None:
        """Suspend or save if requested: before the first batch, between two, or after the last."""
        if self._arrived is not None:
            # A DataLoader of PyTorch has drawn a number since, when its iteration began.
            self.training.state.set_random(self._arrived)
            self._arrived = None
        if self._stepped:
            self._stepped = False
            self.training.boundary()

    def begin_validation(self) -> None:
        """Record the state after the last batch of an epoch."""
        self.training.coordinator.pause()
        if self.training.loop.phase != EPOCH:
            return
        self.between()
        self._metrics.hold()
        place, random = dataclasses.replace(self.training.loop.place), self.training.state.random()
        self._metrics.validated = place, random

    def suspend_if_agreed(self) -> None:
        """Suspend between two batches of a validation if all ranks agree."""
        if self._metrics.validated is not None and self.training.keeper is not None:
            self.training.suspend_if_agreed(*self._metrics.validated)

    def end_validation(self) -> None:
        """Record that the validation is over."""
        self._metrics.release()

    def finish(self) -> None:
        """Write the final checkpoint, so that a rerun trains no further."""
        if self.training.loop.place.phase == AFTER:
            # The job was finished before; only its history is restored.
            self.training.arrive()
            return
        super().finish()


class _Metrics(Feature):
    """The variables of metrics, so that the metrics of a resumed epoch cover all of it.

    Attributes
    ----------
    validated : (Position, dict) or None
        Place and random states at the beginning of the running validation.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._held: list[Any] | None = None
        self.validated: tuple[Position, Tree] | None = None

    def capturing(self) -> None:
        """Copy the state that ``fit`` holds into the model."""
        # With JAX, fit keeps the state apart from the model.
        sync = getattr(self._model, "jax_state_sync", None)
        if sync is not None:
            sync()
        if self.coordinator.ranks.size > 1 and self.validated is None:
            # Reading metrics sums them over the workers, so all ranks must read them.
            self.hold()

    def hold(self) -> None:
        """Keep the present values, because a validation will use the same variables."""
        self._held = self._values()

    def release(self) -> None:
        """Discard the kept values after the validation."""
        self._held = self.validated = None

    def state_dict(self) -> Tree:
        """Return the values of the variables, in the order of Keras."""
        return {"values": self._values() if self._held is None else self._held}

    def load_state_dict(self, state: Tree) -> None:
        """Set the variables, once ``fit`` has made all of them."""
        variables = self._model.metrics_variables
        if [tuple(v.shape) for v in variables] == [np.shape(each) for each in state["values"]]:
            for variable, value in zip(variables, state["values"], strict=True):
                variable.assign(value)

    def _values(self) -> list[Any]:
        return [np.array(variable.numpy()) for variable in self._model.metrics_variables]


class _History:
    """The history that ``fit`` returns, over all attempts."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def state_dict(self) -> Tree:
        """Return the epochs and their metrics."""
        history = getattr(self._model, "history", None)
        if history is None:
            return {}
        return {"epoch": list(history.epoch), "history": dict(history.history)}

    def load_state_dict(self, state: Tree) -> None:
        """Set the history; before ``fit`` begins there is none to set."""
        history = getattr(self._model, "history", None)
        if history is not None and state:
            history.epoch = list(state["epoch"])
            history.history = {name: list(values) for name, values in state["history"].items()}
