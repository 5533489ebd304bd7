"""Communication of the ranks of a training job; here for a job of one process."""

from __future__ import annotations

from typing import NamedTuple


class Control(NamedTuple):
    """The requests of a rank at a boundary; the largest of all ranks' requests counts.

    Attributes
    ----------
    suspend : int
        1: suspend.
    save : int
        1: write a periodic checkpoint. Only rank 0 requests it, so that one clock decides.
    resize : int
        Number of the next process group, for rescaling in place; 0 for none.
    """

    suspend: int = 0
    save: int = 0
    resize: int = 0


class Ranks:
    """The group of ranks; this class is for a single process.

    Subclasses communicate with other processes, and every method is then collective.

    Attributes
    ----------
    rank, size : int
    """

    rank = 0
    size = 1
    _sum: list[float] | None = None
    _gathered: list[list[float]] | None = None

    def exchange(self, requests: Control) -> Control:
        """Send this rank's requests; return what all ranks agreed on, perhaps one call later."""
        return requests

    def begin_sum(self, values: list[float]) -> None:
        """Begin to add numbers over all ranks; one sum at a time."""
        self._sum = values

    def summed(self) -> list[float] | None:
        """Wait for the sum that was begun and return it, the same on all ranks, or None."""
        found, self._sum = self._sum, None
        return found

    def begin_gather(self, values: list[float]) -> None:
        """Begin to send numbers to all ranks, equally many from each; one exchange at a time."""
        self._gathered = [values]

    def gathered(self) -> list[list[float]] | None:
        """Wait for the exchange that was begun; return each rank's numbers, or None if none was."""
        found, self._gathered = self._gathered, None
        return found

    def settle(self) -> None:
        """Finish running exchanges."""

    def smallest(self, value: int) -> int:
        """Return the smallest value of all ranks."""
        return value

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of each rank, by rank; an empty list on all ranks but 0."""
        return [data]

    def broadcast(self, data: bytes) -> bytes:
        """Return the data of rank 0."""
        return data
