"""The shards of sharded models (FSDP2, tensor parallel) in a checkpoint.

DTensors are written to files of :mod:`torch.distributed.checkpoint`, one for each rank, and the
rest to the same file as without shards. Loading divides the shards again, so the number of ranks
may change between two attempts, but not in place.

The index of ``torch.distributed.checkpoint`` is a pickle. It is read by an unpickler that accepts
only the classes of that index.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Replicate, Shard, zeros

from hpcext.documents import sync_directory
from hpcext.training.checkpoint import Checkpoint, CheckpointError
from hpcext.training.checkpoint.hashing import HashingFile
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.checkpoint.state import Tree
from hpcext.training.ranks import Ranks
from hpcext.training.torch.ranks import TorchRanks
from hpcext.training.torch.state import TorchState, mapped

_SHARDED = "hpcext.sharded"
_KNOWN = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
}

Tensors = dict[str, torch.Tensor]
"""Tensors by the names that they have in the files."""


class TorchShards(Shards):
    """The shards of a PyTorch training: its DTensors.

    Parameters
    ----------
    state : TorchState
    ranks : Ranks
        A separate group, see :class:`~hpcext.training.checkpoint.shards.Shards`.
    """

    def __init__(self, state: TorchState, ranks: Ranks) -> None:
        super().__init__(ranks)
        self._state = state

    def separate(self, objects: Tree) -> tuple[Tree, Tree]:
        """Separate captured objects into a tree with a mark for each shard, and shards by name."""
        return separated(objects)

    def write(self, path: Path, shards: Tree) -> list[dict[str, Any]]:
        """Write the shards of all ranks into a directory; every rank calls it."""
        writer = _Writer(path)
        try:
            save(
                shards,
                storage_writer=writer,
                process_group=_group(self.ranks),
                no_dist=not isinstance(self.ranks, TorchRanks),
            )
        except CheckpointException as error:
            raise _cause(error) from error
        sync_directory(path)
        parts = self.ranks.gather(json.dumps(writer.fs.entries).encode())
        return [entry for part in parts for entry in json.loads(part)]

    def join(self, checkpoint: Checkpoint, whole: Tree) -> Tree:
        """Return the objects with their shards, which every rank reads for itself."""
        shards = _targets(whole, self._state.capture(), self._state.objects)
        self.read(checkpoint, shards)
        found: Tree = joined(whole, shards)
        return found

    def read(self, checkpoint: Checkpoint, shards: Tensors) -> None:
        """Fill tensors from a checkpoint, however it was sharded; every rank calls it.

        Parameters
        ----------
        checkpoint : Checkpoint
        shards : dict
            Tensors by name, which are changed in place.

        Raises
        ------
        CheckpointError
            On every rank alike: a shard is missing or cannot be read.
        """
        try:
            load(
                cast(Any, shards),
                storage_reader=_Reader(checkpoint),
                planner=_Planner(),
                process_group=_group(self.ranks),
                no_dist=not isinstance(self.ranks, TorchRanks),
            )
        except CheckpointException as error:
            first = next(iter(error.failures.values()))[0]
            what = " ".join(str(first).split()) or type(first).__name__
            raise CheckpointError(
                f"the shards cannot be read ({what})",
                where=checkpoint.path,
                do="use the model that it was written with, or another checkpoint directory",
            ) from error


def _group(ranks: Ranks) -> dist.ProcessGroup | None:
    return ranks.group if isinstance(ranks, TorchRanks) else None


def _cause(error: CheckpointException) -> OSError:
    """Return the error of the first rank that failed."""
    rank, (cause, _) = next(iter(sorted(error.failures.items())))
    if isinstance(cause, OSError) and cause.errno is not None:
        return OSError(cause.errno, f"rank {rank}: {cause.strerror}")
    return OSError(None, f"rank {rank}: {' '.join(str(cause).split())}")


# -- trees with shards


def separated(objects: Tree) -> tuple[Tree, Tensors]:
    """Separate captured objects into a tree with a mark for each shard, and shards by name."""
    shards: Tensors = {}
    return _separated(objects, (), shards), shards


def _separated(value: Any, path: tuple[str, ...], shards: Tensors) -> Any:
    """Return the tree with a mark in place of each shard; collect the shards by name."""
    if isinstance(value, DTensor):
        name = ".".join(path)
        if name in shards:
            raise CheckpointError(f"two shards are both named {name!r}", do="rename one of them")
        shards[name] = value.detach()
        return {_SHARDED: [name, list(value.shape), value.dtype]}
    if isinstance(value, Mapping | list | tuple):
        return mapped(value, lambda key, item: _separated(item, (*path, str(key)), shards))
    return value


def joined(value: Any, shards: Mapping[str, torch.Tensor]) -> Any:
    """Return the tree with the shards back in place."""
    mark = _mark(value)
    if mark is not None:
        return shards[mark[0]]
    if isinstance(value, Mapping | list | tuple):
        return mapped(value, lambda _, item: joined(item, shards))
    return value


def _mark(value: Any) -> tuple[str, list[int], torch.dtype] | None:
    if isinstance(value, Mapping) and value.keys() == {_SHARDED}:
        name, shape, dtype = value[_SHARDED]
        return name, shape, dtype
    return None


def _targets(tree: Tree, live: Tree, objects: Mapping[str, Any]) -> Tensors:
    """Return a tensor for each shard of a checkpoint, sharded as this attempt's parameters."""
    targets: Tensors = {}
    for name, saved in tree.items():
        value = objects.get(name)
        if isinstance(value, torch.optim.Optimizer):
            # It may have no state yet, so the targets have the shapes of its parameters.
            parameters = [each for group in value.param_groups for each in group["params"]]
            for place, state in saved["state"].items():
                for mark in _marks(state):
                    targets[mark[0]] = _like_parameter(parameters, place, mark, name)
        else:
            _place(saved, live.get(name), targets, name)
    return targets


