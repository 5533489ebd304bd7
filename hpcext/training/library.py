"""Checkpoints that a training library writes in a format of its own.

The library writes files, and every rank its part of them, into one draft of the
:class:`~hpcext.training.checkpoint.Store`. One rename makes the draft a checkpoint, after every
file in it is flushed and has its checksum in the manifest.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcext.training.checkpoint import Checkpoint, CheckpointError, Draft, reason
from hpcext.training.checkpoint.position import AFTER, EPOCH
from hpcext.training.coordinator import Coordinator, Write
from hpcext.training.ranks import Ranks

_NOWHERE = b"-"
"""Broadcast instead of the path of a draft that could not be created."""

_ROOM_BYTES = 1 << 20

SUSPEND, SAVE = "suspend", "save"
"""Possible agreements of the ranks, carried out at the next place where the library can do so."""

Fill = Callable[[Path], None]
"""A function that writes the files of a checkpoint into a directory; called on every rank."""


class LibraryCheckpoints:
    """The checkpoints of a training that a library runs.

    Parameters
    ----------
    coordinator : Coordinator
    rank : int
        Rank of this process, known before the library has joined the ranks.
    format : str
        Name and version of the library's format; checkpoints of another one are not resumed from.

    Attributes
    ----------
    found : Checkpoint or None
        The result of :meth:`find`.
    begun : bool
        Whether the training was begun: it was not complete before.
    """

    def __init__(self, coordinator: Coordinator, *, rank: int, format: str) -> None:
        self._coordinator = coordinator
        self._rank = rank
        self._format = format
        self._looked = self._over = self.begun = False
        self.found: Checkpoint | None = None
        coordinator.rehearse(rank, _present)

    def find(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, or None if there never was one.

        Every rank searches for itself, because no library has joined the ranks yet; :meth:`join`
        compares the results.

        Raises
        ------
        CheckpointError
            No checkpoint in the directory can be used, or a newer attempt has begun.
        """
        store = self._coordinator.store
        if self._looked or store is None:
            return self.found
        self._looked = True
        if self._rank == 0:
            store.open()
        if store.directory.is_dir():
            self.found = store.newest()
        if self.found is not None and self.found.manifest.get("format") != self._format:
            raise CheckpointError(
                f"has format {self.found.manifest.get('format')}, but this callback reads "
                f"{self._format}",
                where=self.found.path,
                do="use the library it was written with, or another checkpoint directory",
            )
        self._coordinator.turn.found(self.found)
        return self.found

    def join(self, ranks: Ranks) -> None:
        """Join the ranks, and check that all found the same checkpoint.

        Raises
        ------
        CheckpointError
            They did not.
        """
        self._coordinator.join(ranks)
        self._rank = ranks.rank
        self.find()
        mine = self.found.path.name if self.found else "nothing"
        first = ranks.broadcast(mine.encode()).decode()
        # All ranks raise or none, since the others would wait for one that raised alone.
        if not ranks.smallest(int(mine == first)):
            store = self._coordinator.store
            raise CheckpointError(
                f"rank 0 found {first}, but rank {ranks.rank} found {mine}",
                where=store.directory if store else "",
                do="the checkpoint directory must be the same on every node",
            )

    def begin(self, step: int) -> None:
        """Begin training at `step`, with the state restored."""
        coordinator, self.begun = self._coordinator, True
        coordinator.enter(left=True)
        coordinator.step, coordinator.done = step, self._work(step)
        coordinator.begin()
        coordinator.reporter.register()
        if self.found is not None:
            coordinator.mark()

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record that an optimizer step is done, with its metrics.

        Parameters
        ----------
        step : int
        metrics : Mapping[str, Any]
            Numbers by name.
        """
        self._coordinator.reporter.metrics(metrics)
        self._coordinator.stepped(step, self._work(step))

    def agree(self) -> str:
        """Return what the ranks agreed on after this step: SUSPEND, SAVE, or nothing."""
        agreed = self._coordinator.agree()
        return SUSPEND if agreed.suspend else SAVE if agreed.save else ""

    def save_last(self, write: Write) -> None:
        """Write the final checkpoint, with which the training is complete."""
        self._over = True
        self._coordinator.save_last(write)

    def writing(self, facts: Mapping[str, Any], fill: Fill) -> Write:
        """Return the function for the coordinator that writes a checkpoint.

        Parameters
        ----------
        facts : Mapping[str, Any]
            JSON values for the manifest.
        fill : callable
            Writes the files of a checkpoint into a directory.
        """
        return functools.partial(self._commit, facts, fill)

    def _work(self, step: int) -> float:
        return float(step * self._coordinator.step_work)

    def _commit(self, facts: Mapping[str, Any], fill: Fill) -> Checkpoint | None:
        """Write one draft on all ranks, and commit it; return the checkpoint on rank 0.

        Raises
        ------
        OSError, CheckpointError
            Nothing was committed.
        """
        ranks, store = self._coordinator.ranks, self._coordinator.store
        assert store is not None
        if ranks.rank != 0:
            place = ranks.broadcast(_NOWHERE).decode()
            if place != _NOWHERE.decode():
                _together(ranks, fill, Path(place))
            return None
        told = False

        def into(draft: Draft) -> None:
            nonlocal told
            told = True
            ranks.broadcast(str(draft.path).encode())
            _together(ranks, fill, draft.path)
            draft.adopt()

        known = {
            "format": self._format,
            "phase": AFTER if self._over else EPOCH,
            "command": self._coordinator.turn.command,
            "world_size": ranks.size,
            "done": self._work(self._coordinator.step),
        }
        try:
            return store.commit(self._coordinator.step, {**known, **facts}, into)
        except (OSError, CheckpointError):
            if not told:
                ranks.broadcast(_NOWHERE)
            raise


def _together(ranks: Ranks, fill: Fill, place: Path) -> None:
    """Write the part of this rank, and wait for the parts of the others.

    Raises
    ------
    OSError
        On every rank alike: a part could not be written.
    """
    failure: Exception | None = None
    try:
        fill(place)
    # Libraries write through other libraries, whose errors for a full disk have no common base.
    except Exception as error:
        failure = error
        if not isinstance(error, OSError) and _is_full(place):
            failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if ranks.smallest(int(failure is None)):
        return
    # Not empty, since a collective needs at least one byte.
    others = ranks.gather(reason(failure).encode() if failure else b" ")
    if isinstance(failure, OSError):
        raise failure
    why = _one_line(failure) if failure else "another rank could not write its part"
    said = next((other.decode() for other in others if other.strip()), why)
    raise OSError(errno.EIO, said if failure is None else why) from failure


def _is_full(place: Path) -> bool:
    """Return whether a disk is nearly full, which libraries do not always report."""
    try:
        room = os.statvfs(place)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _ROOM_BYTES


def _present() -> dict[str, Any]:
    """Return the state that a rehearsal compares; the library has imported PyTorch already."""
    from hpcext.training.torch.whole import present  # noqa: PLC0415

    return present()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
