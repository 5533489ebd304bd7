"""Reasons for which the batch job of a ticket ends."""

from __future__ import annotations

import enum


class Ending(enum.Enum):
    """A reason for which a job was told to end."""

    NONE = "it was not: it goes on"
    AGAIN = "it begins again, or its time is over"
    CANCELLED = "somebody has cancelled it"
    OPEN = "nobody can say yet whether it begins again"
