"""A session makes a training script stoppable: it finds the step to stop at, saves and resumes.

For NumPy and anything else that has a state; PyTorch's is :class:`hpcext.training.torch.Session`.

Where a script may stop, and where it goes on
---------------------------------------------
Each turn of the loop over :meth:`Session.batches` is one step, and its end is a boundary: a place
to stop. So is the end of each turn of :meth:`Session.validation`, from whose *beginning* the
script goes on later.

A resumed script runs from its first line. What it does before the place where it stopped, in the
same epoch (say ``scheduler.step()`` between training and validation), it does once more; at that
place everything that the session holds is therefore set to the saved state *again*, and so are
the random numbers. Until then they have the states that they had when the epoch began, so that an
order drawn there is the same one.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from hpcext import protocol
from hpcext.training.checkpoint import MANIFEST, Checkpoint, CheckpointError, Store, warn
from hpcext.training.keeper import Keeper
from hpcext.training.leave import EXIT_NOT_SAVED, leave
from hpcext.training.loading import open_loader
from hpcext.training.place import AFTER, BEFORE, EPOCH, Place
from hpcext.training.ranks import Control, Ranks
from hpcext.training.reports import Reporter
from hpcext.training.sampler import ResumableSampler
from hpcext.training.signals import SuspendRequest
from hpcext.training.state import State, Tree

Batch = TypeVar("Batch")


class Session:
    """Makes a training loop resumable. Restores the newest checkpoint when constructed.

    Parameters
    ----------
    checkpoint_dir : path-like, optional
        Where to save outside a manager; a manager's own directory takes its place. With neither,
        the loops are plain loops.
    checkpoint_every_s : float, optional
        Seconds between periodic checkpoints; None: none by time.
    checkpoint_every_steps : int, optional
        Steps between periodic checkpoints.
    keep : int
        Checkpoints to keep, at least 2.
    seed : int, optional
        Seeds the global random numbers (plus the rank) when there is nothing to resume, and the
        order of :meth:`sampler`. Not given: the random numbers are left alone.
    samples_per_step : int, optional
        Samples that all ranks consume in a step, if the job's work counts samples.
    on_suspend : iterable of callables
        Called without arguments on every rank when the suspension is acknowledged.
    **state
        What to save, by name: see :class:`hpcext.training.state.State`.

    Raises
    ------
    CheckpointError
        There are checkpoints and none can be used, or a newer attempt has begun.
    TypeError, ValueError
        A parameter is not valid.

    Attributes
    ----------
    step : int
        Optimizer steps since the job began, over all attempts.
    rank, world_size : int
    resumed : bool
        Whether a checkpoint was restored.
    """

    def __init__(
        self,
        *,
        checkpoint_dir: str | Path | None = None,
        checkpoint_every_s: float | None = 300.0,
        checkpoint_every_steps: int | None = None,
        keep: int = 2,
        seed: int | None = None,
        samples_per_step: int | None = None,
        on_suspend: Iterable[Callable[[], object]] = (),
        **state: Any,
    ) -> None:
        self._attempt = protocol.Attempt.from_environ()
        directory = self._attempt.checkpoint_dir if self._attempt else checkpoint_dir
        # Before anything slow: from here on no request is lost, supervised or not.
        self._request = SuspendRequest(watch=directory is not None)
        self._ranks = self._join()
        self.rank, self.world_size = self._ranks.rank, self._ranks.size
        self._reporter = Reporter(self._attempt if self.rank == 0 else None, self.world_size)
        self._state = self._make_state(state)
        self._keeper: Keeper | None = None
        if directory is not None:
            number = self._attempt.attempt if self._attempt else None
            store = Store(Path(directory), attempt=number, keep=keep)
            self._keeper = Keeper(store, self._state, self._ranks)
        self._every_s = checkpoint_every_s
        self._every_steps = checkpoint_every_steps
        self._seed = seed
        self._step_work = samples_per_step or 1
        self._on_suspend = tuple(on_suspend)
        self.step = 0
        self._done = 0.0
        self._place = Place()
        self._phase = BEFORE
        self._count = 0
        self._turn: Callable[[], int] | None = None
        self._validations = 0
        self._save_asked = False
        self._saved_s = time.monotonic()
        self._resume_random: Tree | None = None
        self._begin()

    def sampler(self, data: Sized | int, *, shuffle: bool = True) -> ResumableSampler:
        """A sampler for this rank that resumes in mid-epoch, at any number of ranks.

        Augmentation in loader workers: draw it from (seed, epoch, index). Workers begin afresh
        when an epoch is resumed, so what they draw from their own streams is not the same again.

        Parameters
        ----------
        data : Sized or int
            The data set, or its length.
        shuffle : bool
        """
        return ResumableSampler(
            data if isinstance(data, int) else len(data),
            rank=self.rank,
            world_size=self.world_size,
            seed=self._seed or 0,
            shuffle=shuffle,
        )

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left, by number, of `count` in all; a finished job has none."""
        self._count = count
        for epoch in range(self._place.epoch, count):
            self._begin_epoch(epoch)
            yield epoch
            if self._phase == AFTER:
                return
            self._drop_resume()
            self._place = Place(epoch=epoch + 1)
        self._phase, self._validations = AFTER, 0
        if self._place.phase != AFTER:
            self.finish()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches that are left of this epoch; each turn of the loop is one step.

        With a :meth:`sampler` in the loader, the data consumed before is not read again. Any
        other loader is read up to its place, which is exact if the number of ranks is the same.

        Raises
        ------
        RuntimeError
            Not inside :meth:`epochs`, or the second such loop of an epoch.
        CheckpointError
            The loader ends before the place where the checkpoint was written.
        """
        place = self._place
        if self._phase != EPOCH:
            raise RuntimeError("session.batches(): only inside `for epoch in session.epochs(n):`")
        if place.trained:
            if self._resume is None:
                raise RuntimeError("session.batches(): the second loop in one epoch; use only one")
            if not place.validation:
                self._arrive()
            return
        begun_on = self._resume.manifest["world_size"] if self._resume else self.world_size
        position, source = open_loader(loader, place, resized=begun_on != self.world_size)
        self._arrive()
        try:
            for turns, batch in enumerate(source, start=1):
                self._turn = functools.partial(position, turns)
                yield batch
                self._end_turn()
                self._boundary()
        finally:
            # Left by `break`: that step counts too, but is no place to stop; the script goes on
            # after the loop, and would do so once more on resumption.
            self._end_turn()
            place.trained = True

    def validation(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a validation, each a place to stop; it is begun anew on resumption.

        Every rank must come here (they may have different numbers of batches). Inside the loop
        over :meth:`batches` it does not stop: the end of that turn is the place.
        """
        if self._turn is not None or self._keeper is None:
            yield from loader
            return
        self._validations += 1
        if (self._place.phase, self._place.validation) == (self._phase, self._validations):
            self._arrive()
        place = dataclasses.replace(self._place, phase=self._phase, validation=self._validations)
        random = self._state.random()
        # A rank with fewer batches must not answer a later question than the others ask.
        looks = self._ranks.smallest(len(loader) if isinstance(loader, Sized) else 0)
        try:
            for batch in loader:
                yield batch
                if looks > 0 or self.world_size == 1:
                    looks -= 1
                    self._look(place, random)
        finally:
            # Left by `break`: the other ranks still ask.
            while looks > 0 and self.world_size > 1:
                looks -= 1
                self._look(place, random)

    def report(self, **metrics: Any) -> None:
        """Numbers to show for the job: loss, accuracy; cheap, may be called each step."""
        self._reporter.metrics(metrics)

    def finish(self) -> None:
        """The training is over: write the final checkpoint, so that a rerun trains no more.

        :meth:`epochs` calls it at its end. A script that stops early calls it itself.
        """
        self._end_turn()
        self._ranks.settle()
        self._phase, self._validations = AFTER, 0
        self._place = Place(phase=AFTER, epoch=max(self._count, self._place.epoch))
        self._save()
        self._reporter.flush()

    def _join(self) -> Ranks:
        """The ranks of this job."""
        return Ranks()

    def _make_state(self, objects: dict[str, Any]) -> State:
        return State(objects)

    def _facts(self) -> dict[str, Any]:
        """What a manifest should hold."""
        return {"done": self._done}

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        self.step = manifest["step"]
        self._done = manifest["done"]
        self._place = Place.of(manifest)

    def _begin(self) -> None:
        self._state.check()
        self._resume = self._keeper.find() if self._keeper else None
        self.resumed = self._resume is not None
        if self._resume is not None:
            self._restore_facts(self._resume.manifest)
            self._restore_state(self._resume)
        elif self._seed is not None:
            self._state.seed(self._seed + self.rank)
        self._epoch_random = self._state.random()
        self._reporter.register(self.step, self._done)
        atexit.register(self._reporter.flush)

    def _restore_state(self, checkpoint: Checkpoint) -> None:
        assert self._keeper is not None
        self._resume_random = self._keeper.load(checkpoint)
        if self._resume_random is not None:
            self._state.set_random(self._resume_random["now"])
        elif self._seed is not None:
            # A rank that was not there: a stream of its own, and another one after each resize.
            entropy = np.random.SeedSequence((self._seed, self.rank, self.step))
            self._state.seed(int(entropy.generate_state(1)[0]))

    def _arrive(self) -> None:
        """This is the place where the checkpoint was written: from here on all is new."""
        if self._resume is not None:
            self._restore_state(self._resume)
        self._drop_resume()

    def _drop_resume(self) -> None:
        self._resume = None
        self._place.validation = 0

    def _begin_epoch(self, epoch: int) -> None:
        self._phase, self._validations = EPOCH, 0
        if self._resume is None or self._place.phase != EPOCH:
            self._drop_resume()
            self._place = Place(phase=EPOCH, epoch=epoch)
        elif self._resume_random is not None:
            self._state.set_random(self._resume_random["epoch"])
        self._epoch_random = self._state.random()

    def _end_turn(self) -> None:
        """One step is done."""
        if self._turn is None:
            return
        self._place.samples = self._turn()
        self._place.batch += 1
        self._turn = None
        self.step += 1
        self._done += self._step_work
        self._reporter.stepped(self.step, self._done)

    def _boundary(self) -> None:
        """Between two steps: stop, save, or go on, as all ranks agree."""
        if self._keeper is None or self._phase != EPOCH:
            return
        agreed = self._ranks.exchange(self._wish())
        if agreed.stop:
            self._suspend(self._place, self._state.random())
        elif agreed.save or (self._every_steps and self.step % self._every_steps == 0):
            self._save()

    def _look(self, place: Place, random: Tree) -> None:
        """A boundary in a validation."""
        agreed = self._ranks.exchange(Control(stop=int(self._request.asked())))
        if agreed.stop:
            self._suspend(place, random)
        if agreed.save:
            # Asked for at the last step, too late for it; asked for again after the next one.
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
        return Control(stop=int(self._request.asked()), save=int(due))

    def _save(self) -> None:
        """Write a checkpoint beside the training; if that fails, training goes on."""
        self._save_asked = False
        if self._keeper is None:
            return
        try:
            if self._write(self._place, self._state.random()):
                self._keeper.store.prune()
        except OSError as error:
            warn(
                f"{self._keeper.store.directory}: checkpoint at step {self.step} not written "
                f"({error.strerror}); training goes on, the one before is kept"
            )
        # Here, after the writing: the interval is one of training.
        self._saved_s = time.monotonic()

    def _write(self, place: Place, random: Tree) -> Checkpoint | None:
        assert self._keeper is not None
        facts = {**self._facts(), **place.as_dict()}
        states = {"now": random, "epoch": self._epoch_random}
        checkpoint = self._keeper.write(self.step, facts, states)
        self._reporter.saved_step = self.step
        return checkpoint

    def _suspend(self, place: Place, random: Tree) -> NoReturn:
        """Save, acknowledge and leave."""
        agreed_at = time.time()
        checkpoint, failure = None, ""
        try:
            # Not yet where the last attempt stopped: its checkpoint is all there is to save.
            checkpoint = self._resume or self._write(place, random)
        except (OSError, CheckpointError) as error:
            failure = str(error)
        written_at = time.time()
        # The last barrier: no rank leaves before the checkpoint is whole, and all leave alike.
        saved = self._ranks.smallest(0 if failure else 1)
        if self.rank == 0 and checkpoint is not None:
            try:
                manifest = str(checkpoint.path / MANIFEST)
                self._reporter.suspended(manifest, agreed_at=agreed_at, written_at=written_at)
            except OSError as error:
                failure = str(error)
        if failure:
            warn(
                f"asked to suspend at step {self.step}, but that could not be saved ({failure}); "
                "leaving all the same: the job goes on from its last checkpoint"
            )
        if failure or not saved:
            leave(EXIT_NOT_SAVED)
        self._leave_suspended()

    def _leave_suspended(self) -> NoReturn:
        if self.rank == 0 and self._keeper is not None:
            self._keeper.store.prune()
        if self._attempt is not None:
            leave(0, self._on_suspend)
        # Without a manager only the exit code says that the training is not over, and torchrun
        # ends the other ranks when one has such a code: none may be late.
        self._ranks.smallest(0)
        leave(protocol.EXIT_SUSPENDED, self._on_suspend)
