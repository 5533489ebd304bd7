"""The jobs that changed last, so that observers need not look at all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator


class Changes:
    """The jobs in the order of their last changes.

    Attributes
    ----------
    last : int
        Number of the last change, from 1 on; 0 while there was none.
    """

    def __init__(self) -> None:
        self.last = 0
        self._at: dict[str, int] = {}

    def note(self, job_id: str) -> None:
        """Note that a job, or its record, has changed."""
        self.last += 1
        # Taken out first, so that it stands at the end.
        self._at.pop(job_id, None)
        self._at[job_id] = self.last

    def forget(self, job_id: str) -> None:
        """Forget a job."""
        self._at.pop(job_id, None)

    def since(self, number: int) -> list[str]:
        """Return the jobs that changed after the change of this number, the latest last.

        The cost grows with them, not with all jobs.
        """
        late = itertools.takewhile(lambda each: self._at[each] > number, reversed(self._at))
        return list(late)[::-1]

    def latest(self) -> Iterator[str]:
        """Return the jobs, beginning with the one that changed last."""
        return reversed(self._at)
