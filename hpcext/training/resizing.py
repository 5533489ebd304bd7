"""The change of the number of ranks in living processes, whatever their framework."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hpcext.rendezvous import Group
from hpcext.training.checkpoint.state import Tree
from hpcext.training.feature import Resizing
from hpcext.training.leave import leave
from hpcext.training.membership import Membership, Overtaken
from hpcext.training.ranks import Ranks
from hpcext.training.stall import Stall

REPAIR_S = 60.0
"""Seconds within which the launcher says that a rank has died, after communication has failed."""


class Unreachable(RuntimeError):
    """Ranks cannot reach each other, though none has died."""


class Sent(NamedTuple):
    """What rank 0 sends to new ranks.

    Attributes
    ----------
    facts : Mapping
        What checkpoints and reports say of the training.
    objects : Tree or None
        The state of the objects that are saved.
    """

    facts: Mapping[str, Any]
    objects: Tree | None


class InPlace(Resizing, abc.ABC):
    """The ranks that ``hpcext launch`` adds and removes in place."""

    def __init__(self) -> None:
        self._stall = Stall()
        self._received: Tree | None = None

    # What a framework does in its own way.

    @property
    @abc.abstractmethod
    def member(self) -> Membership | None:
        """The membership of this process; None if ``hpcext launch`` did not start it."""

    @abc.abstractmethod
    def why_not(self, group: Group | None = None) -> str:
        """Return why the number of ranks cannot change in place; empty if it can.

        Parameters
        ----------
        group : Group, optional
            The next group, if there is one.
        """

    @abc.abstractmethod
    def dissolve(self, group: Group) -> None:
        """Take apart what belongs to the present group.

        Parameters
        ----------
        group : Group
            The next one; ranks that are not in it leave afterwards.
        """

    @abc.abstractmethod
    def send(self, facts: Mapping[str, Any], group: Group) -> None:
        """Send the state from rank 0 to new ranks; all ranks of the group call it.

        Parameters
        ----------
        facts : Mapping
            What the others need to know of the training.
        group : Group
        """

    @abc.abstractmethod
    def receive(self, group: Group) -> Sent:
        """Receive, on a new rank, what rank 0 sends."""

    def divide(self, group: Group) -> None:
        """Divide anew what ranks hold in parts; all ranks of the new group call it.

        New ranks have received the rest by then.
        """

    @abc.abstractmethod
    def part(self) -> None:
        """Leave the present group, which has broken."""

    @abc.abstractmethod
    def level(self, facts: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Bring all ranks to the last step that one of them has made.

        Returns
        -------
        Mapping or None
            The facts of the training of that rank, if it is another one.
        """

    # The change.

    @property
    def joining(self) -> bool:
        """Whether this process was started to join a running training, and has not joined yet."""
        return self.member is not None and self.member.joining

    @property
    def possible(self) -> bool:
        """Whether the number of ranks can change now."""
        return self.member is not None and not self.why_not()

    def join(self, regroup: Callable[[Ranks], object]) -> Mapping[str, Any] | None:
        """Join the other ranks, if this process should; return the facts of their training."""
        member = self.member
        if member is None or not member.joining:
            return None
        member.wait()
        try:
            group = member.proposed(member.group.number)
            regroup(member.form(group))
        except Overtaken:
            # Others have died meanwhile, and the launcher ends this one.
            leave(0)
        facts, self._received = self.receive(group)
        self.divide(group)
        return facts

    def received(self) -> Tree | None:
        """Return, once, the objects that rank 0 has sent; None if there are none."""
        received, self._received = self._received, None
        return received

    def next_group(self) -> int:
        """Return the number of the group into which the ranks should change; 0 for none."""
        member = self.member
        if member is None or self.coordinator.ranks.rank != 0:
            return 0
        stall_s = self._stall.boundary()
        if stall_s is not None:
            member.answer(stall_s=stall_s)
        group = member.proposal()
        if group is None:
            return 0
        why = self.why_not(group)
        if why:
            member.answer(why=why)
        return 0 if why else group.number

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
        member, rank = self.member, self.coordinator.ranks.rank
        assert member is not None
        group = member.proposed(number)
        self._stall.begin()
        self.dissolve(group)
        member.leave()
        if rank not in group.stay:
            leave(0)
        if rank == 0:
            member.begin(group)
        regroup(member.form(group))
        if group.kept < group.size:
            # Sent by rank 0, which is the same process in both groups.
            self.send(facts(), group)
        self.divide(group)

    def mend(
        self, regroup: Callable[[Ranks], object], facts: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Go on without ranks that have died; others may do so meanwhile.

        Raises
        ------
        RuntimeError
            That is not possible: the job goes on from its last checkpoint.
        """
        why = ""
        while True:
            try:
                return self._go_on(regroup, facts)
            except Overtaken as error:
                # Only the words, since the error keeps its group.
                why = f" ({' '.join(str(error.__cause__ or error).split())})"
            except Unreachable as error:
                raise Unreachable(f"{error}{why}") from None

    def _go_on(
        self, regroup: Callable[[Ranks], object], facts: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        member = self.member
        assert member is not None
        group = member.repair(REPAIR_S)
        if group is None:
            raise Unreachable("the ranks cannot communicate, and none of them has died")
        if not member.belongs_to(group):
            # It had joined for nothing, and the launcher ends it.
            leave(0)
        self._stall.begin()
        self.undo()
        lost = member.lost(group)
        self.dissolve(group)
        self.part()
        try:
            regroup(member.form(group))
            facts_of_another = self.level(facts)
        except RuntimeError as error:
            if self.broke(error):
                raise Overtaken("others have died") from error
            raise
        if self.coordinator.ranks.rank == 0 and lost:
            size = group.size + len(lost)
            self.coordinator.reporter.note(
                f"rank {', '.join(map(str, lost))} of {size} was lost; the other "
                f"{group.size} went on from step {self.coordinator.step}"
            )
        return facts_of_another

    # The hooks of a feature.

    def validating(self) -> None:
        """Report the cost of a change of ranks that no step followed."""
        stall_s = self._stall.end()
        if stall_s is not None and self.member is not None and self.coordinator.ranks.rank == 0:
            self.member.answer(stall_s=stall_s)

    def finishing(self) -> None:
        """Report the cost of a change of ranks that no step followed."""
        self.validating()
