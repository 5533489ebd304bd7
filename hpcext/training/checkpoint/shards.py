"""Checkpoints of a state that is divided among the ranks: each rank writes its own shards.

All files go into one draft of a checkpoint, and the commit is the same as without shards: rank 0
renames the draft when every rank has flushed its files. The manifest has their checksums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcext.training.checkpoint import Checkpoint, Draft, Store
from hpcext.training.checkpoint.state import Tree
from hpcext.training.ranks import Ranks


class Shards:
    """The shards of all ranks: how they are written and read; subclasses define what a shard is.

    Parameters
    ----------
    ranks : Ranks
        A separate group, in which a thread communicates while the training uses the others.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def separate(self, objects: Tree) -> tuple[Tree, Tree]:
        """Separate captured objects into the part that rank 0 writes, and the shards of this rank.

        Returns
        -------
        whole, shards : dict
        """
        raise NotImplementedError

    def write(self, path: Path, shards: Tree) -> list[dict[str, Any]]:
        """Write the shards of all ranks into a directory; every rank calls it.

        Parameters
        ----------
        path : pathlib.Path
        shards : dict
            Those of this rank.

        Returns
        -------
        list of dict
            On rank 0, the manifest entries of all files; empty on other ranks.

        Raises
        ------
        OSError
            On every rank alike: a rank could not write its file.
        """
        raise NotImplementedError

    def join(self, checkpoint: Checkpoint, whole: Tree) -> Tree:
        """Return the objects of a checkpoint with the shards of this rank; every rank calls it.

        Parameters
        ----------
        checkpoint : Checkpoint
        whole : dict
            The part that rank 0 wrote for all.

        Raises
        ------
        CheckpointError
            On every rank alike: a shard is missing or cannot be read.
        """
        raise NotImplementedError

    def commit(
        self,
        store: Store,
        step: int,
        facts: Mapping[str, Any],
        shards: Tree,
        write_whole: Callable[[Draft], None],
    ) -> Checkpoint | None:
        """Commit a checkpoint with the shards of all ranks, as :meth:`Store.commit` does.

        Parameters
        ----------
        store : Store
        step : int
        facts : Mapping[str, Any]
            JSON values for the manifest.
        shards : dict
            The shards of this rank.
        write_whole : callable
            Writes the part that rank 0 writes for all.

        Returns
        -------
        Checkpoint or None
            None on all ranks but 0.
        """
        if self.ranks.rank != 0:
            path = self.ranks.broadcast(b"").decode()
            if path:
                # Rank 0 learns of an error on this rank too, and reports it.
                with contextlib.suppress(OSError):
                    self.write(Path(path), shards)
            return None
        told = False

        def fill(draft: Draft) -> None:
            nonlocal told
            told = True
            self.ranks.broadcast(str(draft.path).encode())
            draft.files.extend(self.write(draft.path, shards))
            write_whole(draft)

        try:
            return store.commit(step, facts, fill)
        finally:
            if not told:
                # There is no draft; tell the other ranks, which wait for its path.
                self.ranks.broadcast(b"")
