"""Checkpoints of a whole job: found by one rank for all, written by one rank for all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from hpcext.training.checkpoint import Checkpoint, CheckpointError, FencedError, Store, warn
from hpcext.training.ranks import Ranks
from hpcext.training.staging import Writer
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

    Attributes
    ----------
    run_id : str
        Of the job, the same in all its attempts; 32 hexadecimal digits. Known after :meth:`find`.
    """

    def __init__(self, store: Store, state: State, ranks: Ranks) -> None:
        self.store = store
        self.run_id = ""
        self._state = state
        self._ranks = ranks
        self._writer = Writer()
        self._copier = state.copier()
        self._crowded = False

    def regroup(self, ranks: Ranks) -> None:
        """Go on with other ranks; rank 0 is the same process."""
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
                found = self.store.newest({self._state.format: self._state.file})
                if found is not None:
                    self._check_format(found)
                    answer = {"name": found.path.name, "manifest": found.manifest}
                answer["run_id"] = self.store.run_id(found)
            except CheckpointError as error:
                answer = {"error": str(error)}
        answer = json.loads(self._ranks.broadcast(json.dumps(answer).encode()))
        if "error" in answer:
            raise CheckpointError(answer["error"])
        self.run_id = answer["run_id"]
        if "name" not in answer:
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
        # Who is fenced off hears so again from the commit, where no other rank waits for it.
        with contextlib.suppress(FencedError):
            self.wait()
        tree = self._capture(random)
        return None if tree is None else self._commit(step, facts, tree)

    def stage(
        self,
        step: int,
        facts: Mapping[str, Any],
        random: Tree,
        committed: Callable[[], object],
        failed: Callable[[OSError], object],
    ) -> None:
        """As :meth:`write`, but return when the state is copied; a thread writes the copy.

        At most one is under way: the next one waits for it. Of one that cannot be written the one
        before stays.

        Parameters
        ----------
        step, facts, random
            As for :meth:`write`.
        committed : callable
            Called by the thread when the checkpoint is there.
        failed : callable
            Called by the thread when it could not be written.

        Raises
        ------
        FencedError
            The one before could not be written, because this attempt is over.
        """
        self.wait()
        tree = self._capture(random)
        if tree is None:
            return

        def finish(tree: Tree) -> None:
            try:
                if self._commit(step, facts, tree) is not None:
                    committed()
                    self.store.prune()
            except OSError as error:
                failed(error)

        copy = self._copy(tree)
        if copy is None:
            finish(tree)
        else:
            self._writer.start(lambda: finish(copy))

    def wait(self) -> None:
        """Wait for what :meth:`stage` began.

        Raises
        ------
        FencedError
            It was not written: this attempt is over.
        """
        self._writer.wait()

    def look(self) -> None:
        """Raise what went wrong with what :meth:`stage` began, if that is known by now."""
        if self._writer.ended():
            self._writer.wait()

    def end(self) -> None:
        """Nothing will be staged any more: give the memory back."""
        self._copier.forget()

    def _capture(self, random: Tree) -> Tree | None:
        """What to write, on the rank that writes it: arrays and tensors are the live ones."""
        parts = self._ranks.gather(json.dumps(random).encode())
        if self._ranks.rank != 0:
            return None
        return {
            "objects": self._state.capture(),
            "random": "[" + ",".join(part.decode() for part in parts) + "]",
        }

    def _copy(self, tree: Tree) -> Tree | None:
        """The same in memory of its own; None where there is no room for it."""
        try:
            copy: Tree = self._copier.copy(tree)
        except MemoryError as error:
            self._copier.forget()
            self._warn_crowded(error)
            return None
        return copy

    def _warn_crowded(self, error: MemoryError) -> None:
        if not self._crowded:
            self._crowded = True
            warn(f"checkpoints are written between the steps, not beside them: {error}")

    def _commit(self, step: int, facts: Mapping[str, Any], tree: Tree) -> Checkpoint | None:
        return self.store.commit(
            step,
            {**facts, **self._facts()},
            lambda draft: draft.write(self._state.file, lambda file: self._state.write(file, tree)),
        )

    def _facts(self) -> dict[str, Any]:
        return {
            "format": self._state.format,
            "world_size": self._ranks.size,
            "run_id": self.run_id,
        }

    def _check_format(self, checkpoint: Checkpoint) -> None:
        written = checkpoint.manifest.get("format", "none")
        if written != self._state.format:
            raise CheckpointError(
                f"is of format {written}, and this session reads {self._state.format}",
                where=checkpoint.path,
                do="use the session it was written with, or another checkpoint directory",
            )
