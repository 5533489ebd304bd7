"""The change of the number of ranks during a PyTorch training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcext.training.checkpoint.state import Tree
from hpcext.training.feature import Resizing
from hpcext.training.leave import leave
from hpcext.training.ranks import Ranks
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.group import check_equal, receive, send
from hpcext.training.torch.sharding import Sharding
from hpcext.training.torch.stall import Stall
from hpcext.training.torch.state import plain, with_arrays


class InPlace(Resizing):
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
        self._framework = framework
        self._sharding = sharding
        self._callbacks = callbacks
        self._stall = Stall()
        self._new = False
        self._received: Tree | None = None

    @property
    def joining(self) -> bool:
        """Whether this process was started to join a running training, and has not joined yet."""
        member = self._framework.member
        return member is not None and member.joining

    @property
    def possible(self) -> bool:
        """Whether the number of ranks can change now."""
        return self._framework.member is not None and not self._why_not()

    def join(self, regroup: Callable[[Ranks], object]) -> Mapping[str, Any] | None:
        """Join the other ranks, if this process should; return the facts of their training."""
        member = self._framework.member
        if member is None or not member.joining:
            return None
        member.wait()
        group = member.proposed(member.group.number)
        regroup(member.form(group))
        tree = receive(self._framework.device, range(group.kept, group.size))
        self._received = with_arrays(tree["objects"])
        facts: Mapping[str, Any] = tree["facts"]
        return facts

    def received(self) -> Tree | None:
        """Return, once, the objects that rank 0 has sent; None if there are none."""
        received, self._received = self._received, None
        return received

    def next_group(self) -> int:
        """Return the number of the group into which the ranks should change; 0 for none."""
        member = self._framework.member
        if member is None or self.coordinator.ranks.rank != 0:
            return 0
        stall_s = self._stall.boundary()
        if stall_s is not None:
            member.answer(stall_s=stall_s)
        group = member.proposal()
        if group is None:
            return 0
        why = self._why_not()
        if why:
            member.answer(why=why)
        return 0 if why else group.number

    def _why_not(self) -> str:
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

    def change(
        self,
        number: int,
        regroup: Callable[[Ranks], object],
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Join the group with this number, or leave the training; send new ranks the state.

        Parameters
        ----------
        number : int
            The number of the group.
        regroup : callable
            Takes the new ranks into use.
        facts : callable
            Returns what checkpoints and reports say of the training.
        """
        member, rank = self._framework.member, self.coordinator.ranks.rank
        assert member is not None
        group = member.proposed(number)
        self._stall.begin()
        for model in self._framework.models:
            model.dissolve()
        member.leave()
        if rank not in group.stay:
            leave(0)
        if rank == 0:
            member.begin(group)
        regroup(member.form(group))
        if group.kept < group.size:
            # Sent by rank 0, which is the same process in both groups.
            objects = plain(self._framework.state.capture(), "Session") if rank == 0 else None
            send({"facts": facts(), "objects": objects}, range(group.kept, group.size))

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
        check_equal((p for model in models for p in model.parameters()), self.coordinator.ranks)
        for model in models:
            model.form(equal=True)
        for callback in self._callbacks:
            callback()

    def validating(self) -> None:
        """Report the cost of a change of ranks that no step followed."""
        stall_s = self._stall.end()
        member = self._framework.member
        if stall_s is not None and member is not None and self.coordinator.ranks.rank == 0:
            member.answer(stall_s=stall_s)

    def finishing(self) -> None:
        """Report the cost of a change of ranks that no step followed."""
        self.validating()
