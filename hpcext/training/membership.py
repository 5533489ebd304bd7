"""The membership of a process in the groups of ranks that ``hpcext launch`` starts."""

from __future__ import annotations

import abc
import contextlib
import time

from hpcext.rendezvous import Formed, Group, Rendezvous, write_repeatedly
from hpcext.training.ranks import Ranks
from hpcext.training.signals import News

PAUSE_S, FAR_PAUSE_S = 0.002, 0.02
"""Seconds between two checks whether the others are ready, on one node and on several."""


class Overtaken(RuntimeError):
    """A group comes to nothing, because ranks have died while it was being formed."""


class Membership(abc.ABC):
    """The membership of this process; how its ranks communicate is up to a subclass.

    Parameters
    ----------
    rendezvous : Rendezvous
    rank, size : int
        Rank and number of ranks at its start.

    Attributes
    ----------
    rank : int
    group : Group
        The group to which it belongs, or that it should join.
    joining : bool
        Whether it was started to join a running training, and has not joined it yet.
    """

    def __init__(self, rendezvous: Rendezvous, *, rank: int, size: int) -> None:
        self.rank = rank
        self.group = Group(rendezvous.joins, size)
        self._places = {rendezvous.joins: (rank, size)}  # number of a group → rank there, its size
        self.joining = rendezvous.joins > 0
        self._rendezvous = rendezvous
        self._news = News()
        self._next: Group | None = None
        self._unsaid: Formed | None = None
        self._pause_s = FAR_PAUSE_S if rendezvous.host else PAUSE_S

    # What a framework does in its own way.

    @abc.abstractmethod
    def connect(self, group: Group) -> Ranks:
        """Connect with the other members of a group of several ranks; this waits for them."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Leave the present group."""

    # The way into a group, and from one into the next.

    def ranks(self) -> Ranks:
        """Form the first group with the others; a rank that joins later is alone at first."""
        if not self.joining:
            return self.form(self.group)
        alone = Ranks()
        alone.rank, alone.size = self.rank, self.group.size
        return alone

    def wait(self) -> None:
        """Report that this rank is ready to join, and wait until the others form the group."""
        write_repeatedly(lambda: self._rendezvous.ready(self.rank))
        while not self._rendezvous.has_begun(self.group.number):
            # If the launcher gives the change up, it ends this process.
            time.sleep(self._pause_s)
        self.joining = False

    def proposal(self) -> Group | None:
        """Return the group that the launcher proposes, which only rank 0 is told."""
        self._say()
        if self._news.came():
            found = self._newer()
            self._next = found if found and not found.repairs else None
        return self._next

    def proposed(self, number: int) -> Group:
        """Return the group with this number, once rank 0 has told the ranks of it.

        Raises
        ------
        Overtaken
            Ranks have died meanwhile, and those that are left form another one.
        """
        while True:
            found = self._rendezvous.group()
            if found and found.number == number:
                return found
            if found and found.number > number and found.repairs:
                raise Overtaken(f"group {number} comes to nothing")
            if not self._rendezvous.host:
                raise RuntimeError(f"{self._rendezvous.directory}: there is no group {number}")
            # Another node may see the file a moment later.
            time.sleep(self._pause_s)

    def begin(self, group: Group) -> None:
        """Call the new ranks, on rank 0, which has left the old group."""
        write_repeatedly(lambda: self._rendezvous.begin(group.number))

    def form(self, group: Group) -> Ranks:
        """Form a group with its other members; this waits for them."""
        if self.group.number < group.number:
            # A rank that stays may have another number now.
            self.rank = group.stay.index(self._before(group)[0])
        self.group, self._next = group, None
        self._places[group.number] = self.rank, group.size
        return Ranks() if group.size == 1 else self.connect(group)

    def answer(self, *, why: str = "", stall_s: float | None = None) -> None:
        """Tell the launcher that the change is done, or that there will be none and why.

        On a full disk this is repeated with each call of :meth:`proposal`.

        Parameters
        ----------
        why : str
            Why there will be no change; empty if it is done.
        stall_s : float, optional
            Seconds without progress that the change cost.
        """
        number = self._next.number if self._next else self.group.number
        self._unsaid = Formed(number, why, stall_s)
        self._say()
        if why and self._next:
            # The launcher does not propose it again.
            self.group = Group(number, self.group.size)
            self._next = None

    # Going on without ranks that die.

    @property
    def replaces(self) -> bool:
        """Whether ranks that die are replaced, if the others can go on without them."""
        return self._rendezvous.replaces

    def mends(self, multiple: int = 1) -> None:
        """Announce, on rank 0, that the others go on without a rank that dies.

        Parameters
        ----------
        multiple : int
            What their number must be a multiple of.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        self._rendezvous.mends(multiple)

    @property
    def far(self) -> bool:
        """Whether ranks are, or may come to be, on several nodes."""
        return bool(self._rendezvous.host)

    @property
    def mending(self) -> bool:
        """Whether the others go on without a rank that dies, as one of them has announced."""
        return self._rendezvous.can_mend()

    def belongs_to(self, group: Group) -> bool:
        """Return whether this process is in the group of those that are left after a death."""
        known = group.of is None or group.of in self._places
        return known and self._before(group)[0] in group.stay

    def lost(self, group: Group) -> list[int]:
        """Return the ranks of the group before a repair that are not in it."""
        return sorted({*range(self._before(group)[1])} - {*group.stay})

    def cut(self) -> None:
        """Say that the ranks cannot communicate, of which perhaps none has died."""
        self._rendezvous.cut(self.group.number)

    def repair(self, within_s: float = 0.0) -> Group | None:
        """Return the group of those that are left after a death; None if there was none.

        Parameters
        ----------
        within_s : float
            Seconds to wait until the launcher says so.
        """
        until_s = time.monotonic() + within_s
        while True:
            found = self._newer()
            if found and found.repairs:
                return found
            if time.monotonic() >= until_s:
                return None
            time.sleep(self._pause_s)

    def _before(self, group: Group) -> tuple[int, int]:
        """Return rank and number of ranks in the group before another one."""
        present = self.rank, self.group.size
        return present if group.of is None else self._places.get(group.of, present)

    def _newer(self) -> Group | None:
        found = self._rendezvous.group()
        return found if found and found.number > self.group.number else None

    def _say(self) -> None:
        if self._unsaid is not None:
            with contextlib.suppress(OSError):
                self._rendezvous.formed(self._unsaid)
                self._unsaid = None
