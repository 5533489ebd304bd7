"""Sessions, which make a training script suspendable: they find the step to stop at, save, resume.

The session here is for NumPy and any other code that has a state; that of PyTorch is
:class:`hpcext.training.torch.Session`.

Where a script may stop, and where it goes on
---------------------------------------------
Each iteration of the loop over :meth:`Session.batches` is one step, and its end is a boundary: a
place to stop. So is the end of each iteration of :meth:`Session.validation`, but from there the
script later goes on at the *beginning* of the validation.

A resumed script runs from its first line. What it does in the same epoch before the place where it
stopped (such as ``scheduler.step()`` between training and validation), it does once more. Therefore
everything that the session holds is set to the saved state *again* at that place, and so are the
random states. Until then they are as they were when the epoch began, so that an order drawn there
is the same one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, TypeVar

from hpcext.training.batching import ElasticBatches
from hpcext.training.checkpoint.position import AFTER, EPOCH
from hpcext.training.composition import Training
from hpcext.training.coordinator import Coordinator
from hpcext.training.data.sampler import ResumableSampler
from hpcext.training.feature import Framework, Parts, Resizing
from hpcext.training.options import collected, refuse_misspelt
from hpcext.training.partitions import PartitionedBatches, Partitions
from hpcext.training.reporting import Reporting

Batch = TypeVar("Batch")

UNGIVEN_PARTS = (
    "session.batch_sampler(partitions): the session is not given the partitions, so no checkpoint "
    "within an epoch could be used; give them, Session(parts=partitions, ...), or name them in "
    "unsaved=[...] (unsaved=True: anything) if another object saves them"
)


class Session(Reporting):
    """A session that makes a training loop resumable; it restores the newest checkpoint.

    Parameters
    ----------
    checkpoint_dir : path-like, optional
        Where to save without a manager; a manager's own directory overrides it. With neither, the
        loops are plain loops.
    checkpoint_every_s : float, optional
        Seconds between periodic checkpoints; None: none by time.
    checkpoint_every_steps : int, optional
        Steps between periodic checkpoints.
    keep : int
        Number of checkpoints to keep, at least 2.
    staging : bool
        Whether a periodic checkpoint delays a step only while the state is copied in host memory. A
        thread writes the copy, which takes as much memory as the state. If False, it is written
        between two steps. The checkpoints of a suspension and of the end are always written at
        once.
    seed : int, optional
        Seeds the global random numbers (plus the rank) when there is nothing to resume, and the
        order of :meth:`sampler`. If not given, the random states are not changed.
    samples_per_step : int, optional
        Samples that all ranks consume in a step, if the job's work is in samples.
    on_suspend : iterable of callables
        Called without arguments on every rank when the suspension is acknowledged.
    unsaved : collection of objects, or True
        Objects of the training that are deliberately not saved: a model, an optimizer, a scheduler.
        The session refuses to go on without objects that it finds in use and was not given, unless
        they are listed here. With True it does not search for any.
    **state
        Objects to save, by name: see :class:`hpcext.training.checkpoint.state.TrainingState`.

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
        staging: bool = True,
        seed: int | None = None,
        samples_per_step: int | None = None,
        on_suspend: Iterable[Callable[[], object]] = (),
        unsaved: Any = (),
        **state: Any,
    ) -> None:
        refuse_misspelt(state, type(self))
        coordinator = Coordinator(
            checkpoint_dir=checkpoint_dir,
            checkpoint_every_s=checkpoint_every_s,
            checkpoint_every_steps=checkpoint_every_steps or None,
            keep=keep,
            samples_per_step=samples_per_step,
            on_suspend=on_suspend,
        )
        parts = self.compose()
        parts.framework.unsaved = collected(unsaved)
        self.training = Training(coordinator, parts, state, seed=seed, staging=staging)
        super().__init__()

    def compose(self) -> Parts:
        """Return the parts of this session."""
        return Parts(Framework(), Resizing())

    def sampler(self, data: Sized | int, *, shuffle: bool = True) -> ResumableSampler:
        """Make a sampler for this rank that resumes in mid-epoch, at any number of ranks.

        Draw augmentation in loader workers from (seed, epoch, index): workers are started again
        when an epoch is resumed, so values from random states of their own would differ then.

        Parameters
        ----------
        data : Sized or int
            The data set, or its length.
        shuffle : bool

        Returns
        -------
        ResumableSampler
            For ``DataLoader(data, sampler=...)``.
        """
        sampler = ResumableSampler(
            data if isinstance(data, int) else len(data),
            rank=self.rank,
            world_size=self.world_size,
            seed=self.training.seed or 0,
            shuffle=shuffle,
        )
        self.training.loop.walks.append(sampler)
        return sampler

    def batch_sampler(
        self,
        data: Sized | int,
        *,
        global_batch: int | None = None,
        gpu_batch: int | None = None,
        shuffle: bool = True,
        last: str = "weighted",
    ) -> ElasticBatches:
        """Make batches for this rank that are divided again when the number of ranks changes.

        They are for ``DataLoader(data, batch_sampler=...)``, or to be iterated as lists of indices.
        With them, and a model from ``parallel``, the number of ranks can change without stopping.

        Parameters
        ----------
        data : Sized or int
            The data set, or its length; or an account of the part of it that each rank holds, see
            :class:`~hpcext.training.partitions.Partitions`.
        global_batch, gpu_batch : int
            Samples in a step on all ranks, or on one rank. Give the one that stays the same when
            the number of ranks changes.
        shuffle : bool
        last : {"weighted", "carried", "dropped"}
            Treatment of an epoch's last samples, see
            :class:`~hpcext.training.batching.ElasticBatches`.

        Returns
        -------
        ElasticBatches

        Raises
        ------
        ValueError
            Not exactly one of the batch sizes is given, or a parameter is not valid; the session
            saves, but was not given the partitions.
        """
        if isinstance(data, Partitions):
            self._check_saved(data)
        make = (
            functools.partial(PartitionedBatches, data)
            if isinstance(data, Partitions)
            else functools.partial(ElasticBatches, data if isinstance(data, int) else len(data))
        )
        batches = make(
            global_batch=global_batch,
            gpu_batch=gpu_batch,
            rank=self.rank,
            world_size=self.world_size,
            seed=self.training.seed or 0,
            shuffle=shuffle,
            last=last,
        )
        self.training.loop.walks.append(batches)
        return batches

    def _check_saved(self, partitions: Partitions) -> None:
        """Check that checkpoints have the account, without which none within an epoch is usable."""
        training, unsaved = self.training, self.training.framework.unsaved
        if training.keeper is None or unsaved is None or training.state.holds(partitions):
            return
        if any(each is partitions for each in unsaved):
            return
        if not training.resumed:
            raise ValueError(UNGIVEN_PARTS)
        # The training may be one of an earlier release.
        if self.rank == 0:
            training.coordinator.reporter.note(UNGIVEN_PARTS)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, of `count` in all.

        A finished job has none left. The final checkpoint is written at the end. A further loop
        goes on with the epoch after it, up to its own `count`.

        Parameters
        ----------
        count : int
            Epochs of the whole training.

        Yields
        ------
        epoch : int
            Number of the epoch, from 0.
        """
        training, loop = self.training, self.training.loop
        training.begin(count)
        for epoch in range(loop.place.epoch, count):
            training.begin_epoch(epoch)
            yield epoch
            if loop.phase == AFTER:
                return
            training.end_epoch()
        loop.enter(AFTER)
        # A place in an epoch that is not one of these is in a later loop, which goes on there.
        if loop.place.phase not in {AFTER, EPOCH}:
            self.finish()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the remaining batches of this epoch; each iteration is one step.

        With a :meth:`sampler` in the loader, data consumed before is not read again. Any other
        loader is read up to its place, which is exact if the number of ranks is the same.

        Parameters
        ----------
        loader : iterable of batches
            A loader of this rank; each rank has its own.

        Yields
        ------
        batch
            As the loader yields it.

        Raises
        ------
        RuntimeError
            The call is not inside :meth:`epochs`, or it is the second such loop of an epoch.
        CheckpointError
            The loader ends before the place where the checkpoint was written.
        """
        training, place = self.training, self.training.loop.place
        if training.loop.phase != EPOCH:
            raise RuntimeError("session.batches(): only inside `for epoch in session.epochs(n):`")
        if place.trained:
            if training.resume is None:
                raise RuntimeError("session.batches(): the second loop in one epoch; use only one")
            if not place.validation:
                training.arrive()
            return
        try:
            changed = True
            while changed:
                changed = False
                opened = training.others.heard(lambda: training.open(loader))
                if opened is None:
                    changed = True
                    continue
                position, source = opened
                for turns, batch in enumerate(source, start=1):
                    training.begin_step(position, turns)
                    training.comparison.look_at(loader, batch)
                    yield batch
                    if training.step_made():
                        # The remaining samples are divided again. First release the old iterator
                        # and its workers.
                        changed, source = True, iter(())
                        break
                changed = changed or training.others.meet()
        finally:
            # Left by `break`: that step counts too, but is not a place to stop, because the script
            # goes on after the loop, and would do so once more on resumption.
            training.trained()

    def validation(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a validation, each a place to stop; on resumption it begins again.

        Every rank must run it, perhaps with another number of batches. Inside the loop over
        :meth:`batches` it does not stop, since the end of that iteration is the place to stop.

        Parameters
        ----------
        loader : iterable of batches

        Yields
        ------
        batch
            As the loader yields it.
        """
        training, loop, ranks = self.training, self.training.loop, self.training.coordinator.ranks
        training.coordinator.pause()
        for feature in training.features:
            feature.validating()
        if loop.in_step or training.keeper is None:
            yield from loader
            return
        training.coordinator.reporter.register()
        loop.validations, loop.validates = loop.validations + 1, True
        if (loop.place.phase, loop.place.validation) == (loop.phase, loop.validations):
            training.arrive()
        place = dataclasses.replace(loop.place, phase=loop.phase, validation=loop.validations)
        random = training.state.random()
        # All ranks must exchange equally often, including those with fewer batches.
        length = len(loader) if isinstance(loader, Sized) else 0
        looks = training.others.heard(lambda: ranks.smallest(length), later=True) or 0
        look = functools.partial(training.suspend_if_agreed, place, random)
        try:
            for batch in loader:
                yield batch
                if looks > 0 or ranks.size == 1:
                    looks = 0 if training.others.outlived(look, later=True) else looks - 1
        finally:
            # Left by `break`, while the other ranks still exchange.
            while looks > 0 and ranks.size > 1:
                looks = 0 if training.others.outlived(look, later=True) else looks - 1

    def finish(self) -> None:
        """Write the final checkpoint, so that a rerun trains no further.

        :meth:`epochs` calls it at its end. A script that stops early calls it itself.
        """
        self.training.finish()
