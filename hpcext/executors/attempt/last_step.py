"""The last step that a training did, by the file that it keeps."""

from __future__ import annotations

from pathlib import Path

from hpcext import documents, protocol
from hpcext.executors.attempt.readings import MAX_STEPS
from hpcext.numerals import whole


class LastStep:
    """The count of steps of one attempt, which its training writes after each of them.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / protocol.LAST_STEP
        self._stood_at: int | None = None

    def read(self) -> int | None:
        """Return the last step; None if the training keeps no count."""
        return self._count()[0]

    def stands_still(self, reported: int | None) -> bool:
        """Return whether there was no step since the last report, or since the last call.

        Reports come once a second, so there may be steps after the last one. A training that
        writes a checkpoint or validates does not stand still.

        Parameters
        ----------
        reported : int or None
            The step of the last report; None for none.
        """
        before = self._stood_at
        self._stood_at, pauses = self._count()
        return not pauses and self._stood_at is not None and self._stood_at in {reported, before}

    def _count(self) -> tuple[int | None, bool]:
        """Return the last step, and whether the training does something else after it."""
        try:
            text = documents.read_untrusted(self._path)
        except (OSError, ValueError):
            return None, False
        step = whole(text.decode(errors="replace").strip())
        valid = step is not None and 0 <= step <= MAX_STEPS
        return (step if valid else None), text.endswith(b"\t")
