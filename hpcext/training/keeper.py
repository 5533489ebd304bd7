"""Checkpoints of a whole job: found by one rank for all, written by one rank for all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hpcext.training.checkpoint import Checkpoint, CheckpointError, Store
from hpcext.training.ranks import Ranks
from hpcext.training.state import State, Tree


class Keeper:
    """Moves a state into a store and back; every method is collective.

    The ranks of a data-parallel job hold the same weights and differ in their random numbers
    only. Those travel to rank 0, which writes one file: each file more would have to be waited
    for on the disk.

    Parameters
    ----------
    store : Store
    state : State
    ranks : Ranks
    """

    def __init__(self, store: Store, state: State, ranks: Ranks) -> None:
        self.store = store
        self._state = state
        self._ranks = ranks

    def find(self) -> Checkpoint | None:
        """Open the store; the checkpoint to resume from, or None if there never was one.

        Raises
        ------
        CheckpointError
            On every rank alike: none can be used, or this attempt is over.
        """
        answer: dict[str, Any] = {}
        if self._ranks.rank == 0:
            try:
                self.store.open()
                found = self.store.newest()
                if found is not None:
                    self._check_format(found)
                    answer = {"name": found.path.name, "manifest": found.manifest}
            except CheckpointError as error:
                answer = {"error": str(error)}
        answer = json.loads(self._ranks.broadcast(json.dumps(answer).encode()))
        if "error" in answer:
            raise CheckpointError(answer["error"])
        if not answer:
            return None
        return Checkpoint(self.store.directory / answer["name"], answer["manifest"])

    def load(self, checkpoint: Checkpoint) -> Tree | None:
        """Set the state to a checkpoint's.

        Returns
        -------
        dict or None
            The random states of this rank by name, as :meth:`write` was given them; None for a
            rank that was not there then.
        """
        path = checkpoint.path / self._state.file
        tree = self._state.read(path)
        try:
            self._state.apply(tree["objects"])
        except CheckpointError as error:
            raise CheckpointError(str(error), where=path) from error
        parts: list[Tree] = json.loads(tree["random"])
        return parts[self._ranks.rank] if self._ranks.rank < len(parts) else None

    def write(self, step: int, facts: Mapping[str, Any], random: Tree) -> Checkpoint | None:
        """Commit a checkpoint; None except on rank 0.

        Parameters
        ----------
        step : int
        facts : Mapping[str, Any]
            For the manifest.
        random : dict
            Random states of this rank, by name.

        Raises
        ------
        OSError, FencedError
            On rank 0 only: nothing was written.
        """
        parts = self._ranks.gather(json.dumps(random).encode())
        if self._ranks.rank != 0:
            return None
        tree = {
            "objects": self._state.capture(),
            "random": "[" + ",".join(part.decode() for part in parts) + "]",
        }
        more = {"format": self._state.format, "world_size": self._ranks.size}
        return self.store.commit(
            step,
            {**facts, **more},
            lambda draft: draft.write(self._state.file, lambda file: self._state.write(file, tree)),
        )

    def _check_format(self, checkpoint: Checkpoint) -> None:
        written = checkpoint.manifest["format"]
        if written != self._state.format:
            raise CheckpointError(
                f"is of format {written}, and this session reads {self._state.format}",
                where=checkpoint.path,
                do="use the session it was written with, or another checkpoint directory",
            )
