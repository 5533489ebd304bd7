"""Decisions between two steps: the ranks agree to stop, to save, to resize, or to go on."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcext import protocol
from hpcext.training.checkpoint import Checkpoint, CheckpointError, reason
from hpcext.training.checkpoint.keeper import Keeper
from hpcext.training.checkpoint.place import BEFORE, EPOCH, Place
from hpcext.training.checkpoint.state import State, Tree
from hpcext.training.data.undivided import Seen, verdict
from hpcext.training.ending import leave_suspended, write_last
from hpcext.training.ranks import Control, Ranks
from hpcext.training.rehearsal import Rehearsal
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest


class Boundaries:
    """The part of a session that no script calls; see :class:`hpcext.training.session.Session`."""

    rank: int
    world_size: int
    step: int
    _attempt: protocol.Attempt | None
    _request: SuspendRequest
    _ranks: Ranks
    _reporter: Reporter
    _state: State
    _keeper: Keeper | None
    _staging: bool
    _every_s: float | None
    _every_steps: int | None
    _on_suspend: tuple[Callable[[], object], ...]
    _place: Place
    # BEFORE until a session has begun; one whose making failed never begins.
    _phase: str = BEFORE
    _save_asked: bool
    _saved_s: float
    _resume: Checkpoint | None
    _epoch_random: Tree
    _seen: Seen | None
    _rehearsal: Rehearsal | None
    _compared = False
    # For messages: what divides the data among ranks, and what averages models, in this framework.
    _use = "give each rank its part"
    _wrap = "average them"

    def _facts(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def _boundary(self) -> bool:
        """Stop, save, resize or go on between two steps, as all ranks agree.

        If the state could not be saved for a stop, the training goes on.

        Returns
        -------
        bool
            Whether the set of ranks has changed.
        """
        if self._keeper is None or self._phase != EPOCH:
            return False
        self._compare_ranks()
        agreed = self._ranks.exchange(self._wish())
        self._keeper.look()
        if self._rehearsal is not None:
            self._rehearsal.stepped(self.step, self._reporter.fresh())
        if agreed.stop:
            if not self._goes_on():
                self._suspend(self._place, self._state.random())
        elif agreed.save or (self._every_steps and self.step % self._every_steps == 0):
            self._save()
        if agreed.resize:
            self._change_group(agreed.resize)
        return bool(agreed.resize)

    def _compare_ranks(self) -> None:
        """Check once in an attempt that all ranks train one model, on batches of their own."""
        if self._compared:
            return
        self._compared = True
        if self.world_size == 1:
            return
        told = self._ranks.gather(json.dumps(self._seen).encode())
        seen = [Seen(*(json.loads(each) or ())) for each in told]
        for note in verdict(seen, use=self._use, wrap=self._wrap) if seen else ():
            self._reporter.note(note)

    def _goes_on(self) -> bool:
        """Return whether a rehearsal makes more steps, as if there were no suspension."""
        rehearsal = self._rehearsal
        if rehearsal is None:
            return False
        if rehearsal.checkpoint is None:
            written, saved = None, True
            try:
                written = self._write(self._place, self._state.random())
            except (OSError, CheckpointError):
                saved = False
            # Rank 0 alone writes; if it could not, rehearse at a later request.
            if not self._ranks.smallest(int(saved)):
                return False
            rehearsal.checkpoint = written or Checkpoint(Path(), {})
            rehearsal.mark(self.step)
        if self._ranks.smallest(int(not rehearsal.over())):
            return True
        self._end_rehearsal()
        return False

    def _end_rehearsal(self) -> None:
        """Resume from the rehearsal's checkpoint, not from the steps made since."""
        if self._rehearsal is not None:
            self._resume = self._rehearsal.checkpoint or self._resume

    def _next_group(self) -> int:
        """Return the number of the group that the ranks should change into; 0: none."""
        return 0

    def _change_group(self, number: int) -> None:
        """Join the group with this number, or leave the training."""
        raise NotImplementedError("this session asks for no other group")

    def _look(self, place: Place, random: Tree) -> None:
        """Stop at a boundary within a validation if all ranks agree."""
        agreed = self._ranks.exchange(Control(stop=int(self._request.asked())))
        if agreed.stop:
            self._end_rehearsal()
            self._suspend(place, random)
        if agreed.save:
            # The request came too late for the last step; it is made again after the next one.
            self._save_asked = False

    def _wish(self) -> Control:
        due = (
            self.rank == 0
            and self._every_s is not None
            and not self._save_asked
            and time.monotonic() - self._saved_s >= self._every_s
        )
        # Asked once only: the answer comes one step later.
        self._save_asked = self._save_asked or due
        return Control(stop=int(self._request.asked()), save=int(due), resize=self._next_group())

    def _save(self) -> None:
        """Write a checkpoint beside the training, which goes on if writing fails."""
        self._save_asked = False
        if self._keeper is None:
            return
        if self._staging:
            saved = functools.partial(self._saved, self.step)
            self._keeper.stage(
                *self._to_write(self._place, self._state.random()),
                saved,
                functools.partial(self._not_saved, self.step),
            )
        else:
            try:
                if self._write(self._place, self._state.random()):
                    self._keeper.store.prune()
            except OSError as error:
                self._not_saved(self.step, error)
        # Here, after the writing: the interval is one of training.
        self._saved_s = time.monotonic()

    def _save_last(self) -> None:
        """Write the final checkpoint."""
        keeper = self._keeper
        if keeper is None:
            return

        def write() -> None:
            if self._write(self._place, self._state.random()):
                keeper.store.prune()

        write_last(
            write,
            ranks=self._ranks,
            request=self._request,
            reporter=self._reporter,
            supervised=self._attempt is not None,
            failed=lambda error: keeper.store.warn_not_written(self.step, error),
        )

    def _saved(self, step: int) -> None:
        """Record a staged checkpoint; the thread that wrote it calls this."""
        self._saved_s = time.monotonic()
        self._reporter.saved(step)

    def _not_saved(self, step: int, error: OSError) -> None:
        """Report that a periodic checkpoint could not be written; the training goes on."""
        assert self._keeper is not None
        self._keeper.store.warn_not_written(step, error)
        self._reporter.cannot_save(reason(error))

    def _to_write(self, place: Place, random: Tree) -> tuple[int, dict[str, Any], Tree]:
        facts = {**self._facts(), **place.as_dict()}
        return self.step, facts, {"now": random, "epoch": self._epoch_random}

    def _write(self, place: Place, random: Tree) -> Checkpoint | None:
        assert self._keeper is not None
        checkpoint = self._keeper.write(*self._to_write(place, random))
        self._reporter.saved(self.step)
        return checkpoint

    def _suspend(self, place: Place, random: Tree) -> None:
        """Save, acknowledge and leave; return if the state could not be saved."""
        agreed_at, began_s = time.time(), time.monotonic()
        checkpoint: Checkpoint | None = None
        failure: Exception | None = None
        try:
            # Not yet where the last attempt stopped: its checkpoint is all there is to save.
            checkpoint = self._resume or self._write(place, random)
        except (OSError, CheckpointError) as error:
            failure = error
        assert self._keeper is not None
        leave_suspended(
            checkpoint if self.rank == 0 else None,
            step=self.step,
            failure=failure,
            agreed_at=agreed_at,
            began_s=began_s,
            ranks=self._ranks,
            request=self._request,
            reporter=self._reporter,
            store=self._keeper.store,
            supervised=self._attempt is not None,
            callbacks=self._on_suspend,
        )
        # A periodic one that was asked for at the same time would have failed as well.
        self._save_asked, self._saved_s = False, time.monotonic()
