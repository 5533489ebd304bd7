"""The coordinator of a training process: requests, agreements, checkpoints, answers, reports.

The training code (a session's loop, or a library with callbacks) calls it between two steps. It
checks for a request to suspend, agrees with the other ranks on what happens at this place, has
checkpoints written and counts them, acknowledges a suspension and ends the process, and reports
progress. The caller decides what a checkpoint contains, and when the training is at a place to
stop.
"""

from __future__ import annotations

import atexit
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from hpcext import protocol
from hpcext.training import trackers
from hpcext.training.checkpoint import MANIFEST, Checkpoint, CheckpointError, Store, reason, warn
from hpcext.training.ending import (
    DECLINED_PAUSE_MAX_S,
    DECLINED_PAUSE_S,
    FENCED,
    SAVED,
    outcome_of,
    write_last,
)
from hpcext.training.leave import EXIT_NOT_SAVED, leave
from hpcext.training.ranks import Control, Ranks
from hpcext.training.rehearsal import Rehearsal
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest, write_stacks_when_told
from hpcext.training.succession import Turn

Write = Callable[[], Checkpoint | None]
"""A function that commits a checkpoint; all ranks call it, and it is returned on one of them."""

Stage = Callable[[Callable[[], object], Callable[[OSError], object]], object]
"""A function that begins to write a checkpoint beside the training; its arguments are called when
the checkpoint is written, and when it cannot be."""


