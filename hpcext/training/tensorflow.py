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

from hpcext.training.checkpoint import warn
from hpcext.training.place import Place
from hpcext.training.ranks import Ranks
from hpcext.training.session import Session as BaseSession
from hpcext.training.state import Tree
from hpcext.training.tensorflow_cluster import join, strategy
from hpcext.training.tensorflow_data import Batches, Skipped, common_length, gather, reshuffles
from hpcext.training.tensorflow_state import TensorFlowState

__all__ = ["Session", "strategy"]

Batch = TypeVar("Batch")


class Session(BaseSession):
    """Makes a TensorFlow training loop resumable; see :class:`hpcext.training.session.Session`.

    Under ``hpcext launch`` with several ranks, :func:`strategy` comes first, model and optimizer
    are made in its scope, and each worker trains on its part of each batch. The number of workers
    may change with each suspension; only rank 0 writes.

    Parameters
    ----------
    **options
        Those of the base class, and what to save by name: ``model=``, ``optimizer=``, whatever
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
        batch_size: int,
        *,
        shuffle: bool = True,
        load: Callable[[Any], Any] | None = None,
    ) -> Batches:
        """This rank's batches, for :meth:`batches`; resumes in mid-epoch at any number of ranks.

        Parameters
        ----------
        data : arrays or int
            An array, or a nested tuple, list or dict of arrays of one length; with `load`, a
            length.
        batch_size : int
            Samples in a batch of one rank; the last batch may be smaller.
        shuffle : bool
            In an order drawn from the session's seed and the epoch.
        load : callable, optional
            Indices, an int64 tensor of shape (batch,) → the batch: for data that is not in memory,
            and for augmentation (draw it from the seed, the epoch and the index: it runs ahead of
            the training). It becomes a graph; ``tf.numpy_function`` calls Python.

        Raises
        ------
        ValueError
            A length without `load`, arrays of different lengths, or no sample per batch.
        """
        if load is None:
            if isinstance(data, int):
                raise ValueError("session.dataset(length, ...): give load=, indices to batch")
            load = gather(data)
        length = data if isinstance(data, int) else common_length(data)
        return Batches(self.sampler(length, shuffle=shuffle), batch_size, load)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches that are left of this epoch; each turn of the loop is one step.

        Of a ``tf.data.Dataset`` the batches before the place are skipped: exact if its order is
        the same each time (see the page on TensorFlow for ``shuffle``) and the number of ranks
        too. A :meth:`dataset` begins at the place, at any number of ranks.

        Raises
        ------
        RuntimeError
            Not inside :meth:`epochs`, or the second such loop of an epoch.
        CheckpointError
            The loader ends before the place where the checkpoint was written.
        """
        if isinstance(loader, tf.data.Dataset):
            self._warn_if_reshuffled(loader)
            loader = cast(Iterable[Batch], Skipped(loader, self._place.batch))
        return super().batches(loader)

    def finish(self) -> None:
        """The training is over: write the final checkpoint, so that a rerun trains no more."""
        super().finish()
        # The workers of a cluster leave together: one that is still writing would miss the others.
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

    def _join(self) -> Ranks:
        return join()

    def _make_state(self, objects: dict[str, Any]) -> TensorFlowState:
        return TensorFlowState(objects)

    def _to_write(self, place: Place, random: Tree) -> tuple[int, dict[str, Any], Tree]:
        state = cast(TensorFlowState, self._state)
        if self.world_size > 1:
            state.hold_synchronised()
        return super()._to_write(place, random)
