"""A callback that makes ``model.fit`` of Keras 3 suspendable and resumable.

Three lines are enough::

    from hpcext.training.keras import Callback

    callback = Callback(model, seed=1)
    callback.fit(x, y, batch_size=60, epochs=5)

instead of ``model.fit(x, y, batch_size=60, epochs=5)``.

Where it stops, and where it goes on
------------------------------------
It stops between two batches, in a validation, and between two epochs. On resumption ``fit`` begins
with the epoch of the checkpoint, in which the data set yields the remaining batches. A training
that stopped in a validation resumes with an epoch without remaining batches, and its validation.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from hpcext.protocol import environ
from hpcext.training.keras.data import Data, Order, gather
from hpcext.training.keras.session import BACKEND, FitSession

__all__ = ["Callback"]


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that makes ``model.fit`` resumable; it restores the newest checkpoint.

    It saves ``model.variables`` (with seed generators), the optimizer, metrics, the history, the
    place in the epoch and the random states.

    Parameters
    ----------
    model : keras.Model
        Compiled and built.
    **options
        Options of :class:`hpcext.training.session.Session`: ``checkpoint_dir``,
        ``checkpoint_every_s``, ``seed``, ``on_suspend`` and so on; and further objects to save, by
        name. The numbers, text and arrays in the attributes of another callback
        (``stopping=EarlyStopping(...)``) are saved.

    Raises
    ------
    CheckpointError
        There are checkpoints and none can be used, or a newer attempt has begun.
    RuntimeError
        There are several processes, and the backend is not TensorFlow.
    TypeError, ValueError
        A parameter is not valid; the model is not compiled or not built.

    Attributes
    ----------
    session : hpcext.training.session.Session
        The session, with ``step``, ``rank``, ``world_size``, ``resumed`` and ``report``.
    """

    def __init__(self, model: keras.Model, **options: Any) -> None:
        super().__init__()
        if BACKEND != "tensorflow" and int(environ().get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                f"several processes with the {BACKEND} backend of Keras: only the TensorFlow "
                "backend can train on several; set KERAS_BACKEND=tensorflow"
            )
        if getattr(model, "optimizer", None) is None:
            raise ValueError("Callback(model): compile the model first, with an optimizer")
        if not model.built:
            raise ValueError("Callback(model): build the model first, or call it on a batch")
        with _scope(model):
            # fit would do it with the first batch; done here, the slots exist when they are
            # restored.
            model.optimizer.build(model.trainable_variables)
        self.session = FitSession(model, **options)
        self._fitted = model
        self._data: Data | None = None
        self._silence: contextlib.AbstractContextManager[None] | None = None
        self._figures: dict[str, float] = {}

    def fit(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int = 32,
        epochs: int = 1,
        shuffle: bool = True,
        load: Callable[[Any], Any] | None = None,
        threads: int = 1,
        callbacks: Iterable[keras.callbacks.Callback] = (),
        **options: Any,
    ) -> keras.callbacks.History:
        """Call ``model.fit`` with a data set that resumes in mid-epoch at any number of workers.

        Arrays that Keras shuffles cannot be resumed, because their order is unknown; here the order
        is drawn from the session's seed and the epoch.

        Parameters
        ----------
        x, y, sample_weight : array, or nested list, tuple or dict of arrays
            All of one length, shape (samples, ...); with `load`, `x` is the number of samples.
        batch_size : int
            Samples in a batch of all workers together; the last batch may be smaller.
        epochs : int
        shuffle : bool
        load : callable
            Given indices of samples, an int64 array of shape (batch,), returns the batch, a tuple
            of inputs, targets, weights: for data that is not in memory, and for augmentation (draw
            it from the seed, the epoch and the index, because it runs ahead of the training).
        threads : int
            Number of threads that load batches ahead.
        callbacks : iterable of keras.callbacks.Callback
            Further callbacks, called after this one.
        **options
            Options of ``model.fit``, except ``steps_per_epoch``.

        Returns
        -------
        keras.callbacks.History
            The history of all attempts.

        Raises
        ------
        TypeError, ValueError
            The data is not of this kind, or ``steps_per_epoch`` is given.
        RuntimeError
            An earlier call has made all of these epochs, which are the number in all.
        CheckpointError
            ``initial_epoch`` is not that of the checkpoint, or a newer attempt has begun.
        """
        if options.get("steps_per_epoch") is not None:
            raise ValueError(
                "fit(steps_per_epoch=...): an epoch here always goes through all data once"
            )
        if load is None:
            count, load = gather(tuple(part for part in (x, y, sample_weight) if part is not None))
        else:
            count = int(x)
        order = Order(count, seed=self.session.seed, shuffle=shuffle)
        parts = self.session.world_size
        self._data = Data(order, batch_size, load, parts=parts, threads=threads)
        try:
            return self._fitted.fit(
                self._data,
                epochs=epochs,
                # Otherwise Keras itself shuffles the batches of a data set.
                shuffle=False,
                callbacks=[self, *callbacks],
                **options,
            )
        finally:
            self._data = None

    # -- called by model.fit; this callback is the first, and leaves when the others are done

    def on_train_begin(self, logs: Any = None) -> None:
        """Make ``fit`` begin with the epoch of the checkpoint."""
        if self._data is None:
            raise RuntimeError(
                "call callback.fit(...) in place of model.fit(..., callbacks=[callback]): "
                "data that Keras shuffles cannot be resumed in mid-epoch"
            )
        self._build(self._data)
        # The callback BackupAndRestore of Keras sets the same attribute.
        self.model._initial_epoch = self.session.begin(self.params["epochs"]) or None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Go to the place of the checkpoint, or stop before this epoch."""
        assert self._data is not None
        if self.session.open_epoch(epoch, self._data):
            self._silence = _no_warning()
            self._silence.__enter__()
        # The metrics of an epoch without remaining batches are known; fit will not compute them.
        self._figures = {} if len(self._data) else _numbers(self.model.get_metrics_result())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Stop here if requested, since all callbacks have seen the end of the previous batch."""
        self.session.between()
        assert self._data is not None
        if batch >= len(self._data):
            # Less of this epoch is left than fit expects; StopIteration ends it. If the step began
            # instead, TensorFlow would run the parts that need no data, such as weight decay,
            # before it found that there is none.
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record one step, or as many as ``steps_per_execution``."""
        assert self._data is not None
        self.session.stepped(min(batch + 1, len(self._data)))
        self.session.report(**(logs or {}))

    def on_test_begin(self, logs: Any = None) -> None:
        """Record that the epoch is trained; until the validation ends, this state is saved."""
        self.session.begin_validation()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Stop here if requested; the validation begins again on resumption."""
        self.session.suspend_if_agreed()

    def on_test_end(self, logs: Any = None) -> None:
        """Record the end of the validation."""
        self.session.end_validation()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set the metrics of an epoch without remaining batches."""
        self.session.training.coordinator.pause()
        if self._silence is not None:
            self._silence.__exit__(None, None, None)
            self._silence = None
        if logs is not None:
            for name, value in self._figures.items():
                logs.setdefault(name, value)
        self.session.report(**(logs or {}))

    def on_train_end(self, logs: Any = None) -> None:
        """Write the final checkpoint, so that a rerun trains no further."""
        self.model._initial_epoch = None
        self.session.finish()

    def _build(self, data: Data) -> None:
        """Make the variables of the metrics now, so that they can be restored.

        Otherwise the first batch makes them, too late. If Keras has no such method, the metrics of
        a resumed epoch are those of the remaining batches.
        """
        build = getattr(self.model, "_symbolic_build", None)
        if build is None:
            return
        with _scope(self.model):
            build(data_batch=data.example())


def _scope(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which variables of a model are made."""
    strategy = getattr(model, "distribute_strategy", None)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are single numbers, as Keras passes them to callbacks."""
    return {name: float(value) for name, value in figures.items() if np.ndim(value) == 0}


@contextlib.contextmanager
def _no_warning() -> Iterator[None]:
    """Silence the Keras warning about an epoch with fewer batches than the others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        yield
