"""The session for JAX: one process with any number of devices, or several processes.

A function makes the state, and each step gives it back::

    from hpcext.training.jax import Session

    session = Session(state=make_state, seed=1)
    data = session.dataset((x, y), global_batch=64)
    for epoch in session.epochs(5):
        for xs, ys in session.batches(data):
            session.state, loss = train_step(session.state, xs, ys)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jax.sharding import Sharding

from hpcext.training.batching import ElasticBatches
from hpcext.training.feature import Parts, Resizing
from hpcext.training.jax.cluster import initialize, part
from hpcext.training.jax.data import Batches, check_batch, common_length, gather
from hpcext.training.jax.framework import Jax
from hpcext.training.session import Session as BaseSession

__all__ = ["Session", "initialize"]


class Session(BaseSession):
    """A session that makes a JAX training loop resumable.

    See :class:`hpcext.training.session.Session`. Under ``hpcext launch`` with several ranks, call
    :func:`initialize` first. The number of devices and of processes may change with each
    suspension: a restored array is divided among the devices as the one that `state` makes.

    Parameters
    ----------
    state : callable or pytree
        What is trained: parameters, the state of the optimizer, random keys, all that a step
        replaces. Given a function that makes it, the session alone holds it, so a resumed training
        does not take twice its memory. Leaves are arrays of JAX; NumPy arrays and numbers become
        such.
    sharding : jax.sharding.Sharding, function or pytree, optional
        Has `state`, a function, compiled so that its arrays are made on the devices of this
        sharding, also where they are of several processes: one for all arrays, or a function that
        returns that of an array (given its shape and dtype), or a pytree of them.
    on_suspend : iterable of callables
        As in the base class.
    **options
        Those of the base class, and further objects to save by name: NumPy arrays (restored in
        place) and generators, objects with ``state_dict`` and ``load_state_dict``.

    Raises
    ------
    TypeError
        The pytree has a leaf that is not an array.
    """

    def __init__(
        self,
        *,
        sharding: Any = None,
        on_suspend: Iterable[Callable[[], object]] = (),
        **options: Any,
    ) -> None:
        self._jax = Jax(sharding)
        super().__init__(on_suspend=(*on_suspend, part), **options)

    def compose(self) -> Parts:
        """Return the parts: JAX alone."""
        return Parts(self._jax, Resizing())

    @property
    def state(self) -> Any:
        """The pytree that is trained; each step reads it and assigns what it has made of it.

        Raises
        ------
        RuntimeError, ValueError, TypeError
            On assignment: the step has not read it, or the pytree has another structure, or an
            array another shape or type.
        """
        return self._jax.get()

    @state.setter
    def state(self, tree: Any) -> None:
        self._jax.set(tree)

    def dataset(
        self,
        data: Any,
        global_batch: int,
        *,
        sharding: Sharding | None = None,
        shuffle: bool = True,
        load: Callable[[Any], Any] | None = None,
    ) -> Batches:
        """Make batches for :meth:`batches`, which resume at any number of devices and processes.

        Each process loads only the rows that its devices need. Samples at the end of an epoch that
        do not fill a batch are left out (other ones in each epoch, when shuffled): a smaller batch
        would have JAX compile the step once more.

        Parameters
        ----------
        data : pytree of arrays, or int
            NumPy arrays of shape (samples, ...); with `load`, a number of samples.
        global_batch : int
            Samples in a step of all processes.
        sharding : jax.sharding.Sharding, optional
            How a batch is divided among the devices; necessary with several processes.
        shuffle : bool
            Whether to shuffle, by the session's seed and the epoch.
        load : callable, optional
            Given indices, an int64 array of shape (samples,), returns a pytree of NumPy arrays: for
            data that is not in memory, and for augmentation (draw it from the seed, the epoch and
            the index).

        Returns
        -------
        Batches

        Raises
        ------
        ValueError
            A length without `load`, arrays of different lengths, or a batch that the devices cannot
            share evenly.
        """
        if load is None:
            if isinstance(data, int):
                raise ValueError("session.dataset(length, ...): give load=, indices to batch")
            load = gather(data)
        length = data if isinstance(data, int) else common_length(data)
        check_batch(global_batch, length, sharding, self.world_size)
        # All samples of a batch, in every process: the sharding says which of them it needs.
        batches = ElasticBatches(
            length,
            global_batch=global_batch,
            seed=self.training.seed or 0,
            shuffle=shuffle,
            last="dropped",
        )
        return Batches(batches, load, sharding)
