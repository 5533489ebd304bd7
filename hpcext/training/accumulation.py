"""Gradient accumulation: a step of several microbatches, and one exchange of gradients.

A turn of ``session.batches`` is an optimizer step and its end a place to stop, so a turn has all
the microbatches of a step: from a loader of large batches that :func:`split` divides, or from a
loader of small ones that :func:`accumulated` puts together. :func:`microbatches` goes through
them; ranks exchange gradients with the last one only.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch

from hpcext.training.loading import elastic

Batch = TypeVar("Batch")


class Accumulated(Generic[Batch]):
    """What :func:`accumulated` gives."""

    def __init__(self, loader: Iterable[Batch], count: int) -> None:
        self._loader = loader
        self._count = count
        self.sampler = getattr(loader, "sampler", None)
        size = getattr(loader, "batch_size", None)
        self.batch_size = size * count if isinstance(size, int) else None

    def __len__(self) -> int:
        loader: Any = self._loader
        return (len(loader) + self._count - 1) // self._count

    def __iter__(self) -> Iterator[list[Batch]]:
        batches = iter(self._loader)
        while group := list(itertools.islice(batches, self._count)):
            yield group


def accumulated(loader: Iterable[Batch], count: int) -> Accumulated[Batch]:
    """A loader whose turns are lists of `count` batches of another loader.

    Resumption in mid-epoch is as exact as with that loader: its sampler is this one's, too. The
    last list of an epoch may be shorter.

    Parameters
    ----------
    loader : iterable
        With ``sampler=session.sampler(data)``, or any other one.
    count : int
        Batches in a step, at least 1.

    Raises
    ------
    ValueError
        Not such a number, or the loader has a ``session.batch_sampler``, which divides a step
        among the ranks and must see all of it.
    """

    if count < 1:
        raise ValueError(f"accumulated(count={count}): must be at least 1")
    if elastic(loader) is not None:
        raise ValueError(
            "accumulated(loader): its batch_sampler makes whole steps; make its batches "
            f"{count} times as large, and divide each of them by split(batch, size)"
        )
    return Accumulated(loader, count)


def split(batch: Batch, size: int) -> list[Batch]:
    """A batch in microbatches, along the first dimension of its tensors.

    Parameters
    ----------
    batch : tensor, or tuple, list or dict with tensors
    size : int
        Samples in a microbatch; the last one may have fewer.

    Raises
    ------
    ValueError
        `size` is less than 1, or tensors have different numbers of samples.
    """
    if size < 1:
        raise ValueError(f"split(size={size}): must be at least 1")
    starts = range(0, samples_of(batch), size)
    return [_part(batch, slice(start, start + size)) for start in starts]


def microbatches(model: torch.nn.Module, parts: Sequence[Batch]) -> Iterator[tuple[Batch, float]]:
    """The microbatches of a step, each with its share of the samples of the step.

    Multiply the mean loss of each by its share: the gradients then are those of the mean over all
    of the step. Both passes of a microbatch belong into the loop, because the ranks exchange
    gradients in the last turn only.

    Parameters
    ----------
    model : torch.nn.Module
        From ``session.parallel``, or ``shard``, or DistributedDataParallel, compiled or not.
    parts : sequence
        Of :func:`split`, or a turn over :func:`accumulated`.
    """
    counts = [samples_of(part) for part in parts]
    for number, part in enumerate(parts, start=1):
        with contextlib.nullcontext() if number == len(parts) else apart(model):
            yield part, counts[number - 1] / sum(counts)


def samples_of(batch: Any) -> int:
    """Samples in a batch: the length of its tensors.

    Raises
    ------
    ValueError
        There are none, or their lengths are different.
    """
    lengths = {len(tensor) for tensor in _tensors(batch)}
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no tensor"
        raise ValueError(f"a batch must hold tensors of one length; found: {found}")
    return lengths.pop()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _part(value: Any, where: slice) -> Any:
    if isinstance(value, torch.Tensor):
        return value[where]
    if isinstance(value, Mapping):
        return {key: _part(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_part(item, where) for item in value]
        # A namedtuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


@contextlib.contextmanager
def apart(model: torch.nn.Module) -> Iterator[None]:
    """Ranks do not exchange the gradients of a model meanwhile."""
    plain: Any = getattr(model, "_orig_mod", model)
    if hasattr(plain, "set_requires_gradient_sync"):
        plain.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            plain.set_requires_gradient_sync(True)
    elif hasattr(plain, "no_sync"):
        with plain.no_sync():
            yield
    else:
        yield
