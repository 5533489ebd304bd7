"""A loader that resumes in mid-epoch at any number of ranks, for libraries with their own loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from hpcext.training.batching import ElasticBatches

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class ElasticLoader:
    """A loader of this rank's batches; only the place in the epoch determines a step's samples.

    It is made before the ranks are known; the library's callback calls :meth:`join` later.

    Parameters
    ----------
    data : torch.utils.data.Dataset
        A dataset with a length.
    global_batch, gpu_batch, seed, shuffle, last
        See :class:`~hpcext.training.batching.ElasticBatches`; `last` may not be "carried".
    **options
        Options of :class:`torch.utils.data.DataLoader` that do not affect the order.

    Attributes
    ----------
    epoch : int
    before_fetch : Callable[[], object]
        Called before each batch is fetched, when none of its samples has been drawn.
    """

    def __init__(
        self,
        data: Any,
        *,
        global_batch: int | None = None,
        gpu_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        last: str = "weighted",
        **options: Any,
    ) -> None:
        for name in _OURS:
            if name in options:
                raise TypeError(
                    f"loader({name}=...): the session determines the order; use global_batch=, "
                    "gpu_batch=, shuffle=, seed= or last="
                )
        if last == "carried":
            raise ValueError("loader(last='carried'): must be weighted or dropped")
        if not hasattr(data, "__len__"):
            raise TypeError(
                f"loader({type(data).__name__}): a data set without a length has no order to "
                "resume; give one with __len__, or a loader with state_dict and load_state_dict"
            )
        self.dataset = data
        self.batches = ElasticBatches(
            len(data),
            global_batch=global_batch,
            gpu_batch=gpu_batch,
            seed=seed,
            shuffle=shuffle,
            last=last,
        )
        self._loader: DataLoader[Any] = DataLoader(data, batch_sampler=self.batches, **options)
        self.epoch = 0
        self.before_fetch: Callable[[], object] = lambda: None
        self._turns = 0
        self._turns_before = 0

    @property
    def sampler(self) -> ElasticLoader:
        """The loader itself, because libraries set the epoch of a loader's sampler."""
        return self

    @property
    def batch_size(self) -> int:
        """The samples in the largest batch of this rank."""
        return self.batches.batch_size

    @property
    def global_batch(self) -> int:
        """The samples in a step on all ranks together."""
        return self.batches.global_batch

    def join(self, rank: int, world_size: int) -> None:
        """Set the rank of this process and the number of ranks."""
        self.batches.resize(rank, world_size)
        self.batches.place(self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration in this epoch: at its beginning, or at the saved place."""
        if epoch != self.epoch:
            self.epoch, self._turns, self._turns_before = epoch, 0, 0
            self.batches.place(epoch)

    def trained(self) -> None:
        """Record that one more batch was trained; batches read ahead do not count."""
        self._turns += 1

    def weight(self) -> float:
        """Return the weight of the gradient of the present batch in the average."""
        return self.batches.weight(self._turns)

    def state_dict(self) -> dict[str, int]:
        """Return the place in the data, the same on all ranks."""
        return {
            "epoch": self.epoch,
            "samples": self.batches.consumed(self._turns),
            "batches": self._turns_before + self._turns,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin the next iteration at a place.

        Raises
        ------
        ValueError
            There is no such place, because the data set is another one.
        """
        self.epoch, self._turns = state["epoch"], 0
        self._turns_before = state["batches"]
        self.batches.place(self.epoch, state["samples"])

    def __len__(self) -> int:
        """Return the batches of this epoch, including those before the place it resumed at."""
        return self._turns_before + len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        # Nothing is done before the first batch is requested, because only then is the place final.
        source = iter(self._loader)
        while True:
            self.before_fetch()
            try:
                batch = next(source)
            except StopIteration:
                return
            yield batch
