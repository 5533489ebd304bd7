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

import tensorflow as tf

from hpcext.training.balance.balancing import Balances, Balancing
from hpcext.training.checkpoint import warn
from hpcext.training.feature import Parts, Resizing
from hpcext.training.session import Session as BaseSession
from hpcext.training.tensorflow.cluster import strategy
from hpcext.training.tensorflow.data import (
    Batches,
    DividedBatches,
    Skipped,
    common_length,
    gather,
    reshuffles,
)
from hpcext.training.tensorflow.framework import TensorFlow, Weighing

__all__ = ["Session", "strategy"]

Batch = TypeVar("Batch")


class Session(Balances, BaseSession):
    """A session that makes a TensorFlow training loop resumable.

    See :class:`hpcext.training.session.Session`. Under ``hpcext launch`` with several ranks, call
    :func:`strategy` first and make model and optimizer in its scope; each worker then trains on its
    part of each batch. The number of workers may change with each suspension; only rank 0 writes.

    Parameters
    ----------
    **options
        Options of the base class, and objects to save by name: ``model=``, ``optimizer=``, all that
        ``tf.train.Checkpoint`` accepts, ``tf.random.Generator`` and Keras seed generators, objects
        with ``state_dict`` and ``load_state_dict``. A model must have its variables; an optimizer
        need not have its slots yet.
    """

    def __init__(self, **options: Any) -> None:
        self._read: Any = None
        self._warned = False
        self._tensorflow = TensorFlow()
        self.balancing = Balancing(self._tensorflow)
        self._weighing = Weighing(self.balancing)
        super().__init__(**options)

    def compose(self) -> Parts:
        """Return the parts: TensorFlow, the weighing of gradients, and balancing."""
        return Parts(self._tensorflow, Resizing(), (self._weighing, self.balancing))

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
            Alternatively, samples in a step on all ranks, divided among them equally or as
            :meth:`balance` says. Gradients must be weighed by :meth:`weighted`.
        shuffle : bool
            Whether to shuffle, by the session's seed and the epoch.
        last : {"weighted", "carried", "dropped"}
            With `global_batch`: treatment of an epoch's last samples, see
            :class:`~hpcext.training.batching.ElasticBatches`.
        ahead : int
            With `global_batch`: number of batches that are read while a step computes. Each delays
            a new division by a step, so without `load` there is little to gain.
        load : callable, optional
            Given indices, an int64 tensor of shape (batch,), returns the batch: for data that is
            not in memory, and for augmentation (draw it from the seed, the epoch and the index,
            because it runs ahead of the training). It becomes a graph; ``tf.numpy_function`` calls
            Python.

        Returns
        -------
        Batches or DividedBatches
            With a batch size of one rank, or with a global batch.

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

        The optimizer of Keras adds up the gradients of the workers. With these, the sum is the
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
            At the end of the step: it was called more than once, or not at all although the session
            balances.
        """
        return self._weighing.weighted(gradients)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the remaining batches of this epoch; each iteration is one step.

        The batches of a ``tf.data.Dataset`` before the place are skipped. That is exact if its
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
            loader = cast(Iterable[Batch], Skipped(loader, self.training.loop.place.batch))
        return super().batches(loader)

    def _warn_if_reshuffled(self, data: Any) -> None:
        if data is self._read and not self._warned and reshuffles(data):
            self._warned = True
            warn(
                "this data set is shuffled anew in each epoch, and a resumed epoch cannot have the "
                "same order: use session.dataset(), or .shuffle(..., seed=epoch, "
                "reshuffle_each_iteration=False) inside the loop over the epochs"
            )
        self._read = data
