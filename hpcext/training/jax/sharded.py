"""Arrays that are divided among processes, in a checkpoint: each process writes its own pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hpcext.documents import sync_directory
from hpcext.training.checkpoint import Checkpoint, reason
from hpcext.training.checkpoint.hashing import HashingFile
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.checkpoint.state import Tree
from hpcext.training.jax import pieces
from hpcext.training.jax.held import is_divided
from hpcext.training.jax.state import STATE

_MARK = "hpcext.pieces"
_PREFIX = "pieces-"


class JaxShards(Shards):
    """The shards of a JAX training: pieces of the arrays that no process has whole.

    Of a piece that several devices have, only one writes it.
    """

    def separate(self, objects: Tree) -> tuple[Tree, Tree]:
        """Separate captured objects into a tree with marks, and pieces by the mark's number."""
        held, shards = objects[STATE], {}
        values: list[Any] = []
        for number, value in enumerate(held["values"]):
            if is_divided(value):
                shards[str(number)] = [
                    [[each.start or 0 for each in shard.index], shard.data]
                    for shard in value.addressable_shards
                    if shard.replica_id == 0
                ]
                value = {  # noqa: PLW2901
                    _MARK: str(number), "shape": list(value.shape), "dtype": value.dtype.name,
                }  # fmt: skip
            values.append(value)
        return {**objects, STATE: {**held, "values": values}}, shards

    def write(self, path: Path, shards: Tree) -> list[dict[str, Any]]:
        """Write the pieces of all processes into a directory; every process calls it."""
        entry: dict[str, Any] | None = None
        failure: OSError | None = None
        try:
            if any(shards.values()):
                entry = self._write_own(path, shards)
        except OSError as error:
            failure = error
        told = [entry, failure and [failure.errno, reason(failure)]]
        parts = [json.loads(part) for part in self.ranks.gather(json.dumps(told).encode())]
        failed = [(rank, *error) for rank, (_, error) in enumerate(parts) if error]
        # All ranks must raise, or none.
        answer = json.loads(self.ranks.broadcast(json.dumps(failed).encode()))
        if answer:
            rank, number, said = answer[0]
            raise OSError(number, f"rank {rank}: {said}")
        return [entry for entry, _ in parts if entry]

    def _write_own(self, path: Path, shards: Tree) -> dict[str, Any]:
        file = HashingFile(path / f"{_PREFIX}{self.ranks.rank:05d}.npz")
        try:
            pieces.write(
                file,
                (
                    (name, start, np.asarray(data))
                    for name, found in shards.items()
                    for start, data in found
                ),
            )
        except BaseException:
            file.close()
            raise
        entry = file.finish()
        sync_directory(path)
        return entry

    def join(self, checkpoint: Checkpoint, whole: Tree) -> Tree:
        """Return the objects with all arrays; each process reads only its parts of divided ones.

        Raises
        ------
        CheckpointError
            A file of the checkpoint is missing or cannot be read.
        """
        values = whole[STATE]["values"]
        if not any(map(_is_mark, values)):
            return whole
        found: dict[str, list[pieces.Piece]] = {}
        for entry in checkpoint.manifest["files"]:
            if str(entry["name"]).startswith(_PREFIX):
                for name, some in pieces.listed(checkpoint.part(entry["name"])).items():
                    found.setdefault(name, []).extend(some)
        joined = [
            pieces.Pieces(value["shape"], value["dtype"], found.get(value[_MARK], []))
            if _is_mark(value)
            else value
            for value in values
        ]
        return {**whole, STATE: {**whole[STATE], "values": joined}}


def _is_mark(value: Any) -> bool:
    return isinstance(value, dict) and _MARK in value
