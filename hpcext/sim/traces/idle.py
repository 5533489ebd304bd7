"""Traces of idle nodes: the nodes that became idle or were taken, and when."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcext.core.errors import InputError
from hpcext.sim.traces.lines import parsed, write_lines
from hpcext.text import shown

HEADER = "time_s,joined,left"
"""The columns of a trace, and its first line."""

PLANNED = f"{HEADER},planned_s,planned"
"""The columns of a trace that also has the plan of the main queue."""

MOST_NODES = 1_000_000
"""Upper limit of node numbers, because a range of a few characters must not fill the memory."""

MOST_LINE_BYTES = 16 << 20
"""Longest line: a million nodes, each by its number."""

_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


class NodeChange(NamedTuple):
    """Nodes that the main queue released or took at one instant.

    Attributes
    ----------
    time_s : float
        Seconds from the beginning of the trace.
    joined, left : tuple of int
        Numbers of the nodes that became idle, and of those that were taken; both ascending.
    planned_s : float or None
        Planned start of the first waiting job of the main queue; None if no job waits, or the start
        is unknown.
    planned : tuple of int
        Idle nodes on which it is planned to start, ascending: their hole ends at `planned_s` at the
        latest, unless the plan changes.
    """

    time_s: float
    joined: tuple[int, ...]
    left: tuple[int, ...]
    planned_s: float | None = None
    planned: tuple[int, ...] = ()


def read_idle(path: Path) -> Iterator[NodeChange]:
    """Read a trace of idle nodes, one change at a time.

    The file is CSV with the columns ``time_s,joined,left``, followed by ``planned_s,planned`` if it
    has a plan; nodes are written as ``3-7 9``. It may be compressed with gzip. At the beginning no
    node is idle.

    Parameters
    ----------
    path : pathlib.Path

    Yields
    ------
    NodeChange
        In the order of time. Memory is bounded by the nodes, not by the length of the trace.

    Raises
    ------
    InputError
        A line is damaged, out of order, or impossible, such as a node that joins twice, or leaves
        without being idle. The message names the line.
    """
    number = 1
    for number, change in parsed(path, _changes, MOST_LINE_BYTES):  # noqa: B007 (used below)
        yield change
    if number == 1:
        raise InputError("it has no changes", where=str(path))


def _changes(lines: Iterator[str]) -> Iterator[NodeChange]:
    header = next(lines)
    columns = {HEADER: 3, PLANNED: 5}.get(header.removeprefix("\ufeff").strip())
    if columns is None:
        raise InputError(shown(header), valid=f"{HEADER} as the first line")
    idle: set[int] = set()
    last_s = 0.0
    for row in lines:
        change = _parse(row, columns)
        if change.time_s < last_s:
            raise InputError(f"{change.time_s:g} s after {last_s:g} s", do="sort it by time")
        last_s = change.time_s
        _apply(change, idle)
        yield change


def _parse(row: str, columns: int) -> NodeChange:
    cells = row.split(",")
    if len(cells) != columns:
        raise InputError(f"{len(cells)} fields", valid=f"{columns}, as in the first line")
    change = NodeChange(_seconds(cells[0]), unfold(cells[1]), unfold(cells[2]))
    if columns == 3 or not cells[3].strip():
        return change
    return change._replace(planned_s=_seconds(cells[3]), planned=unfold(cells[4]))


def _seconds(cell: str) -> float:
    try:
        seconds = float(cell)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InputError(f"time {shown(cell)}", valid="seconds from the beginning, 0 or more")
    return seconds


def _apply(change: NodeChange, idle: set[int]) -> None:
    """Update the set of idle nodes; nodes that leave must be in it, nodes that join must not."""
    gone, come = set(change.left), set(change.joined)
    if len(gone) < len(change.left) or not gone <= idle:
        raise InputError(f"node {_odd(change.left, gone - idle)} leaves, but was not idle")
    idle -= gone
    if len(come) < len(change.joined) or not come.isdisjoint(idle):
        raise InputError(f"node {_odd(change.joined, come & idle)} joins, but was idle already")
    idle |= come


def _odd(nodes: tuple[int, ...], odd: set[int]) -> int:
    """Return the wrong node: one of `odd`, else one that occurs twice."""
    seen: set[int] = set()
    return min(odd) if odd else next(n for n in nodes if n in seen or seen.add(n))  # type: ignore[func-returns-value]


def unfold(cell: str) -> tuple[int, ...]:
    """Parse numbers of nodes: ``3-5 9`` is 3, 4, 5, 9.

    Raises
    ------
    InputError
        The text is something else, a number is too large, or there are more than
        :data:`MOST_NODES`.
    """
    nodes: list[int] = []
    for part in cell.split():
        found = _PART.fullmatch(part)
        first = int(found[1]) if found else 1
        last = int(found[2] or first) if found else 0
        if not first <= last < MOST_NODES:
            valid = f"ascending numbers below {MOST_NODES}, such as 3-5 9"
            raise InputError(f"nodes {shown(part)}", valid=valid)
        nodes.extend(range(first, last + 1))
        if len(nodes) > MOST_NODES:
            raise InputError(f"more than {MOST_NODES} nodes")
    return tuple(nodes)


def fold(nodes: Iterable[int]) -> str:
    """Format ascending numbers of nodes: 3, 4, 5, 9 is ``3-5 9``."""
    parts: list[str] = []
    first = last = -1
    for node in nodes:
        if node == last + 1 and parts:
            last = node
            parts[-1] = f"{first}-{last}"
        else:
            first = last = node
            parts.append(str(node))
    return " ".join(parts)


def write_idle(path: Path, changes: Iterable[NodeChange], *, planned: bool = False) -> None:
    """Write a trace of idle nodes as :func:`read_idle` reads it.

    Parameters
    ----------
    path : pathlib.Path
        Compressed if it ends in ``.gz``. The file is renamed into place when it is complete.
    changes : iterable of NodeChange
    planned : bool
        Whether to write the columns of the plan.
    """
    write_lines(path, _rows(changes, planned=planned))


def _rows(changes: Iterable[NodeChange], *, planned: bool) -> Iterator[str]:
    yield PLANNED if planned else HEADER
    for change in changes:
        row = f"{_plain(change.time_s)},{fold(change.joined)},{fold(change.left)}"
        if planned:
            when = "" if change.planned_s is None else _plain(change.planned_s)
            row += f",{when},{fold(change.planned)}"
        yield row


def _plain(seconds: float) -> str:
    """Format whole seconds without a point, and others so that reading them back is exact."""
    return str(int(seconds)) if seconds == int(seconds) else repr(float(seconds))
