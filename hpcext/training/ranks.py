"""What the ranks of one training job tell each other; here for a job of one process."""

from __future__ import annotations

from typing import NamedTuple


class Control(NamedTuple):
    """What a rank asks for at a boundary; of several ranks' wishes the largest count.

    Attributes
    ----------
    stop : int
        1: suspend.
    save : int
        1: write a periodic checkpoint. Rank 0 alone asks, so that one clock decides.
    resize : int
        Number of the next process group, for rescaling in place; 0: none.
    """

    stop: int = 0
    save: int = 0
    resize: int = 0


class Ranks:
    """One process. Subclasses speak to others; every method is then collective.

    Attributes
    ----------
    rank, size : int
    """

    rank = 0
    size = 1
    _sum: list[float] | None = None
    _gathered: list[list[float]] | None = None

    def exchange(self, wish: Control) -> Control:
        """Say what this rank asks for; returns what all ranks agreed on, perhaps one call late."""
        return wish

    def begin_sum(self, values: list[float]) -> None:
        """Begin to add up numbers of all ranks; one sum at a time."""
        self._sum = values

    def summed(self) -> list[float] | None:
        """What was begun, waiting for it; the same on all ranks. None: nothing was."""
        found, self._sum = self._sum, None
        return found

    def begin_gather(self, values: list[float]) -> None:
        """Begin to tell all ranks some numbers, as many on each; one such exchange at a time."""
        self._gathered = [values]

    def gathered(self) -> list[list[float]] | None:
        """What was begun, waiting for it: the numbers of each rank. None: nothing was."""
        found, self._gathered = self._gathered, None
        return found

    def settle(self) -> None:
        """Finish what is under way."""

    def smallest(self, value: int) -> int:
        """The smallest value of all ranks."""
        return value

    def gather(self, data: bytes) -> list[bytes]:
        """The data of each rank, by rank; empty except on rank 0."""
        return [data]

    def broadcast(self, data: bytes) -> bytes:
        """What rank 0 passed."""
        return data
