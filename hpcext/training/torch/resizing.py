"""The change of the number of ranks during a PyTorch training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcext.rendezvous import Group
from hpcext.training import resizing
from hpcext.training.resizing import Sent
from hpcext.training.torch import group as groups
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.group import Member
from hpcext.training.torch.sharding import Sharding
from hpcext.training.torch.state import plain, with_arrays


class InPlace(resizing.InPlace):
    """The ranks that ``hpcext launch`` adds and removes in place.

    Parameters
    ----------
    framework : Torch
    sharding : Sharding
    callbacks : sequence of callables
        Called without arguments on every rank when the number of ranks has changed.
    """

    def __init__(
        self, framework: Torch, sharding: Sharding, callbacks: Sequence[Callable[[], object]]
    ) -> None:
        super().__init__()
        self._framework = framework
        self._sharding = sharding
        self._callbacks = callbacks
        self._new = False

    @property
    def member(self) -> Member | None:
        """The membership of this process; None if ``hpcext launch`` did not start it."""
        return self._framework.member

    def why_not(self, group: Group | None = None) -> str:
        """Return why the number of ranks cannot change in place; empty if it can."""
        if why := self._sharding.why_not(group):
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
        self._sharding.depart(group)

    def send(self, facts: Mapping[str, Any], group: Group) -> None:
        """Send the state from rank 0 to new ranks; all ranks of the group call it."""
        rank = self.coordinator.ranks.rank
        tree = None
        if rank == 0:
            objects = plain(self._sharding.captured(), "Session")
            tree = {"facts": facts, "objects": objects, "shards": self._sharding.described()}
        groups.send(tree, range(group.kept, group.size))

    def receive(self, group: Group) -> Sent:
        """Receive, on a new rank, what rank 0 sends."""
        tree = groups.receive(self._framework.device, range(group.kept, group.size))
        self._sharding.join(group, tree["shards"])
        return Sent(tree["facts"], with_arrays(tree["objects"]))

    def divide(self, group: Group) -> None:
        """Divide a sharded model anew."""
        self._received = self._sharding.arrive(self._received)

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
        groups.check_equal(parameters, self.coordinator.ranks)
        for model in models:
            model.form(equal=True)
        for callback in self._callbacks:
            callback()
