"""The opening of a loader at the training's place in the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hpcext.training.batching import ElasticBatches
from hpcext.training.checkpoint import CheckpointError, warn
from hpcext.training.checkpoint.position import Position
from hpcext.training.data.sampler import ResumableSampler

Batch = TypeVar("Batch")


def inside(loader: Any) -> Any:
    """Return the loader in a progress bar of tqdm, which yields its batches; else the same."""
    while any(kind.__module__.partition(".")[0] == "tqdm" for kind in type(loader).__mro__):
        loader = loader.iterable
    return loader


def elastic(loader: object) -> ElasticBatches | None:
    """Return the :class:`ElasticBatches` that a loader is, or reads; None if there is none."""
    loader = inside(loader)
    for batches in (loader, getattr(loader, "batch_sampler", None)):
        if isinstance(batches, ElasticBatches):
            return batches
    return None


def places_sampler(loader: object) -> bool:
    """Return whether a loader shows a :class:`ResumableSampler` and how it makes batches of it."""
    sampler = getattr(loader, "sampler", None)
    size = getattr(loader, "batch_size", None)
    return isinstance(sampler, ResumableSampler) and isinstance(size, int)


def open_loader(
    loader: Iterable[Batch],
    place: Position,
    *,
    resized: bool = False,
    carried: int = 0,
    final: bool = False,
) -> tuple[Callable[[int], int], Iterator[Batch]]:
    """Open a loader at a place of its epoch.

    Parameters
    ----------
    loader : iterable
        The loader, perhaps in a progress bar of tqdm. With :class:`ElasticBatches` as
        ``batch_sampler`` or a :class:`ResumableSampler` as ``sampler`` it begins at the place;
        others are read up to it. The epoch of a sampler with ``set_epoch`` is set.
    place : Position
    resized : bool
        Whether the number of ranks has changed since the place was recorded.
    carried : int
        For :class:`ElasticBatches`: number of samples that the previous epoch left to this one.
    final : bool
        For :class:`ElasticBatches`: whether no epoch follows.

    Returns
    -------
    position : Callable[[int], int]
        Maps the batches read since then to the position of the sampler; 0 for other loaders.
    source : Iterator

    Raises
    ------
    CheckpointError
        The loader ends before the place.
    """
    batches = elastic(loader)
    if batches is not None:
        batches.place(place.epoch, place.samples, carried, final=final)
        return batches.consumed, iter(loader)
    shown = inside(loader)
    sampler, size = getattr(shown, "sampler", None), getattr(shown, "batch_size", None)
    if sampler is not None and places_sampler(shown):
        sampler.place(place.epoch, place.samples)
        return (lambda turns: sampler.consumed(turns, size)), iter(loader)
    if sampler is not None and hasattr(sampler, "set_epoch"):
        sampler.set_epoch(place.epoch)
    if resized and place.batch:
        warn(
            "the number of ranks changed in mid-epoch: some samples are repeated or left out; "
            "a loader with batch_sampler=session.batch_sampler(data, ...) avoids that"
        )
    source = iter(loader)
    for batch in range(place.batch):
        if next(source, loader) is loader:
            raise CheckpointError(
                f"the loader ends after {batch} batches, but {place.batch} were consumed",
                do="resume with the data and batch size that the training began with",
            )
    return (lambda batches: 0), source