class Coordinator:
    """The coordinator of a training process.

    Parameters
    ----------
    checkpoint_dir : path-like, optional
        Where to save without a manager; a manager's own directory overrides it. With neither,
        nothing is saved, and no signal is received.
    checkpoint_every_s : float, optional
        Seconds between two periodic checkpoints.
    checkpoint_every_steps : int, optional
        Steps between two periodic checkpoints.
    keep : int
        Number of checkpoints to keep.
    samples_per_step : int, optional
        Samples that all ranks train in a step, if the job's work is in samples.
    on_suspend : iterable of callables
        Called on every rank after the state is saved, before the process leaves.

    Attributes
    ----------
    attempt : protocol.Attempt or None
    store : Store or None
        The checkpoints; None if nothing is saved.
    ranks : Ranks
        This process alone before :meth:`join`.
    reporter : Reporter
    rehearsal : Rehearsal or None
    step : int
        Optimizer steps since the training began, over all attempts.
    done : float
        Work done in that time, in the job's unit.
    turn : Turn
        The place of this training among those of its process.
    """

    def __init__(
        self,
        *,
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
        self.turn = Turn(self.attempt, checkpoint_dir)
        directory = self.turn.directory
        # Before anything slow: from here on no request is lost, supervised or not.
        notices = self.attempt is not None and self.attempt.notices
        self._request = SuspendRequest(
            watch=directory is not None, supervised=self.attempt is not None, notices=notices
        )
        if self.attempt is not None:
            write_stacks_when_told()
        number = self.attempt.attempt if self.attempt else None
        run_id = self.attempt.run_id if self.attempt and self.turn.first else ""
        self.store = (
            Store(directory, attempt=number, keep=keep, run_id=run_id) if directory else None
        )
        self.ranks = Ranks()
        self.reporter = Reporter(None, 1)
        self.rehearsal: Rehearsal | None = None
        self.step = 0
        self.done = 0.0
        self.step_work = samples_per_step or 1
        self.counts_samples = samples_per_step is not None
        self._every_s = checkpoint_every_s
        self._every_steps = checkpoint_every_steps
        self._on_suspend = tuple(on_suspend)
        self._save_requested = False
        self._saved_s = time.monotonic()

    # -- the beginning

    def join(self, ranks: Ranks) -> None:
        """Join the ranks of this job."""
        self.ranks = ranks
        self.reporter = Reporter(self.attempt if ranks.rank == 0 else None, ranks.size)

    def regroup(self, ranks: Ranks) -> None:
        """Use another group of ranks from now on, of which rank 0 is the same process."""
        self.ranks = ranks
        self.reporter.resized(ranks.size)

    def rehearse(self, rank: int, look: Callable[[], Mapping[str, Any]]) -> None:
        """Rehearse a suspension if this attempt is for that.

        Parameters
        ----------
        rank : int
        look : callable
            Returns the state of the process, by kind.
        """
        self.rehearsal = Rehearsal.of(self.attempt, rank, look)

    def mark(self) -> None:
        """Record, for a rehearsal, the state that is written or restored here."""
        if self.rehearsal is not None:
            self.rehearsal.mark(self.step)

    def begin(self) -> None:
        """Begin training at the present step, with the state restored."""
        self.reporter.restored(*self._reported(self.step, self.done))
        self._saved_s = time.monotonic()
        atexit.register(self.reporter.flush)

    # -- the steps

    def enter(self, *, left: bool) -> None:
        """Check, as the training is about to make steps, that it saves in a place of its own.

        Parameters
        ----------
        left : bool
            As for :meth:`Turn.enter`.
        """
        self.turn.enter(self.ranks, self.reporter, left=left)

    def _reported(self, step: int, done: float) -> tuple[int, float]:
        """Return steps and work of the job, whose trainings its manager does not tell apart."""
        steps, work = self.turn.before
        return steps + step, work + done

    def stepped(self, step: int, done: float) -> None:
        """Record that a step is done.

        Parameters
        ----------
        step : int
            Steps so far.
        done : float
            Work so far, in the job's unit.
        """
        self.step, self.done = step, done
        if self.rehearsal is None or self.rehearsal.checkpoint is None:
            self.reporter.stepped(*self._reported(step, done))

    def agree(self, resize: int = 0) -> Control:
        """Return what all ranks agreed on at the previous step; call it between two steps.

        Parameters
        ----------
        resize : int
            Number of the group into which the ranks should change; 0 for none.
        """
        if self.store is None:
            return Control()
        suspend, save = int(self._request.suspend_requested()), int(self._due())
        agreed = self.ranks.exchange(Control(suspend, save, resize))
        if self._every_steps and self.step % self._every_steps == 0:
            agreed = agreed._replace(save=1)
        return agreed

    def agree_to_suspend(self) -> bool:
        """Return whether to suspend, as all agreed; call it between two batches of a validation."""
        if self.store is None:
            return False
        agreed = self.ranks.exchange(Control(suspend=int(self._request.suspend_requested())))
        if agreed.save:
            # The request came too late for the last step; it is repeated after the next one.
            self._save_requested = False
        return bool(agreed.suspend)

    def _due(self) -> bool:
        """Return whether to request a periodic checkpoint; only once, as the answer comes later."""
        due = (
            self.ranks.rank == 0
            and self._every_s is not None
            and not self._save_requested
            and time.monotonic() - self._saved_s >= self._every_s
        )
        self._save_requested = self._save_requested or due
        return due

    def pause(self) -> None:
        """Record that other work, which may take long, precedes the next step."""
        self.reporter.pause()

    # -- checkpoints

    def save(self, write: Write) -> None:
        """Write a periodic checkpoint; the training goes on if writing fails."""
        self._save_requested = False
        if self.store is None:
            return
        self.pause()
        try:
            self._write_and_prune(write)
        except OSError as error:
            self._not_saved(self.step, error)
        # After the writing, so that the interval is one of training.
        self._saved_s = time.monotonic()

    def save_beside(self, stage: Stage) -> None:
        """Begin a periodic checkpoint that is written while the training goes on."""
        self._save_requested = False
        self.pause()
        stage(
            functools.partial(self._saved, self.step),
            functools.partial(self._not_saved, self.step),
        )
        self._saved_s = time.monotonic()

    def save_last(self, write: Write) -> None:
        """Write the final checkpoint, with which the job is complete."""
        store = self.store
        if store is None:
            return
        self.pause()
        write_last(
            lambda: self._write_and_prune(write),
            ranks=self.ranks,
            request=self._request,
            reporter=self.reporter,
            supervised=self.attempt is not None,
            failed=lambda error: store.warn_not_written(self.step, error),
        )
        self.turn.complete(self.step, self.done)

    def suspend(self, write: Write, *, before_leaving: Callable[[], object] = lambda: None) -> None:
        """Save, acknowledge and leave; return if the state could not be saved.

        Parameters
        ----------
        write : callable
        before_leaving : callable
            Called on every rank when the state is saved, before `on_suspend`.
        """
        assert self.store is not None
        self.pause()
        agreed_at, began_s = time.time(), time.monotonic()
        checkpoint: Checkpoint | None = None
        failure: Exception | None = None
        try:
            checkpoint = self.write(write)
        except (OSError, CheckpointError) as error:
            failure = error
        # Other ranks may know the checkpoint from which they go on; rank 0 reports it for all.
        checkpoint = checkpoint if self.ranks.rank == 0 else None
        failure = self._acknowledge(checkpoint, failure, agreed_at)
        outcome = self.ranks.smallest(outcome_of(failure))
        if outcome == FENCED:
            if failure:
                warn(str(failure))
            leave(EXIT_NOT_SAVED)
        if outcome == SAVED:
            if checkpoint is not None:
                self.store.prune()
            self._leave((before_leaving, *self._on_suspend))
        self._decline(failure, time.monotonic() - began_s)

    def _acknowledge(
        self, checkpoint: Checkpoint | None, failure: Exception | None, agreed_at: float
    ) -> Exception | None:
        """Acknowledge the suspension to the manager, if the state is saved on every rank.

        Parameters
        ----------
        checkpoint : Checkpoint or None
            The checkpoint with the state; None except on rank 0.
        failure : Exception or None
            Why this rank could not write.
        agreed_at : float
            Time at which all ranks agreed to stop, in seconds since the epoch.

        Returns
        -------
        Exception or None
            Why this rank could not write or acknowledge; then the suspension does not count.
        """
        written_at = time.time()
        # A barrier: no rank goes on before the checkpoint is complete, and all go the same way.
        whole = self.ranks.smallest(outcome_of(failure)) == SAVED
        if whole and checkpoint is not None:
            try:
                manifest = str(checkpoint.path / MANIFEST)
                self.reporter.suspended(manifest, agreed_at=agreed_at, written_at=written_at)
            except OSError as error:
                return error
        return failure

    def _leave(self, callbacks: Iterable[Callable[[], object]]) -> NoReturn:
        """End this process, whose state is saved."""
        callbacks = (*callbacks, trackers.hand_over)
        if self.attempt is not None:
            leave(0 if self._launched() else protocol.EXIT_SUSPENDED, callbacks)
        # Without a manager only the exit code says that the training is not over, and torchrun ends
        # the other ranks when one has such a code, so none may be late.
        self.ranks.smallest(0)
        leave(protocol.EXIT_SUSPENDED, callbacks)

    def _launched(self) -> bool:
        """Return whether a launcher of ranks has started this process.

        It ends other ranks at any exit code but 0. After 0 other programs go on as after the work.
        """
        return self.ranks.size > 1 or not {"RANK", "LOCAL_RANK"}.isdisjoint(protocol.environ())

    def _decline(self, failure: Exception | None, took_s: float) -> None:
        """Go on without having been suspended; pause before the next attempt.

        A manager that must have the GPUs repeats the request, and ends the training after its
        deadline.
        """
        pause_s = (
            min(max(DECLINED_PAUSE_S, 4 * took_s), DECLINED_PAUSE_MAX_S) if self.attempt else 0.0
        )
        self._request.decline(pause_s)
        if failure:
            warn(
                f"the suspension at step {self.step} is declined because the state could not be "
                f"saved ({failure}); the training goes on"
            )
            self.reporter.declined(reason(failure))
        # A periodic one that was requested at the same time would have failed as well.
        self._save_requested, self._saved_s = False, time.monotonic()

    def write(self, write: Write) -> Checkpoint | None:
        """Write a checkpoint of the present step, and report it.

        Raises
        ------
        OSError, CheckpointError
            Nothing was written.
        """
        checkpoint = write()
        if checkpoint is not None:
            # Perhaps an earlier one, if the training is not yet at the place where that was
            # written.
            self._report_saved(checkpoint.manifest.get("step", self.step))
        return checkpoint

    def _write_and_prune(self, write: Write) -> None:
        assert self.store is not None
        if self.write(write):
            self.store.prune()

    def _saved(self, step: int) -> None:
        """Record a staged checkpoint; the thread that wrote it calls this."""
        self._saved_s = time.monotonic()
        self._report_saved(step)

    def _report_saved(self, step: int) -> None:
        self.reporter.saved(self._reported(step, 0.0)[0])

    def _not_saved(self, step: int, error: OSError) -> None:
        """Report that a periodic checkpoint could not be written."""
        assert self.store is not None
        self.store.warn_not_written(step, error)
        self.reporter.cannot_save(reason(error))
