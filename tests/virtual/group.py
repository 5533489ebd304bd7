"""The ranks of a virtual training on several nodes, which meet at each step, as gloo has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from virtual import calls
from virtual.nodes import SILENT_S, Node

from hpcext.training.ranks import Control, Ranks

if TYPE_CHECKING:
    from virtual.kernel import Process

MEETS_S, ANSWERS_S = 300.0, 60.0
"""Seconds in which all ranks must be there, and then answer."""


class Broken(RuntimeError):
    """A rank is gone, or does not answer: the others cannot go on."""


class Meeting:
    """What the ranks of one attempt tell each other."""

    def __init__(self) -> None:
        self.members: dict[int, Process] = {}
        self.turns: list[dict[int, Any]] = []
        self.there: set[int] = set()


class Group(Ranks):
    """One rank's part in it.

    Parameters
    ----------
    meeting : Meeting
    rank, size : int
    process : Process
    """

    def __init__(self, meeting: Meeting, rank: int, size: int, process: Process) -> None:
        self.rank, self.size = rank, size
        self._meeting, self._turn = meeting, 0
        meeting.members[rank] = process
        calls.kernel().touched()
        self._all(None, MEETS_S)

    def _all(self, value: Any, within_s: float = ANSWERS_S) -> list[Any]:
        """Return what each rank says at this turn."""
        kernel, meeting = calls.kernel(), self._meeting
        while len(meeting.turns) <= self._turn:
            meeting.turns.append({})
        turn = meeting.turns[self._turn]
        self._turn += 1
        turn[self.rank] = value
        kernel.touched()

        def broken() -> bool:
            return any(_gone(each) for rank, each in meeting.members.items() if rank not in turn)

        whole = lambda: len(turn) == self.size  # noqa: E731
        kernel.wait(lambda: whole() or broken(), kernel.now + within_s)
        if not whole():
            raise Broken(f"rank {self.rank}: others are gone")
        return [turn[rank] for rank in range(self.size)]

    def members(self) -> list[Process]:
        """Return the processes of all ranks."""
        return list(self._meeting.members.values())

    def exchange(self, requests: Control) -> Control:
        """Return the largest of all requests."""
        return Control(*map(max, zip(*self._all(requests), strict=True)))

    def smallest(self, value: int) -> int:
        """Return the smallest value."""
        return int(min(self._all(value)))

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks, on rank 0."""
        found = self._all(data)
        return found if self.rank == 0 else []

    def broadcast(self, data: bytes) -> bytes:
        """Return what rank 0 passed."""
        found: bytes = self._all(data)[0]
        return found


def _gone(process: Process) -> bool:
    """Return whether the connection to a process has ended, which it does at once if that died."""
    if not process.dead:
        return False
    node = process.machine
    if isinstance(node, Node) and not node.up:
        return calls.kernel().now >= node.lost_s + SILENT_S
    # A node that has booted knows of no connection, and says so.
    return True
