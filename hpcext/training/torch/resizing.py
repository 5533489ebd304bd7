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

    def why_not(self) -> str:
        """Return why the number of ranks cannot change in place; empty if it can."""
        if self._sharding.why_not_in_place:
            return self._sharding.why_not_in_place
        if not self._framework.models:
            return "no model is wrapped by session.parallel(model)"
        if self.loop.batches is None:
            return "the loader has no batch_sampler=session.batch_sampler(data, ...)"
        if not self.loop.batches.of_any_ranks:
            return "each rank holds a part of the data"
        if self.loop.validations:
            return "an epoch begins with a validation"
        return ""

    def dissolve(self) -> None:
        """Take the averaging of gradients in the present group apart."""
        for model in self._framework.models:
            model.dissolve()

    def send(self, facts: Mapping[str, Any], group: Group) -> None:
        """Send the state from rank 0 to new ranks; all ranks of the group call it."""
        rank = self.coordinator.ranks.rank
        objects = plain(self._framework.state.capture(), "Session") if rank == 0 else None
        groups.send({"facts": facts, "objects": objects}, range(group.kept, group.size))

    def receive(self, group: Group) -> Sent:
        """Receive, on a new rank, what rank 0 sends."""
        tree = groups.receive(self._framework.device, range(group.kept, group.size))
        return Sent(tree["facts"], with_arrays(tree["objects"]))

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
