"""The training of a session, composed of a coordinator, a loop, a framework and features.

Scripts do not call it: they call :class:`hpcext.training.session.Session`, and
:class:`hpcext.training.keras.Callback` drives a training from callbacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hpcext.training.checkpoint import Checkpoint
from hpcext.training.checkpoint.keeper import Keeper
from hpcext.training.checkpoint.position import AFTER, EPOCH, Position
from hpcext.training.checkpoint.state import Tree
from hpcext.training.comparison import Comparison
from hpcext.training.coordinator import Coordinator
from hpcext.training.data.loading import elastic, inside, open_loader
from hpcext.training.feature import Feature, Parts
from hpcext.training.hidden import Hidden
from hpcext.training.loop import Loop
from hpcext.training.others import Others
from hpcext.training.randomness import Randomness

Batch = TypeVar("Batch")


class Training:
    """The training of a session.

    Parameters
    ----------
    coordinator : Coordinator
    parts : Parts
    objects : dict
        Objects to save, by name.
    seed : int or None
    staging : bool
        Whether periodic checkpoints are written beside the training.

    Attributes
    ----------
    loop : Loop
    features : tuple of Feature
        All parts, in the order in which their hooks are called.
    keeper : Keeper or None
        None: nothing is saved.
    randomness : Randomness
    others : Others
    comparison : Comparison
        What this rank trains first, compared with the other ranks.
    resume : Checkpoint or None
        The checkpoint to go on from, until the training is at the place where it was written.
    resumed : bool
        Whether a checkpoint, or the state of other ranks, was restored.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        parts: Parts,
        objects: dict[str, Any],
        *,
        seed: int | None,
        staging: bool,
    ) -> None:
        self.coordinator = coordinator
        self.loop = Loop()
        framework, self.resizing, features = parts
        self.framework = framework
        self.features: tuple[Feature, ...] = (framework, self.resizing, *features, Hidden())
        for feature in self.features:
            feature.attach(coordinator, self.loop)
        coordinator.join(framework.join())
        self.state = framework.make_state(objects)
        self.keeper: Keeper | None = None
        if coordinator.store is not None:
            own = (feature.shards() for feature in self.features)
            shards = next((each for each in own if each is not None), None)
            self.keeper = Keeper(coordinator.store, self.state, lambda: coordinator.ranks, shards)
        self.others = Others(
            coordinator,
            self.loop,
            self.resizing,
            self.features,
            keeper=self.keeper,
            facts=self.facts,
            follow=self._follow,
        )
        self.seed = seed
        self.randomness = Randomness(self.state, seed)
        self.staging = staging
        self.resume: Checkpoint | None = None
        self.comparison = Comparison(coordinator, self.loop, framework)
        coordinator.rehearse(coordinator.ranks.rank, self.state.present)
        self._begin()

    def _begin(self) -> None:
        for feature in self.features:
            feature.beginning()
        self.state.check()
        self.resumed = self.resizing.joining
        rank = self.coordinator.ranks.rank
        if self.resizing.joining:
            # This rank gets from rank 0, at the first epoch, what others restore from a checkpoint;
            # the others have already compared what they train.
            self.comparison.made = True
        else:
            self.framework.refuse_missing()
            self.resume = self.keeper.find() if self.keeper else None
            self.coordinator.turn.found(self.resume)
            self.resumed = self.resume is not None
        if self.resume is not None:
            with self.resume.reading():
                self._restore_facts(self.resume.manifest)
            self._restore_state(self.resume)
        self.randomness.begin(rank, resumed=self.resume is not None)
        if not self.resizing.joining:
            self.coordinator.begin()
        for feature in self.features:
            feature.began()

    # -- the state, saved and restored

    def facts(self) -> dict[str, Any]:
        """Return the entries of the session and its features for a manifest."""
        done, command = self.coordinator.done, self.coordinator.turn.command
        facts = {"done": done, "command": command, **self.loop.place.as_dict()}
        for feature in self.features:
            facts.update(feature.facts())
        return facts

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        self.coordinator.step = manifest["step"]
        self.coordinator.done = manifest["done"]
        self.loop.place = Position.of(manifest)
        for feature in self.features:
            feature.restore(manifest)

    def _follow(self, facts: Mapping[str, Any]) -> None:
        """Be where another rank is, whose state is restored with the next loader."""
        self._restore_facts(facts)
        self.resume = Checkpoint(Path(), facts)

    def _restore_state(self, checkpoint: Checkpoint) -> None:
        received = self.resizing.received()
        if received is not None:
            self.state.apply(received)
            self.randomness.saved = None
        else:
            assert self.keeper is not None
            self.randomness.saved = self.keeper.load(checkpoint)

    def arrive(self) -> None:
        """Restore the state at the place where the checkpoint was written."""
        if self.resume is not None:
            self._restore_state(self.resume)
            self.randomness.restore(self.coordinator.ranks.rank, self.coordinator.step)
            self.coordinator.mark()
        self._drop_resume()

    def _drop_resume(self) -> None:
        self.resume = None
        self.loop.place.validation = 0

    # -- epochs and steps

    def begin(self, epochs: int) -> None:
        """Begin, or go on with, the first `epochs` epochs."""
        self.loop.epochs = epochs
        self.randomness.epochs_begin(self.coordinator.ranks.rank, self.coordinator.step)
        self.others.join()
        self.coordinator.enter(left=self.loop.place.epoch < epochs)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch, or go on with the one in which the checkpoint was written."""
        for feature in self.features:
            feature.epoch_begins()
        self.loop.enter(EPOCH)
        place = self.loop.place
        again = self.resume is not None and place.phase == EPOCH
        if not again:
            self._drop_resume()
            self.loop.place = Position(phase=EPOCH, epoch=epoch, carried=place.carried)
        self.randomness.epoch_begins(again=again)

    def end_epoch(self) -> None:
        """End an epoch; the place is then the beginning of the next one."""
        self._drop_resume()
        place = self.loop.place
        carried = place.rest if place.trained else place.carried
        self.loop.place = Position(epoch=place.epoch + 1, carried=carried)

    def trained(self) -> None:
        """Record that the loop over the batches of this epoch has ended."""
        self.end_step()
        self.coordinator.pause()
        # Of the batches that were read, since those of the next attempt may be of another size.
        place, batches = self.loop.place, self.loop.batches
        place.trained, place.rest = True, 0 if batches is None else batches.rest

    def open(self, loader: Iterable[Batch]) -> tuple[Callable[[int], int], Iterator[Batch]]:
        """Open a loader at the present place, and restore the saved state there.

        Returns
        -------
        position, source
            As those of :func:`hpcext.training.data.loading.open_loader`.
        """
        batches, place, size = elastic(loader), self.loop.place, self.coordinator.ranks.size
        for feature in self.features:
            feature.opening(inside(loader), batches)
        begun_on = self.resume.manifest["world_size"] if self.resume else size
        self.loop.batches = batches
        position, source = open_loader(
            loader,
            place,
            resized=begun_on != size,
            carried=place.carried,
            final=place.epoch == self.loop.epochs - 1,
        )
        self.arrive()
        for feature in reversed(self.features):
            feature.opened()
        # A place to stop is next, so suspensions are answered from now on.
        self.coordinator.reporter.register(in_place=self.resizing.possible)
        return position, source

    def begin_step(self, position: Callable[[int], int], turns: int) -> None:
        """Begin a step, as the loop does."""
        self.loop.begin_step(position, turns)
        for feature in self.features:
            feature.step_begins()

    def step_made(self) -> bool:
        """End a step that the script has made; return whether to reopen the loader."""
        if self.others.step_is_broken():
            self.others.outlive()
            return True
        self.end_step()
        return self.boundary()

    def end_step(self) -> None:
        """End the present step, if there is one: count its samples, and report it."""
        if not self.loop.in_step:
            return
        if self.others.step_is_broken():
            # Left by `break`: nobody makes it again, so it is none.
            self.others.drop_step()
            return
        for feature in self.features:
            feature.step_ends()
        done = self.coordinator.done + self._work(self.loop.end_step())
        self.coordinator.stepped(self.coordinator.step + 1, done)

    def _work(self, samples: int) -> float:
        """Return the work that a step of `samples` samples adds, in the job's unit."""
        for feature in self.features:
            if (work := feature.work(samples)) is not None:
                return work
        # The samples of an elastic loader are counted, because their number depends on the ranks.
        known = self.coordinator.counts_samples and self.loop.batches is not None
        return samples if known else self.coordinator.step_work

    # -- boundaries

    def boundary(self) -> bool:
        """Suspend, save, resize or go on between two steps, as all ranks agree.

        Returns
        -------
        bool
            Whether to reopen the loader, because ranks or batches have changed.
        """
        reopens = resized = False
        for feature in self.features:
            reopens |= feature.before_boundary()
        if self.keeper is not None and self.loop.phase == EPOCH:
            resized = self._agree(self.keeper)
        for feature in reversed(self.features):
            feature.after_boundary(reopens=reopens or resized, resized=resized)
        return reopens or resized

    def _agree(self, keeper: Keeper) -> bool:
        """Do at a boundary what all ranks agreed on; return whether the ranks have changed."""
        coordinator = self.coordinator
        self.comparison.make()
        agreed = self.others.heard(lambda: coordinator.agree(self.resizing.next_group()))
        if agreed is None:
            return True
        if self.others.outlived(keeper.look):
            return True
        if coordinator.rehearsal is not None:
            coordinator.rehearsal.stepped(coordinator.step, coordinator.reporter.fresh())
        if agreed.suspend:
            if not self._rehearses_on():
                self.suspend(self.loop.place, self.state.random())
        elif agreed.save and self.others.outlived(lambda: self._save(keeper)):
            return True
        if agreed.resize:
            self.others.change(agreed.resize)
        return bool(agreed.resize)

    def _save(self, keeper: Keeper) -> None:
        """Write a periodic checkpoint, or begin to."""
        what = self._to_write(self.loop.place, self.state.random())
        if self.staging:
            self.coordinator.save_beside(functools.partial(keeper.stage, *what))
        else:
            self.coordinator.save(functools.partial(keeper.write, *what))

    def _rehearses_on(self) -> bool:
        """Return whether a rehearsal makes further steps, as if there were no suspension."""
        coordinator, rehearsal = self.coordinator, self.coordinator.rehearsal
        write = functools.partial(coordinator.write, self.write)
        if rehearsal and rehearsal.goes_on(coordinator.ranks, write, coordinator.step):
            return True
        self._end_rehearsal()
        return False

    def _end_rehearsal(self) -> None:
        """Resume from the rehearsal's checkpoint, without the steps made since."""
        if self.coordinator.rehearsal is not None:
            self.resume = self.coordinator.rehearsal.checkpoint or self.resume

    def suspend_if_agreed(self, place: Position, random: Tree) -> None:
        """Suspend at a boundary within a validation if all ranks agree."""
        if self.coordinator.agree_to_suspend():
            self._end_rehearsal()
            self.suspend(place, random)

    def suspend(self, place: Position, random: Tree) -> None:
        """Save, acknowledge and leave; return if the state could not be saved.

        Parameters
        ----------
        place : Position
            The place to save.
        random : dict
            Random states of that place.
        """

        def write() -> Checkpoint | None:
            # Before the place where the last attempt stopped, its checkpoint is all there is to
            # save.
            return self.resume or self.write(place, random)

        self.coordinator.suspend(write)

    def write(self, place: Position | None = None, random: Tree | None = None) -> Checkpoint | None:
        """Write a checkpoint of the present place, or of an earlier one with its random states.

        Parameters
        ----------
        place : Position, optional
            By default the present place.
        random : dict, optional
            Random states of that place; by default the present ones.
        """
        assert self.keeper is not None
        return self.keeper.write(
            *self._to_write(place or self.loop.place, random or self.state.random())
        )

    def _to_write(self, place: Position, random: Tree) -> tuple[int, dict[str, Any], Tree]:
        for feature in self.features:
            feature.capturing()
        random = {"now": random, "epoch": self.randomness.epoch}
        return self.coordinator.step, {**self.facts(), **place.as_dict()}, random

    # -- the end

    def finish(self) -> None:
        """Write the final checkpoint, so that a rerun trains no further."""
        for feature in self.features:
            feature.finishing()
        self.end_step()
        self.coordinator.ranks.settle()
        rehearsal = self.coordinator.rehearsal
        if rehearsal is not None and rehearsal.checkpoint is not None:
            self._end_rehearsal()
            self.suspend(self.loop.place, self.state.random())
        self.loop.enter(AFTER)
        self.loop.place = Position(phase=AFTER, epoch=max(self.loop.epochs, self.loop.place.epoch))
        self.coordinator.save_last(self.write)
        if self.keeper is not None:
            self.keeper.end()
        self.coordinator.reporter.flush()
        for feature in self.features:
            feature.finished()
