"""Trees of values and tensors that are sent from rank to rank, and whether tensors are equal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.ranks import Ranks
from hpcext.training.torch.state import mapped

BUCKET_BYTES = 1 << 20
"""Bytes of a bucket in which small tensors are sent; larger ones are sent alone, uncopied."""

_TENSOR = "hpcext.tensor"


def send(tree: Any, group: dist.ProcessGroup, *, source: int = 0) -> None:
    """Send a tree of plain values and tensors to some ranks; all but those call it.

    Parameters
    ----------
    tree : nested dicts, lists and tuples
        Used only on the rank that sends.
    group : ProcessGroup
        That rank and those that call :func:`receive`.
    source : int
        The rank that sends.
    """
    if dist.get_rank() != source:
        return
    tensors: list[torch.Tensor] = []
    plan = _detached(tree, tensors)
    file = io.BytesIO()
    torch.save(plan, file)
    _broadcast_bytes(file.getvalue(), group, source)
    for bucket in _buckets(tensors):
        if len(bucket) == 1:
            flat = bucket[0].detach().contiguous()
        else:
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
        dist.broadcast(flat, src=source, group=group)


def receive(device: torch.device, group: dist.ProcessGroup, *, source: int = 0) -> Any:
    """Receive the tree that another rank sends.

    Parameters
    ----------
    device : torch.device
        Device for the tensors.
    group : ProcessGroup
        That rank and those that receive it.
    source : int
        The rank that sends.
    """
    file = io.BytesIO(_broadcast_bytes(b"", group, source))
    plan = torch.load(file, map_location="cpu", weights_only=True)
    tensors: list[torch.Tensor] = []
    tree = _attached(plan, tensors, device)
    for bucket in _buckets(tensors):
        if len(bucket) == 1:
            dist.broadcast(bucket[0], src=source, group=group)
            continue
        flat = torch.empty(
            sum(tensor.numel() for tensor in bucket), dtype=bucket[0].dtype, device=device
        )
        dist.broadcast(flat, src=source, group=group)
        pieces = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, piece in zip(bucket, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))
    return tree


def check_equal(tensors: Iterable[torch.Tensor], ranks: Ranks) -> None:
    """Check by checksums that all ranks hold the same tensors.

    Raises
    ------
    CheckpointError
        On every rank alike: the tensors differ. The job goes on from its last checkpoint.
    """
    mine = checksum(tensors)
    # Reduce both before any rank compares, since the others would wait for one that raised early.
    least, most = ranks.smallest(mine), -ranks.smallest(-mine)
    if least != most:
        raise CheckpointError(
            "the ranks hold different weights after a change of their number",
            do="going on from the last checkpoint",
        )


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """Return a number that differs, most probably, between different tensors."""
    found = 0
    for tensor in tensors:
        found = (found * 31 + _checksum(tensor)) % 2**62
    return found


def _checksum(tensor: torch.Tensor) -> int:
    """Return the sum of a tensor's bytes as 64-bit numbers, plus the remaining bytes."""
    content = tensor.detach().reshape(-1).view(torch.uint8)
    # A view as 8-byte numbers must begin at a multiple of 8.
    content = content.clone() if content.storage_offset() % 8 else content
    whole = len(content) // 8 * 8
    return int(content[:whole].view(torch.int64).sum()) + int(content[whole:].sum())


def _detached(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the tree without its large tensors; small and foreign ones stay in it."""
    if isinstance(value, torch.Tensor):
        sent = dist.get_backend() == "gloo" or value.device.type == "cuda"
        if not sent or value.numel() < 2 or value.dtype is torch.bool:
            return value.detach().cpu()
        tensors.append(value)
        return {_TENSOR: [tuple(value.shape), value.dtype]}
    if isinstance(value, dict | list | tuple):
        return mapped(value, lambda _, item: _detached(item, tensors))
    return value


def _attached(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Return the tree that :func:`_detached` was given, with empty tensors in place."""
    if isinstance(value, dict) and value.keys() == {_TENSOR}:
        shape, dtype = value[_TENSOR]
        tensors.append(torch.empty(shape, dtype=dtype, device=device))
        return tensors[-1]
    if isinstance(value, dict | list | tuple):
        return mapped(value, lambda _, item: _attached(item, tensors, device))
    return value


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield large tensors alone, and small neighbours of one type in buckets."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes >= BUCKET_BYTES:
            yield [tensor]
            continue
        if bucket and (size >= BUCKET_BYTES or bucket[0].dtype is not tensor.dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += nbytes
    if bucket:
        yield bucket


def _broadcast_bytes(data: bytes, group: Any, source: int) -> bytes:
    """Send bytes from one rank to the other ranks of a group."""
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")
    length = torch.tensor([len(data)], device=device)
    dist.broadcast(length, src=source, group=group)
    if dist.get_rank() == source:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    else:
        content = torch.zeros(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(content, src=source, group=group)
    return content.cpu().numpy().tobytes()
