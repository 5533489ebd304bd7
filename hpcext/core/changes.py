"""Which jobs have changed: whoever looks on looks at these, and not at all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator


class Changes:
    """Jobs in the order of their last changes.

    Attributes
    ----------
    last : int
        Number of the last change, from 1 on; 0 while there was none.
    """

    def __init__(self) -> None:
        self.last = 0
        self._at: dict[str, int] = {}

    def note(self, job_id: str) -> None:
        """A job, or its record, is another now."""
        self.last += 1
        # Taken out first, so that it stands at the end.
        self._at.pop(job_id, None)
        self._at[job_id] = self.last

    def forget(self, job_id: str) -> None:
        """A job is known no more."""
        self._at.pop(job_id, None)

    def since(self, number: int) -> list[str]:
        """The jobs with changes after the one of a number, the one that changed last at the end.

        The cost grows with them, not with all jobs.
        """
        late = itertools.takewhile(lambda each: self._at[each] > number, reversed(self._at))
        return list(late)[::-1]

    def latest(self) -> Iterator[str]:
        """The jobs, the one that changed last first."""
        return reversed(self._at)
