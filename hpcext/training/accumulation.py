"""Gradient accumulation: a step of several microbatches with one exchange of gradients.

One iteration of ``session.batches`` is one optimizer step, and training can stop only after it. So
an iteration yields all microbatches of a step: from a loader of large batches that :func:`split`
divides, or from a loader of small ones that :func:`accumulated` groups. :func:`microbatches`
iterates over them, and the ranks exchange gradients only with the last one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch

from hpcext.training.data.loading import elastic

Batch = TypeVar("Batch")


class Accumulated(Generic[Batch]):
    """A loader that yields lists of batches; see :func:`accumulated`."""

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
    """Group every `count` batches of a loader into one list: the microbatches of a step.

    A training resumes in mid-epoch as exactly as with the loader itself, whose sampler the result
    shares. The last list of an epoch may be shorter.

    Parameters
    ----------
    loader : iterable
        A loader with ``sampler=session.sampler(data)``, or any other one.
    count : int
        Batches in a step, at least 1.

    Returns
    -------
    Accumulated
        Iterates over lists of batches.

    Raises
    ------
    ValueError
        `count` is less than 1, or the loader has a ``session.batch_sampler``, which divides a step
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
    """Split a batch into microbatches along the first dimension of its tensors.

    Parameters
    ----------
    batch : tensor, or tuple, list or dict with tensors
        Tensors of shape (samples, ...).
    size : int
        Samples in a microbatch; the last one may have fewer.

    Returns
    -------
    list
        Microbatches of the same type as `batch`.

    Raises
    ------
    ValueError
        `size` is less than 1, or the tensors have different numbers of samples.
    """
    if size < 1:
        raise ValueError(f"split(size={size}): must be at least 1")
    starts = range(0, samples_of(batch), size)
    return [_part(batch, slice(start, start + size)) for start in starts]


def microbatches(model: torch.nn.Module, parts: Sequence[Batch]) -> Iterator[tuple[Batch, float]]:
    """Yield the microbatches of a step, each with its share of the step's samples.

    Multiply the mean loss of each by its share: the gradients are then those of the mean over the
    whole step. Run both the forward and the backward pass of a microbatch inside the loop, because
    the ranks exchange gradients in the last iteration only.

    Parameters
    ----------
    model : torch.nn.Module
        From ``session.parallel`` or ``shard``, or a DistributedDataParallel, compiled or not.
    parts : sequence
        The parts that :func:`split` returned, or one list from :func:`accumulated`.

    Yields
    ------
    microbatch
        In order.
    share : float
        The samples of the microbatch divided by those of the step.
    """
    counts = [samples_of(part) for part in parts]
    for number, part in enumerate(parts, start=1):
        with contextlib.nullcontext() if number == len(parts) else apart(model):
            yield part, counts[number - 1] / sum(counts)


def samples_of(batch: Any) -> int:
    """Count the samples of a batch, the common length of its tensors.

    Raises
    ------
    ValueError
        The batch has no tensor, or tensors of different lengths.
    """
    lengths = {len(tensor) for tensor in tensors_in(batch)}
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no tensor"
        raise ValueError(f"a batch must hold tensors of one length; found: {found}")
    return lengths.pop()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested mappings, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


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
    """Keep the ranks from exchanging the gradients of a model inside this context."""
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
