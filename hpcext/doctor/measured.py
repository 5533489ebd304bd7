"""Measurements in this user's own pilots: how long it takes to save a training."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpcext.core.errors import InputError, JournalError
from hpcext.manager import directory as pilots
from hpcext.manager import journal

NEWEST = 20
"""The number of newest pilots to read; older ones may have trained something else."""

MOST_BYTES = 16 << 20
"""The size of the largest journal to read, because the user waits."""


def saving_s(state_dir: Path) -> float | None:
    """Return the slowest suspension in the newest pilots, from order to acknowledgement.

    Parameters
    ----------
    state_dir : pathlib.Path

    Returns
    -------
    float or None
        Seconds; None if nothing was suspended.
    """
    found = []
    for directory, _ in pilots.known(state_dir)[:NEWEST]:
        path = directory / "journal.jsonl"
        # A pilot that has not begun, or is damaged, has no measurement.
        with contextlib.suppress(OSError, JournalError, InputError):
            if path.stat().st_size > MOST_BYTES:
                continue
            world = journal.read(path).replay().world
            segments = [each for record in world.records.values() for each in record.segments]
            found += [sum(each.suspend_s.values()) for each in segments if each.suspend_s]
    return max(found, default=None)