def _place(saved: Any, live: Any, targets: Tensors, name: str) -> None:
    """Collect as targets the tensors of an object that holds its shards itself."""
    mark = _mark(saved)
    if mark is not None:
        if not isinstance(live, DTensor):
            raise _unfit(name, f"{mark[0]} was sharded, but is not sharded now")
        if list(live.shape) != mark[1] or live.dtype != mark[2]:
            raise _unfit(name, f"{mark[0]} is {tuple(live.shape)}, not {tuple(mark[1])}")
        targets[mark[0]] = live.detach()
    elif isinstance(saved, Mapping):
        inner = live if isinstance(live, Mapping) else {}
        for key, item in saved.items():
            _place(item, inner.get(key), targets, name)
    elif isinstance(saved, list | tuple):
        within = live if isinstance(live, list | tuple) else ()
        for place, item in enumerate(saved):
            _place(item, within[place] if place < len(within) else None, targets, name)


def _like_parameter(
    parameters: list[Any], place: Any, mark: tuple[str, list[int], torch.dtype], name: str
) -> torch.Tensor:
    parameter = parameters[place] if place in range(len(parameters)) else None
    if not isinstance(parameter, DTensor):
        raise _unfit(name, f"{mark[0]} was sharded, but its parameter is not sharded now")
    shape = mark[1]
    # A state of another shape (a factored moment) is not sharded like its parameter.
    placements = [
        each if not isinstance(each, Shard) or list(parameter.shape) == shape else Replicate()
        for each in parameter.placements
    ]
    mesh = parameter.device_mesh
    return zeros(*shape, dtype=mark[2], device_mesh=mesh, placements=placements)


def _marks(value: Any) -> Iterator[tuple[str, list[int], torch.dtype]]:
    mark = _mark(value)
    if mark is not None:
        yield mark
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _marks(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _marks(item)


def _unfit(name: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"the state of {name!r} does not fit: {what}",
        do="use the model that it was written with, or another checkpoint directory",
    )


# -- the files


class _Stream(io.RawIOBase):
    """A stream into a file that its owner closes."""

    def __init__(self, file: HashingFile) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.size_bytes


class _Files(FileSystem):
    """Files that are flushed at their end, with their checksums."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        file = HashingFile(Path(path))
        try:
            yield _Stream(file)
        except BaseException:
            file.close()
            raise
        self.entries.append(file.finish())

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        for entry in self.entries:
            if entry["name"] == Path(path).name:
                entry["name"] = Path(new_path).name


class _Writer(FileSystemWriter):
    """A writer of one file for each rank, and the index."""

    fs: _Files

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync_files=False)
        self.fs = _Files()

    def storage_meta(self) -> StorageMeta | None:
        # The path of the draft would be useless, because the draft is renamed.
        return StorageMeta()


class _Reader(FileSystemReader):
    """A reader of these files that trusts them as little as ``weights_only`` does."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.path)
        self._checkpoint = checkpoint

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        with self._checkpoint.part(".metadata").open("rb") as file:
            metadata = _IndexUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise ValueError("the index of the shards is invalid")
        for info in (metadata.storage_data or {}).values():
            # Only files that were verified are opened.
            info.relative_path = self._checkpoint.part(Path(info.relative_path).name).name
        return metadata


class _Planner(DefaultLoadPlanner):
    """A planner that loads tensors only."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        raise ValueError(f"{read_item.dest_index.fqn} is not a tensor in the checkpoint")


class _IndexUnpickler(pickle.Unpickler):
    """An unpickler that builds the index of ``torch.distributed.checkpoint`` and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, ()):
            return getattr(importlib.import_module(module), name)
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise pickle.UnpicklingError(f"{module}.{name} has no place in an index of shards")
