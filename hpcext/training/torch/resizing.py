"""The change of the number of ranks during a PyTorch training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from hpcext.rendezvous import Group
from hpcext.training import resizing
from hpcext.training.resizing import Sent
from hpcext.training.torch import transfer
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.group import Member
from hpcext.training.torch.mending import Guard
from hpcext.training.torch.sharding import Sharding
from hpcext.training.torch.state import plain, with_arrays


class InPlace(resizing.InPlace):
    """The ranks that ``hpcext launch`` adds and removes in place.

    Parameters
    ----------
    framework : Torch
    sharding : Sharding
    guard : Guard
    callbacks : sequence of callables
        Called without arguments on every rank when the number of ranks has changed.
    """

    def __init__(
        self,
        framework: Torch,
        sharding: Sharding,
        guard: Guard,
        callbacks: Sequence[Callable[[], object]],
    ) -> None:
        super().__init__()
        self._framework = framework
        self._sharding = sharding
        self._guard = guard
        self._callbacks = callbacks
        self._new = False

    @property
    def member(self) -> Member | None:
        """The membership of this process; None if ``hpcext launch`` did not start it."""
        return self._framework.member

    def why_not(self, group: Group | None = None) -> str:
        """Return why the number of ranks cannot change in place; empty if it can."""
        # A new rank runs the script from its first line, and joins the first training there.
        turn = "" if self.coordinator.turn.first else "it is not the first training of its process"
        if why := turn or self._sharding.why_not(group):
            return why
        if not self._framework.models and not self._framework.state.sharded:
            return "no model is wrapped by session.parallel(model)"
        if self.loop.batches is None:
            return "the loader has no batch_sampler=session.batch_sampler(data, ...)"
        if not self.loop.batches.of_any_ranks:
            return "each rank holds a part of the data"
        if self.loop.validations:
            return "an epoch begins with a validation"
        return ""

    def dissolve(self, group: Group) -> None:
        """Take the averaging of gradients in the present group apart, and begin to move shards."""
        for model in self._framework.models:
            model.dissolve()
        if not group.repairs and (copies := self._guard.secure()) is not None:
            copies.keep()
        self._sharding.depart(group)

    def send(self, facts: Mapping[str, Any], group: Group) -> None:
        """Send the state from rank 0 to new ranks; all ranks of the group call it."""
        rank = self.coordinator.ranks.rank
        tree = None
        if rank == 0:
            objects = plain(self._sharding.captured(), "Session")
            tree = {"facts": facts, "objects": objects, "shards": self._sharding.described()}
        transfer.send(tree, self._connected([0, *range(group.kept, group.size)]))

    def receive(self, group: Group) -> Sent:
        """Receive, on a new rank, what rank 0 sends."""
        connected = self._connected([0, *range(group.kept, group.size)])
        tree = transfer.receive(self._framework.device, connected)
        self._sharding.join(group, tree["shards"])
        return Sent(tree["facts"], with_arrays(tree["objects"]))

    def divide(self, group: Group) -> None:
        """Divide a sharded model anew."""
        self._received = self._sharding.arrive(self._received)

    # Going on without ranks that die.

    def broke(self, error: RuntimeError | None = None) -> bool:
        """Return whether a rank has died, so that the others are to go on without it."""
        return self._guard.broken if error is None else self._guard.caught(error)

    def undo(self) -> None:
        """Set back what the present step has changed, which is broken."""
        self._guard.undo()

    def meet(self) -> None:
        """Meet the other ranks, if they go on without ranks that die."""
        if self._guard.on and self.coordinator.ranks.size > 1:
            # Nobody can go back into an epoch that has ended.
            self._guard.secure()
            self.coordinator.ranks.smallest(0)

    def part(self) -> None:
        """Leave the present group, which has broken."""
        self._guard.leave()

    def level(self, facts: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Bring all ranks to the last step that one of them has made.

        Returns
        -------
        Mapping or None
            The facts of the training of that rank, if it is another one.
        """
        if self._sharding.copies is not None:
            self._guard.recorder.set_back(self._sharding.go_on())
            self.is_behind = self._sharding.is_behind
            return None
        ranks, place = self.coordinator.ranks, self.loop.place
        ranks.begin_gather([self.coordinator.step, place.epoch, self.loop.validates])
        places = ranks.gathered() or []
        steps = [int(step) for step, _, _ in places]
        last = max(epoch for _, epoch, _ in places)
        self.is_behind = place.epoch < last
        if any(epoch < last for _, epoch, _ in places):
            # As they met at the end of the epoch, some had heard from it, and have begun the next.
            if len({*steps}) > 1 or any(validates for _, _, validates in places):
                raise RuntimeError(
                    "a rank has died between two epochs, and the others are in different ones, "
                    "with a validation in between; the job goes on from its last checkpoint"
                )
            return None
        behind = [rank for rank, step in enumerate(steps) if step < max(steps)]
        if not behind:
            return None
        source = steps.index(max(steps))
        connected = self._connected([source, *behind])
        if ranks.rank in behind:
            tree = transfer.receive(self._framework.device, connected, source=source)
            self._received = with_arrays(tree["objects"])
            found: Mapping[str, Any] = tree["facts"]
            return found
        tree = None
        if ranks.rank == source:
            # What it has received itself, and not taken into use yet, is of this step.
            held = self._sharding.captured() if self._received is None else self._received
            tree = {"facts": facts(), "objects": plain(held, "Session")}
        transfer.send(tree, connected, source=source)
        return None

    def _connected(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Connect some ranks with each other; all ranks call it."""
        member = self.member
        assert member is not None
        return member.subgroup(ranks)

    # The hooks of a feature.

    def regrouped(self) -> None:
        """Form the models again when the next loader is opened."""
        self._new = True

    def opened(self) -> None:
        """Form the models in a new group, whose ranks hold the state by now."""
        if not self._new:
            return
        self._new = False
        models = self._framework.models
        parameters = (parameter for model in models for parameter in model.parameters())
        transfer.check_equal(parameters, self.coordinator.ranks)
        for model in models:
            model.form(equal=True)
        for callback in self._callbacks:
            callback()
