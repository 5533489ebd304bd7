"""What callbacks for training libraries share: agreeing, saving, acknowledging, leaving.

A library that owns the training loop also owns the format of its checkpoints. So the library
writes, and this module says where and when: into a draft of the
:class:`~hpcext.training.checkpoint.Store`, which becomes a checkpoint by one rename once every file
in it is flushed and has its checksum in the manifest.
"""

from __future__ import annotations

import atexit
import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcext import protocol
from hpcext.training.checkpoint import Checkpoint, CheckpointError, Draft, Store, reason
from hpcext.training.ending import leave_suspended, write_last
from hpcext.training.ranks import Control, Ranks
from hpcext.training.rehearsal import Rehearsal
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest

_NOWHERE = b"-"
"""Broadcast instead of the path of a draft that could not be made."""

Write = Callable[[Path], None]
"""A function that writes the files of a checkpoint into a directory; called on every rank."""


class Link:
    """The connection between a library's callback and the manager of the job.

    Parameters
    ----------
    rank : int
        Rank of this process; known before the library has joined the ranks.
    format : str
        Name and version of the format that the library writes; another one is not resumed from.
    checkpoint_dir : path-like, optional
        Where to save outside a manager; a manager's own directory takes its place. With neither,
        nothing is saved and no signal is looked for.
    checkpoint_every_s : float, optional
        Seconds between two periodic checkpoints.
    checkpoint_every_steps : int, optional
        Steps between two periodic checkpoints.
    keep : int
        Checkpoints to keep.
    samples_per_step : int, optional
        Samples that all ranks train in a step, for reports.
    on_suspend : iterable of callables
        Called on every rank after the state is saved, before the process leaves.

    Attributes
    ----------
    attempt : protocol.Attempt or None
    ranks : Ranks
        This process alone until :meth:`join`.
    found : Checkpoint or None
        The checkpoint that :meth:`find` found.
    step : int
        Optimizer steps since the job began.
    """

    def __init__(
        self,
        *,
        rank: int,
        format: str,
        checkpoint_dir: str | Path | None = None,
        checkpoint_every_s: float | None = 300.0,
        checkpoint_every_steps: int | None = None,
        keep: int = 2,
        samples_per_step: int | None = None,
        on_suspend: Iterable[Callable[[], object]] = (),
    ) -> None:
        if checkpoint_every_steps is not None and checkpoint_every_steps < 1:
            raise ValueError(
                f"checkpoint_every_steps={checkpoint_every_steps}: at least 1, or None"
            )
        self.attempt = protocol.Attempt.from_environ()
        directory = self.attempt.checkpoint_dir if self.attempt else checkpoint_dir
        # Done before anything slow: from here on no request is lost, supervised or not.
        notices = self.attempt is not None and self.attempt.notices
        self._request = SuspendRequest(
            watch=directory is not None, supervised=self.attempt is not None, notices=notices
        )
        self._format = format
        self._rank = rank
        number = self.attempt.attempt if self.attempt else None
        self.store = Store(Path(directory), attempt=number, keep=keep) if directory else None
        self._every_s = checkpoint_every_s
        self._every_steps = checkpoint_every_steps
        self._step_work = samples_per_step or 1
        self._on_suspend = tuple(on_suspend)
        self.ranks = Ranks()
        self.reporter = Reporter(None, 1)
        self.found: Checkpoint | None = None
        self._looked = False
        self._rehearsal = Rehearsal.asked(self.attempt, rank, _present)
        self.step = 0
        self._save_asked = False
        self._saved_s = time.monotonic()

    # -- the beginning

    def find(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, or None if there never was one.

        Every rank looks for itself, because no library has joined the ranks yet; :meth:`join`
        compares what they found.

        Raises
        ------
        CheckpointError
            No checkpoint in the directory can be used, or a newer attempt has begun.
        """
        if self._looked or self.store is None:
            return self.found
        self._looked = True
        if self._rank == 0:
            self.store.open()
        if self.store.directory.is_dir():
            self.found = self.store.newest()
        if self.found is not None and self.found.manifest.get("format") != self._format:
            raise CheckpointError(
                f"is of format {self.found.manifest.get('format')}, and this callback reads "
                f"{self._format}",
                where=self.found.path,
                do="use the library it was written with, or another checkpoint directory",
            )
        return self.found

    def join(self, ranks: Ranks) -> None:
        """Join the ranks, and check that all found the same checkpoint.

        Raises
        ------
        CheckpointError
            They did not.
        """
        self.ranks = ranks
        self._rank = ranks.rank
        self.find()
        self.reporter = Reporter(self.attempt if ranks.rank == 0 else None, ranks.size)
        mine = self.found.path.name if self.found else "nothing"
        first = ranks.broadcast(mine.encode()).decode()
        # All ranks raise or none: one that raised alone would leave the others waiting.
        if not ranks.smallest(int(mine == first)):
            raise CheckpointError(
                f"rank 0 found {first}, and rank {ranks.rank} {mine}",
                where=self.store.directory if self.store else "",
                do="the checkpoint directory must be the same on every node",
            )

    def begin(self, step: int) -> None:
        """Begin training at `step`, with the state restored."""
        self.step = step
        self.reporter.restored(step, float(step * self._step_work))
        self.reporter.register()
        if self._rehearsal is not None and self.found is not None:
            self._rehearsal.mark(step)
        self._saved_s = time.monotonic()
        atexit.register(self.reporter.flush)

    # -- the steps

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record that an optimizer step is done, with its metrics."""
        self.step = step
        self.reporter.metrics(metrics)
        self.reporter.stepped(step, float(step * self._step_work))

    def ask(self) -> Control:
        """Return what all ranks agreed on at the step before; call it between two steps."""
        if self.store is None:
            return Control()
        agreed = self.ranks.exchange(self._wish())
        if self._every_steps and self.step % self._every_steps == 0:
            agreed = agreed._replace(save=1)
        return agreed

    def look(self) -> bool:
        """Return whether to stop; call it between two batches of a validation."""
        if self.store is None:
            return False
        agreed = self.ranks.exchange(Control(stop=int(self._request.asked())))
        if agreed.save:
            # The request came too late for the last step; it is made again after the next one.
            self._save_asked = False
        return bool(agreed.stop)

    def _wish(self) -> Control:
        due = (
            self.ranks.rank == 0
            and self._every_s is not None
            and not self._save_asked
            and time.monotonic() - self._saved_s >= self._every_s
        )
        # Asked once only: the answer comes one step later.
        self._save_asked = self._save_asked or due
        return Control(stop=int(self._request.asked()), save=int(due))

    # -- checkpoints

    def save(self, facts: Mapping[str, Any], write: Write) -> None:
        """Write a checkpoint beside the training, which goes on if writing fails."""
        self._save_asked = False
        if self.store is None:
            return
        try:
            self._commit_and_prune(facts, write)
        except OSError as error:
            self._warn_not_written(error)
            self.reporter.cannot_save(reason(error))
        # Here, after the writing: the interval is one of training.
        self._saved_s = time.monotonic()

    def save_last(self, facts: Mapping[str, Any], write: Write) -> None:
        """Write the final checkpoint: the job is complete after it."""
        if self.store is None:
            return
        write_last(
            lambda: self._commit_and_prune(facts, write),
            ranks=self.ranks,
            request=self._request,
            reporter=self.reporter,
            supervised=self.attempt is not None,
            failed=self._warn_not_written,
        )

    def suspend(
        self,
        facts: Mapping[str, Any],
        write: Write,
        *,
        before_leaving: Callable[[], object] = lambda: None,
    ) -> None:
        """Save, acknowledge and leave; return if the state could not be saved."""
        agreed_at, began_s = time.time(), time.monotonic()
        if self._rehearsal is not None:
            self._rehearsal.mark(self.step)
        checkpoint: Checkpoint | None = None
        failure: Exception | None = None
        try:
            checkpoint = self._commit(facts, write)
        except (OSError, CheckpointError) as error:
            failure = error
        assert self.store is not None
        leave_suspended(
            checkpoint,
            step=self.step,
            failure=failure,
            agreed_at=agreed_at,
            began_s=began_s,
            ranks=self.ranks,
            request=self._request,
            reporter=self.reporter,
            store=self.store,
            supervised=self.attempt is not None,
            callbacks=(before_leaving, *self._on_suspend),
        )
        # A periodic one that was asked for at the same time would have failed as well.
        self._save_asked, self._saved_s = False, time.monotonic()

    def _commit_and_prune(self, facts: Mapping[str, Any], write: Write) -> None:
        assert self.store is not None
        if self._commit(facts, write):
            self.store.prune()

    def _warn_not_written(self, error: OSError) -> None:
        assert self.store is not None
        self.store.warn_not_written(self.step, error)

    def _commit(self, facts: Mapping[str, Any], write: Write) -> Checkpoint | None:
        """Have all ranks write into one draft, and commit it.

        Returns
        -------
        Checkpoint or None
            None on all ranks but 0.

        Raises
        ------
        OSError, CheckpointError
            Nothing was committed.
        """
        if self.ranks.rank != 0:
            place = self.ranks.broadcast(_NOWHERE).decode()
            if place != _NOWHERE.decode():
                self._together(write, Path(place))
            return None
        assert self.store is not None
        told = False

        def fill(draft: Draft) -> None:
            nonlocal told
            told = True
            self.ranks.broadcast(str(draft.path).encode())
            self._together(write, draft.path)
            draft.adopt()

        try:
            checkpoint = self.store.commit(self.step, {**self._facts(), **facts}, fill)
        except (OSError, CheckpointError):
            if not told:
                self.ranks.broadcast(_NOWHERE)
            raise
        self.reporter.saved(self.step)
        return checkpoint

    def _together(self, write: Write, place: Path) -> None:
        """Write the part of this rank, and wait for the parts of the others.

        Raises
        ------
        OSError
            On every rank alike: one of the parts could not be written.
        """
        failure: Exception | None = None
        try:
            write(place)
        # Libraries write through libraries, whose errors for a full disk have no common base.
        except Exception as error:
            failure = error
            if not isinstance(error, OSError) and _is_full(place):
                failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.ranks.smallest(int(failure is None)):
            return
        # Not empty: a collective needs at least one byte.
        others = self.ranks.gather(reason(failure).encode() if failure else b" ")
        if isinstance(failure, OSError):
            raise failure
        why = _one_line(failure) if failure else "another rank could not write its part"
        said = next((other.decode() for other in others if other.strip()), why)
        raise OSError(errno.EIO, said if failure is None else why) from failure

    def _facts(self) -> dict[str, Any]:
        return {
            "format": self._format,
            "world_size": self.ranks.size,
            "done": float(self.step * self._step_work),
        }


_ROOM_BYTES = 1 << 20


def _is_full(place: Path) -> bool:
    """Return whether a disk has hardly any room; libraries do not always report a full disk."""
    try:
        room = os.statvfs(place)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _ROOM_BYTES


def _present() -> dict[str, Any]:
    """Return what a rehearsal compares; the library has imported PyTorch already."""
    from hpcext.training.torch.whole import present  # noqa: PLC0415

    return present()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
