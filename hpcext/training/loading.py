"""Beginning to read a loader where training is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hpcext.training.checkpoint import CheckpointError, warn
from hpcext.training.place import Place
from hpcext.training.sampler import ResumableSampler

Batch = TypeVar("Batch")


def open_loader(
    loader: Iterable[Batch], place: Place, *, resized: bool = False
) -> tuple[Callable[[int], int], Iterator[Batch]]:
    """Begin to read a loader at a place of its epoch.

    Parameters
    ----------
    loader : iterable
        With a :class:`ResumableSampler` as ``sampler`` it begins at the place; any other loader
        is read up to it. A sampler with ``set_epoch`` is told the epoch.
    place : Place
    resized : bool
        Whether the number of ranks has changed since the place was recorded.

    Returns
    -------
    position : Callable[[int], int]
        Batches read since → position of the sampler, 0 for other ones.
    source : Iterator

    Raises
    ------
    CheckpointError
        The loader ends before the place.
    """
    sampler = getattr(loader, "sampler", None)
    size = getattr(loader, "batch_size", None)
    if isinstance(sampler, ResumableSampler) and isinstance(size, int):
        sampler.place(place.epoch, place.samples)
        return (lambda batches: sampler.consumed(batches, size)), iter(loader)
    if sampler is not None and hasattr(sampler, "set_epoch"):
        sampler.set_epoch(place.epoch)
    if resized and place.batch:
        warn(
            "the number of ranks changed in mid-epoch: some samples are repeated or left out; "
            "a loader with sampler=session.sampler(data) avoids that"
        )
    source = iter(loader)
    for batch in range(place.batch):
        if next(source, loader) is loader:
            raise CheckpointError(
                f"the loader ends after {batch} batches, and {place.batch} were consumed",
                do="resume with the data and batch size that the training began with",
            )
    return (lambda batches: 0), source
