"""The session for TensorFlow's custom loops: one process, or several workers.

Five lines make a script suspendable and resumable::

    from hpcext.training.tensorflow import Session

    session = Session(model=model, optimizer=optimizer, seed=1)
    data = session.dataset((x, y), batch_size=60)
    for epoch in session.epochs(5):
        for x, y in session.batches(data):
            ...

For ``model.fit`` there is :class:`hpcext.training.keras.Callback`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from hpcext.training.balance.balancing import Balancing
from hpcext.training.checkpoint import warn
from hpcext.training.checkpoint.place import Place
from hpcext.training.checkpoint.state import Tree
from hpcext.training.ranks import Ranks
from hpcext.training.tensorflow.cluster import join, strategy
from hpcext.training.tensorflow.data import (
    Batches,
    DividedBatches,
    Skipped,
    common_length,
    gather,
    reshuffles,
)
from hpcext.training.tensorflow.state import TensorFlowState

__all__ = ["Session", "strategy"]

Batch = TypeVar("Batch")


class Session(Balancing):
    """A session that makes a TensorFlow training loop resumable.

    See :class:`hpcext.training.session.Session`. Under ``hpcext launch`` with several ranks, call
    :func:`strategy` first and make model and optimizer in its scope; each worker then trains on its
    part of each batch. The number of workers may change with each suspension; only rank 0 writes.

    Parameters
    ----------
    **options
        Those of the base class, and objects to save by name: ``model=``, ``optimizer=``, whatever
        ``tf.train.Checkpoint`` takes, ``tf.random.Generator`` and Keras seed generators, objects
        with ``state_dict`` and ``load_state_dict``. A model must have its variables; an optimizer
        need not have its slots yet.
    """

    def __init__(self, **options: Any) -> None:
        self._read: Any = None
        self._warned = False
        super().__init__(**options)

    def dataset(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        global_batch: int | None = None,
        shuffle: bool = True,
        last: str = "weighted",
        ahead: int = 0,
        load: Callable[[Any], Any] | None = None,
    ) -> Batches | DividedBatches:
        """Make this rank's batches for :meth:`batches`, which resume at any number of ranks.

        Parameters
        ----------
        data : arrays or int
            An array, or a nested tuple, list or dict of arrays of shape (samples, ...); with
            `load`, a number of samples.
        batch_size : int, optional
            Samples in a batch of one rank; the last batch may be smaller.
        global_batch : int, optional
            Instead of it: samples in a step of all ranks, divided among them, evenly or as
            :meth:`balance` says. Gradients must be weighed by :meth:`weighted`.
        shuffle : bool
            Whether to shuffle, by the session's seed and the epoch.
        last : {"weighted", "carried", "dropped"}
            With `global_batch`: what becomes of an epoch's last samples, see
            :class:`~hpcext.training.batching.ElasticBatches`.
        ahead : int
            With `global_batch`: batches that are read while a step computes. Each delays a new
            division by a step, so without `load` there is little to gain.
        load : callable, optional
            Given indices, an int64 tensor of shape (batch,), returns the batch: for data that is
            not in memory, and for augmentation (draw it from the seed, the epoch and the index: it
            runs ahead of the training). It becomes a graph; ``tf.numpy_function`` calls Python.

        Returns
        -------
        Batches or DividedBatches
            Of one rank's size, or of a global batch.

        Raises
        ------
        ValueError
            A length without `load`, arrays of different lengths, no sample per batch, or not
            exactly one of `batch_size` and `global_batch`.
        """
        if load is None:
            if isinstance(data, int):
                raise ValueError("session.dataset(length, ...): give load=, indices to batch")
            load = gather(data)
        length = data if isinstance(data, int) else common_length(data)
        if (batch_size is None) == (global_batch is None):
            raise ValueError(
                f"session.dataset(batch_size={batch_size}, global_batch={global_batch}): give "
                "exactly one of them, samples of one rank or of all ranks"
            )
        if batch_size is not None:
            return Batches(self.sampler(length, shuffle=shuffle), batch_size, load)
        divided = self.batch_sampler(length, global_batch=global_batch, shuffle=shuffle, last=last)
        return DividedBatches(divided, load, ahead)

    def weighted(self, gradients: Any) -> Any:
        """Scale gradients of a mean loss over this rank's batch to parts of the mean over all.

        The optimizer of Keras adds up the gradients of the workers; with these, the sum is the
        gradient of the mean over the samples of the step, however unequal the workers' batches are.
        Call it once in a step, in the function that the strategy runs, with the gradients of all
        models. It calls Python, so it cannot be in a function with ``jit_compile=True``.

        Parameters
        ----------
        gradients : nested lists, tuples or dicts of tensors, ``tf.IndexedSlices`` or None

        Returns
        -------
        gradients
            Of the same structure.

        Raises
        ------
        RuntimeError
            At the end of the step: it was called more than once, or not at all by a session that
            balances.
        """
        found = [_values(each) for each in tf.nest.flatten(gradients) if each is not None]
        if self.world_size == 1 or not found:
            return gradients
        with tf.control_dependencies(found):
            # On a GPU, fetching these values shows when the computation has come this far.
            there = tf.cast(tf.reshape(found[0], [-1])[:1], tf.float32)
            weight = tf.numpy_function(self._weigh_part, [there], tf.float64)
        weight.set_shape(())
        return tf.nest.map_structure(lambda each: _times(each, weight), gradients)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches that are left of this epoch; each iteration is one step.

        Of a ``tf.data.Dataset`` the batches before the place are skipped: that is exact if its
        order is the same each time (see the page on TensorFlow for ``shuffle``) and so is the
        number of ranks. A :meth:`dataset` begins at the place, at any number of ranks.

        Parameters
        ----------
        loader : iterable of batches
            A loader from :meth:`dataset`, a ``tf.data.Dataset``, or any other one.

        Yields
        ------
        batch
            As the loader yields it.

        Raises
        ------
        RuntimeError
            The call is not inside :meth:`epochs`, or it is the second such loop of an epoch.
        CheckpointError
            The loader ends before the place where the checkpoint was written.
        """
        if isinstance(loader, tf.data.Dataset):
            self._warn_if_reshuffled(loader)
            loader = cast(Iterable[Batch], Skipped(loader, self._place.batch))
        return super().batches(loader)

    def finish(self) -> None:
        """Write the final checkpoint, so that a rerun trains no more."""
        super().finish()
        # The workers of a cluster leave together: one that is still writing needs the others.
        self._ranks.smallest(0)

    def _warn_if_reshuffled(self, data: Any) -> None:
        if data is self._read and not self._warned and reshuffles(data):
            self._warned = True
            warn(
                "this data set is shuffled anew in each epoch, and a resumed epoch cannot have the "
                "same order: use session.dataset(), or .shuffle(..., seed=epoch, "
                "reshuffle_each_iteration=False) inside the loop over the epochs"
            )
        self._read = data

    def _weigh_part(self, _: Any) -> Any:
        return np.float64(self._weigh() / self.world_size)

    def _boundary(self) -> bool:
        balances = self._balancing is not None and self.world_size > 1
        if self._weighed > 1 or (balances and self._weighed == 0):
            raise RuntimeError(
                f"session.weighted(): {self._weighed} calls in step {self.step - 1}; must be one, "
                "with the gradients of all models, before the optimizer gets them"
            )
        return super()._boundary()

    _example = "session.dataset(data, global_batch=...)"
    _use = "use session.dataset(data, batch_size=...) or session.dataset(data, global_batch=...)"

    def _kind_of_device(self) -> str:
        for gpu in tf.config.get_visible_devices("GPU"):
            return str(tf.config.experimental.get_device_details(gpu).get("device_name", "gpu"))
        return "cpu"

    def _begin(self) -> None:
        super()._begin()
        state = cast(TensorFlowState, self._state)
        if self.world_size > 1 and self.rank == 0 and state.undistributed():
            self._reporter.note(
                f"the {self.world_size} ranks do not average their gradients: the model was not "
                "made in the scope of a strategy, each trains one of its own, and a checkpoint "
                "holds that of rank 0 alone; make model and optimizer inside "
                "`with strategy().scope():`"
            )

    def _join(self) -> Ranks:
        return join()

    def _make_state(self, objects: dict[str, Any]) -> TensorFlowState:
        return TensorFlowState(objects)

    def _to_write(self, place: Place, random: Tree) -> tuple[int, dict[str, Any], Tree]:
        state = cast(TensorFlowState, self._state)
        if self.world_size > 1:
            state.hold_synchronised()
        return super()._to_write(place, random)


def _values(gradient: Any) -> Any:
    """Return the values of a gradient; an embedding's gradient holds some of its rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _times(gradient: Any, weight: Any) -> Any:
    if gradient is None:
        return None
    values = _values(gradient)
    # A NaN in a batch of weight 0 must not count: NaN times 0 is NaN.
    weighed = tf.math.multiply_no_nan(values, tf.cast(weight, values.dtype))
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(weighed, gradient.indices, gradient.dense_shape)
    return weighed
