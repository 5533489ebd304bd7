"""A world as one value, for a compacted journal."""

from __future__ import annotations

from typing import Any

import msgspec

from hpcext.core.decisions import Asked
from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Job, Node, Record


class Saved(msgspec.Struct, frozen=True):
    """All that a :class:`~hpcext.core.world.World` knows."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    records: dict[str, Record]
    draining: bool
    stopping: bool
    next_op: int
    memo: dict[str, Any] | None
    wake_s: float | None
    unsettled: bool = False
    fragments: Fragments = Fragments()
    leaving: bool = False
    ends_s: float | None = None
    shrunk: bool = False
    questions: int = 0
    asked: Asked | None = None
    undecided: str = ""
    slow: bool = False
