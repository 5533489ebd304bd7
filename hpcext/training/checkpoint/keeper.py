"""Checkpoints of a whole job, which one rank finds and writes for all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from hpcext.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    Draft,
    FencedError,
    Store,
    warn,
)
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.checkpoint.staging import Writer
from hpcext.training.checkpoint.state import TrainingState, Tree
from hpcext.training.ranks import Ranks


class Keeper:
    """The keeper of a job's checkpoints: saves and restores its state; methods are collective.

    The ranks of a data-parallel job hold the same weights and differ only in their random states.
    These are sent to rank 0, which writes one file, because each further file would wait for the
    disk. If the ranks hold different shards of the state, each writes its own file beside that one.

    Parameters
    ----------
    store : Store
    state : TrainingState
    ranks : callable
        Returns the present group of ranks; rank 0 is the same process in all of them.
    shards : Shards or None
        How the ranks write and read their shards; None if all hold the same state.

    Attributes
    ----------
    run_id : str
        Id of the job, the same in all its attempts: 32 hexadecimal digits. Known after
        :meth:`find`.
    """

    def __init__(
        self,
        store: Store,
        state: TrainingState,
        ranks: Callable[[], Ranks],
        shards: Shards | None = None,
    ) -> None:
        self.store = store
        self.run_id = ""
        self._state = state
        self._present_ranks = ranks
        self._shards = shards
        self._writer = Writer()
        self._copier = state.copier()
        self._crowded = False

    @property
    def _ranks(self) -> Ranks:
        return self._present_ranks()

    def find(self) -> Checkpoint | None:
        """Open the store; return the checkpoint to resume from, or None if there never was one.

        Raises
        ------
        CheckpointError
            On every rank alike: no checkpoint can be used, or a newer attempt has begun.
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
        """Set the state to that of a checkpoint.

        Returns
        -------
        dict or None
            The random states of this rank by name, as given to :meth:`write`; None for a rank that
            did not exist then.
        """
        path = checkpoint.path / self._state.file
        tree = self._state.read(path)
        objects = tree["objects"]
        if self._shards is not None:
            objects = self._shards.join(checkpoint, objects)
        try:
            self._state.apply(objects)
        except CheckpointError as error:
            raise CheckpointError(str(error), where=path) from error
        parts: list[Tree] = json.loads(tree["random"])
        return parts[self._ranks.rank] if self._ranks.rank < len(parts) else None

    def write(self, step: int, facts: Mapping[str, Any], random: Tree) -> Checkpoint | None:
        """Commit a checkpoint; return None on all ranks but 0.

        Parameters
        ----------
        step : int
        facts : Mapping[str, Any]
            JSON values for the manifest.
        random : dict
            Random states of this rank, by name.

        Raises
        ------
        OSError, FencedError
            On rank 0 only: nothing was written.
        """
        # The commit raises FencedError again, when no other rank waits for this one.
        with contextlib.suppress(FencedError):
            self.wait()
        tree = self._capture(random)
        return None if tree is None else self._commit(step, self._completed(facts), tree)

    def stage(
        self,
        step: int,
        facts: Mapping[str, Any],
        random: Tree,
        committed: Callable[[], object],
        failed: Callable[[OSError], object],
    ) -> None:
        """Commit a checkpoint as :meth:`write` does, but return once the state is copied.

        A thread writes the copy. At most one write is running; the next one waits for it. If one
        fails, the previous checkpoint is kept.

        Parameters
        ----------
        step, facts, random
            As for :meth:`write`.
        committed : callable
            Called by the thread when the checkpoint is committed.
        failed : callable
            Called by the thread when it could not be written.

        Raises
        ------
        FencedError
            The previous one could not be written, because a newer attempt has begun.
        """
        self.wait()
        tree = self._capture(random)
        if tree is None:
            return
        facts = self._completed(facts)

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
        """Wait for the write that :meth:`stage` began.

        Raises
        ------
        FencedError
            It was not written, because a newer attempt has begun.
        """
        self._writer.wait()

    def look(self) -> None:
        """Raise the error of the write that :meth:`stage` began, if it is known already."""
        if self._writer.ended():
            self._writer.wait()

    def before_change(self) -> None:
        """Prepare for other ranks: what is being written is complete, and copies are not kept.

        Raises
        ------
        FencedError
            As for :meth:`wait`.
        """
        if self._shards is not None:
            # The ranks write together, in a group that ends; and copies are of the old shards.
            self.wait()
            self._copier.forget()

    def end(self) -> None:
        """Free the memory of copies, when nothing more will be staged."""
        self._copier.forget()

    # -- one checkpoint

    def _capture(self, random: Tree) -> Tree | None:
        """Return the part that this rank writes, or None; arrays and tensors are not copied."""
        parts = self._ranks.gather(json.dumps(random).encode())
        writes_whole = self._ranks.rank == 0
        if not writes_whole and self._shards is None:
            return None
        objects, shards = self._state.capture(), None
        if self._shards is not None:
            objects, shards = self._shards.separate(objects)
        whole = {
            "objects": objects,
            "random": "[" + ",".join(part.decode() for part in parts) + "]",
        }
        return {"whole": whole if writes_whole else None, "shards": shards}

    def _copy(self, tree: Tree) -> Tree | None:
        """Copy a tree; return None if there is not enough memory."""
        copy: Tree | None = None
        crowded = "no room on another rank"
        try:
            copy = self._copier.copy(tree)
        except MemoryError as error:
            # Before other ranks are asked, which may take their time.
            self._copier.forget()
            crowded = str(error)
        copied = copy is not None
        if self._shards is not None:
            # All ranks or none, since otherwise some would write in the thread while others wait in
            # the step.
            copied = bool(self._ranks.smallest(int(copied)))
        if copied:
            return copy
        self._copier.forget()
        if not self._crowded:
            self._crowded = True
            warn(f"checkpoints are written between the steps, not in the background: {crowded}")
        return None

    def _commit(self, step: int, facts: Mapping[str, Any], tree: Tree) -> Checkpoint | None:
        def write_whole(draft: Draft) -> None:
            draft.write(self._state.file, lambda file: self._state.write(file, tree["whole"]))

        if self._shards is None:
            return self.store.commit(step, facts, write_whole)
        return self._shards.commit(self.store, step, facts, tree["shards"], write_whole)

    def _completed(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts of a manifest with those of the keeper added."""
        return {
            **facts,
            "format": self._state.format,
            "world_size": self._ranks.size,
            "run_id": self.run_id,
        }

    def _check_format(self, checkpoint: Checkpoint) -> None:
        written = checkpoint.manifest.get("format", "none")
        if written != self._state.format:
            raise CheckpointError(
                f"has format {written}, but this session reads {self._state.format}",
                where=checkpoint.path,
                do="use the session it was written with, or another checkpoint directory",
            )
